"""onnxruntime-genai on a model made by its own builder: `python -m peers.genai_server CHECKPOINT OUT ...`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .serve import Decoded, Served, parser, serve

_NGRAM = 3


def build(checkpoint: str, out: Path, precision: str, threads: int, drafts: int) -> None:
    """Build the peer's model in ``out``, once. ``drafts`` enables prompt lookup with that many drafts."""
    config = out / "genai_config.json"
    if not config.is_file():
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", str(out)]
        subprocess.run([*builder, "-p", precision, "-e", "cpu"], check=True, stdout=sys.stderr)
    settings = json.loads(config.read_text())
    settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    if drafts:
        settings["speculative"] = {"ngram_size": _NGRAM, "max_draft_tokens": drafts}
    config.write_text(json.dumps(settings))


def main() -> None:
    """Serve one model."""
    arguments = parser(__doc__).parse_args()
    out = Path(arguments.work)

    def load() -> Served:
        build(arguments.model, out, arguments.format or "fp32", arguments.threads, arguments.drafts)
        import numpy as np
        import onnxruntime_genai as og

        model = og.Model(str(out))

        def started(prompt: Sequence[int], length: int) -> Any:
            params = og.GeneratorParams(model)
            params.set_search_options(max_length=length, min_length=length, do_sample=False)
            generator = og.Generator(model, params)
            generator.append_tokens(np.array([prompt], np.int32))
            return generator

        def generate(prompt: Sequence[int], count: int) -> Decoded:
            began = time.perf_counter()
            generator = started(prompt, len(prompt) + count)
            generator.generate_next_token()
            first = time.perf_counter()
            for _ in range(count - 1):
                generator.generate_next_token()
            rest = time.perf_counter() - first
            return Decoded([int(token) for token in generator.get_sequence(0)[len(prompt) :]], first - began, rest)

        def window(prompt: Sequence[int], tokens: Sequence[int]) -> float:
            generator = started(prompt, len(prompt) + len(tokens) + 1)
            began = time.perf_counter()
            generator.append_tokens(np.array([tokens], np.int32))
            generator.generate_next_token()
            return time.perf_counter() - began

        size = sum(file.stat().st_size for file in out.glob("*.onnx*"))
        return Served(str(og.__version__), size, generate, window)

    serve(load)


if __name__ == "__main__":
    main()
