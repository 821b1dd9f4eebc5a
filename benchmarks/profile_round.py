"""Profile a round on ONNX Runtime: time by kernel type, for plain decoding and for one speculative round.

    python benchmarks/profile_round.py demo-engine [--context 1500] [--threads 2]
    python benchmarks/profile_round.py demo-engine --requests 1 4 [--threads 2]     # whole rounds, concurrent requests

Profiles three passes of the engine's graphs at batch 1: the target over one column (plain decoding), the target over
K + 1 columns (verification), and the drafter over the columns that one round commits. ``run`` is the median of the
unprofiled pass. ``floor`` is the time to read its bytes at the bandwidth that the same number of threads reaches here
when summing memory: each weight of the graph once, and the keys and values of the context. The table below comes from
the profiler, whose overhead adds 1 us or more to every kernel.

For whole rounds with the project's kernels, the output has the time of target and drafter, of the Python code around
them in the lanes, and the rest: scheduler and text. `tokens` counts all requests of a round; `prompts` and `moves` (of
a row's caches after another row has ended) are total milliseconds, and prompts are not part of tokens/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from cpu.passes import Passes, milliseconds
from cpu.rounds import report_rounds

from peagle.compiler.hardware.cpu_probe import memory_speed
from peagle.engines.folder.manifest import Manifest

RUNS = 100
_SHOWN = 8


def kernels(trace: Path) -> dict[str, tuple[int, float]]:
    """Return kernel type -> (count per pass, microseconds per pass), the sum of each node's median."""
    events: list[dict[str, Any]] = [e for e in json.loads(trace.read_text()) if e.get("cat") == "Node"]
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        durations[event["args"]["op_name"], event["name"]].append(event["dur"])
    kinds: dict[str, tuple[int, float]] = {}
    for (kind, _), values in durations.items():
        count, total = kinds.get(kind, (0, 0.0))
        kinds[kind] = count + 1, total + statistics.median(values)
    return kinds


def report(title: str, engine: Path, half: str, columns: int, emitted: int, arguments: argparse.Namespace) -> None:
    """Profile and print one pass."""
    context, threads = arguments.context, arguments.threads
    graph = Passes(engine, half, threads)
    run = milliseconds(graph.pass_over(columns, context, emitted), RUNS)
    read, speed = graph.bytes_read(context), arguments.bandwidth
    with tempfile.TemporaryDirectory() as folder:
        profiled = Passes(engine, half, threads, Path(folder) / "trace")
        milliseconds(profiled.pass_over(columns, context, emitted), RUNS)
        kinds = kernels(profiled.end_profiling())
    total = sum(t for _, t in kinds.values())
    floor, count = read / speed * 1e3, sum(n for n, _ in kinds.values())
    print(f"{title}: run {run:.2f} ms; floor {floor:.2f} ms, for {read / 1e6:.0f} MB")
    print(f"  {count} kernels, {total / 1e3:.2f} ms under the profiler")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][1])
    rest = ranked[_SHOWN:]
    others = sum(n for _, (n, _) in rest), sum(t for _, (_, t) in rest)
    for kind, (count, microseconds) in [*ranked[:_SHOWN], *([("everything else", others)] if rest else [])]:
        print(f"  {kind:36}{count:>5}{microseconds:>8.0f} us{microseconds / total:>7.0%}")
    print()


def main() -> None:
    """Profile the three passes, or one if there is no drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--k", type=int, help="drafts per round; default: the engine's")
    parser.add_argument("--context", type=int, default=128, help="tokens in the cache; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--requests", type=int, nargs="+", metavar="N", help="profile whole rounds of N requests at once"
    )
    arguments = parser.parse_args()
    manifest = Manifest.read(arguments.engine)
    k = arguments.k or manifest.speculation.num_speculative_tokens
    if arguments.requests:
        report_rounds(arguments.engine, arguments.requests, k if manifest.drafter else 0, arguments.threads)
        return
    arguments.bandwidth = memory_speed(arguments.threads)
    read = f"{arguments.bandwidth / 1e9:.1f} GB/s"
    print(f"threads: {arguments.threads}, which read {read}; {arguments.context} tokens of context\n")
    report("target, 1 column (plain decoding)", arguments.engine, "target", 1, 1, arguments)
    if manifest.drafter is None:
        return
    report(f"target, {k + 1} columns (verification)", arguments.engine, "target", k + 1, k + 1, arguments)
    committed = max(1, (k + 1) // 2)
    title = f"drafter, {committed} committed columns, K = {k}"
    report(title, arguments.engine, "drafter", committed, k + 1, arguments)


if __name__ == "__main__":
    main()
