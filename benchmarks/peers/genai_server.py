"""onnxruntime-genai on a model made by its own builder: `python -m peers.genai_server CHECKPOINT OUT ...`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .serve import Generate, serve

_NGRAM = 3


def build(checkpoint: Path, out: Path, precision: str, threads: int, drafts: int) -> None:
    """Build the peer's model in ``out``, once. ``drafts`` enables prompt lookup with that many drafts."""
    config = out / "genai_config.json"
    if not config.is_file():
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint), "-o", str(out)]
        subprocess.run([*builder, "-p", precision, "-e", "cpu"], check=True, stdout=sys.stderr)
    settings = json.loads(config.read_text())
    settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    if drafts:
        settings["speculative"] = {"ngram_size": _NGRAM, "max_draft_tokens": drafts}
    config.write_text(json.dumps(settings))


def main() -> None:
    """Serve one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a Hugging Face model folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--drafts", type=int, default=0, help="drafts per round from prompt lookup")
    arguments = parser.parse_args()

    def load() -> tuple[str, Generate]:
        build(arguments.checkpoint, arguments.out, arguments.precision, arguments.threads, arguments.drafts)
        import numpy as np
        import onnxruntime_genai as og

        model = og.Model(str(arguments.out))

        def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
            params = og.GeneratorParams(model)
            length = len(prompt) + count
            params.set_search_options(max_length=length, min_length=length, do_sample=False)
            generator = og.Generator(model, params)
            generator.append_tokens(np.array([prompt], np.int32))
            generator.generate_next_token()
            began = time.perf_counter()
            for _ in range(count - 1):
                generator.generate_next_token()
            seconds = time.perf_counter() - began
            return [int(token) for token in generator.get_sequence(0)[len(prompt) :]], seconds

        return str(og.__version__), generate

    serve(load)


if __name__ == "__main__":
    main()
