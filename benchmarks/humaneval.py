"""Measure plain decoding, EAGLE-3 and P-EAGLE on HumanEval prompts, as in the announcement's table.

    make bench-humaneval                                    # or, in a few minutes:
    python benchmarks/humaneval.py --num-prompts 12

Builds SmolLM2-135M with each of its two heads, which were trained on the same text, and passes both engines to
`peagle-compile bench`; all other arguments are options of that command. P-EAGLE drafts a tree of K nodes; a chain with
as many drafts is measured too. By default, all 164 prompts are measured once, with the K that each build measures to be
fastest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cpu.engines import REAL, build

WORK = Path("build/bench-humaneval")
HEADS = ("peagle", "eagle3")
DEFAULTS = ("--workload", "humaneval", "--num-prompts", "164", "--max-tokens", "256")


def bench_arguments(engines: Sequence[Path], given: Sequence[str]) -> list[str]:
    """Return the arguments of `peagle-compile`; what is ``given`` overrides the defaults."""
    return ["bench", *map(str, engines), *DEFAULTS, *given]


def main() -> None:
    """Build what is missing and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int4", help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for the engines and bench.json")
    arguments, given = parser.parse_known_args()
    work, precision = arguments.work, arguments.precision
    flags = (*REAL, "--backend", "onnxruntime", "--precision", precision)
    engines = [build(work / f"{head}-{precision}", *flags, "--draft", head) for head in HEADS]
    program = str(Path(sys.executable).with_name("peagle-compile"))
    out = [] if "--out" in given else ["--out", str(work / "bench.json")]
    raise SystemExit(subprocess.run([program, *bench_arguments(engines, [*out, *given])], check=False).returncode)


if __name__ == "__main__":
    main()
