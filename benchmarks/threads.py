"""Measure decoding of one engine under different thread settings, in turns: milliseconds per token.

    python benchmarks/threads.py build/demo

A setting is the number of threads per session (0: every physical core), whether they spin while waiting for the next
node, and whether they keep spinning after the run. The runtime's default is `asleep` for engines with the project's
kernels, and `waking, asleep between runs` for others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import loaded_graphs

PROMPT = "def fibonacci(n):\n    "
RULES = {  # threads, spins, stops after a run
    "one thread": (1, "0", "0"),
    "asleep": (None, "0", "0"),
    "waking": (None, "1", "0"),
    "waking, asleep between runs": (None, "1", "1"),
}


def loaded(folder: str, rule: str) -> Engine:
    """Load the engine with a thread setting."""
    threads, spins, stops = RULES[rule]
    settings = {"session.intra_op.allow_spinning": spins, "session.force_spinning_stop": stops}
    loaded_graphs.waiting = lambda library: settings
    return Engine.load(folder, threads=threads, check="sizes", prefix_cache_bytes=0)


def milliseconds(engine: Engine, k: int, tokens: int) -> float:
    """Return the milliseconds per token, prompt processing included."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    before = time.perf_counter()
    engine.generate([PROMPT], params, num_speculative_tokens=k)
    return (time.perf_counter() - before) / tokens * 1e3


def main() -> None:
    """Measure every setting in turns; print medians and the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    engines = {rule: loaded(options.engine, rule) for rule in RULES}
    depths = sorted({0, next(iter(engines.values())).num_speculative_tokens})
    found: dict[tuple[str, int], list[float]] = {(rule, k): [] for k in depths for rule in RULES}
    for _ in range(options.rounds):
        for (rule, k), times in found.items():
            milliseconds(engines[rule], k, 4)  # wait until the previous engine's threads are idle
            times.append(milliseconds(engines[rule], k, options.tokens))
    print(f"{os.cpu_count()} processors; ms per token: median, best")
    for (rule, k), times in found.items():
        print(f"K = {k}  {rule:28s} {statistics.median(times):8.3f} {min(times):8.3f}")


if __name__ == "__main__":
    main()
