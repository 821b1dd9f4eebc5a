"""Where the time of a round goes on ONNX Runtime: kernels by kind, for plain decoding and for one speculative round.

    python benchmarks/profile_round.py demo-engine [--context 1500] [--threads 2]
    python benchmarks/profile_round.py demo-engine --requests 1 4 [--threads 2]     # whole rounds, of so many at once

Three passes are profiled on the engine's own graphs, batch 1: the target over one column (plain decoding), the target
over K + 1 columns (verification) and the drafter over what one round commits. ``run`` is the median of the unprofiled
pass. ``floor`` is the time that reading its bytes takes, at the bandwidth that as many threads reach here when they add
up memory: the weights of the graph, of which each is read once, and the keys and values of the context. The table below
is the profiler's, whose own cost makes every kernel look longer by 1 us and more.

Of whole rounds, with kernels of ours, there are the runs of target and drafter, what the lanes do around them in
Python, and the rest: scheduler, texts. `tokens` are those of a round, of all requests; `prompts` and `moves` (of what a
row's caches hold, when another has ended) are milliseconds in all, and prompts are not in tokens/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cpu.passes import Passes, milliseconds
from cpu.rounds import report_rounds

from peagle.engines.folder.manifest import Manifest

RUNS = 100
_READ = 256 * 2**20  # bytes that bandwidth is measured over: more than any cache holds
_SHOWN = 8


def kernels(trace: Path) -> dict[str, tuple[int, float]]:
    """Kind of kernel -> how many per pass, microseconds per pass (medians of each node, added up)."""
    events: list[dict[str, Any]] = [e for e in json.loads(trace.read_text()) if e.get("cat") == "Node"]
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        durations[event["args"]["op_name"], event["name"]].append(event["dur"])
    kinds: dict[str, tuple[int, float]] = {}
    for (kind, _), values in durations.items():
        count, total = kinds.get(kind, (0, 0.0))
        kinds[kind] = count + 1, total + statistics.median(values)
    return kinds


def bandwidth(threads: int) -> float:
    """Bytes by the second that ``threads`` threads read when each adds up a part of an array: the best of some runs."""
    array = np.ones(_READ // 8, np.int64)
    parts = np.array_split(array, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - began)
    return array.nbytes / best


def report(title: str, engine: Path, half: str, columns: int, emitted: int, arguments: argparse.Namespace) -> None:
    """Print one pass."""
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
    """Profile the three passes; one where there is no drafter."""
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
    arguments.bandwidth = bandwidth(arguments.threads)
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
