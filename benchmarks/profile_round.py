"""Where the time of a round goes on ONNX Runtime: kernels by kind, for plain decoding and for one speculative round.

    python benchmarks/profile_round.py demo-engine

Three passes are profiled on the engine's own graphs, one thread, batch 1: the target over one column (plain decoding),
the target over K + 1 columns (verification) and the drafter over what one round commits. ``run`` is the median of the
unprofiled pass; the table below it is the profiler's, whose own cost makes every kernel look longer by about 1 us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from peagle.engines.folder.manifest import Manifest

_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}
CONTEXT = 128
RUNS = 300


def _pass(path: Path, width: int, emitted: int, profile: Path | None) -> list[float]:
    """Seconds of repeated passes over ``width`` columns with CONTEXT tokens in the cache, everything bound once."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    dims = {"B": 1, "S": width, "E": emitted}
    arrays: dict[str, Any] = {
        i.name: np.zeros([d if isinstance(d, int) else dims[d] for d in i.shape], _DTYPES[i.type])
        for i in session.get_inputs()
    }
    arrays["start"][:], arrays["window_len"][:], arrays["draft_len"][:] = CONTEXT, width, width - 1
    if "num_tokens" in arrays:
        arrays["num_tokens"][:] = width
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        if "_cache." in output.name:
            cache = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[output.name.removesuffix(".out")])
            binding.bind_ortvalue_output(output.name, cache)
        elif not output.name.endswith("logits"):
            binding.bind_output(output.name)
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        session.run_with_iobinding(binding)
        seconds.append(time.perf_counter() - began)
    if profile:
        session.end_profiling()
    return seconds


def _kernels(trace: Path) -> dict[str, tuple[int, float]]:
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


def report(title: str, path: Path, width: int, emitted: int) -> None:
    """Print one pass."""
    run = statistics.median(_pass(path, width, emitted, None)[RUNS // 10 :]) * 1e6
    with tempfile.TemporaryDirectory() as folder:
        _pass(path, width, emitted, Path(folder) / "trace")
        kinds = _kernels(next(Path(folder).glob("trace*.json")))
    total = sum(t for _, t in kinds.values())
    print(f"{title}: run {run:.0f} us; {sum(n for n, _ in kinds.values())} kernels, {total:.0f} us under the profiler")
    ranked = sorted(kinds.items(), key=lambda item: -item[1][1])
    for kind, (count, microseconds) in ranked[:6]:
        print(f"  {kind:36}{count:>5}{microseconds:>8.0f} us{microseconds / total:>7.0%}")
    rest = ranked[6:]
    count, microseconds = sum(n for _, (n, _) in rest), sum(t for _, (_, t) in rest)
    print(f"  {'everything else':36}{count:>5}{microseconds:>8.0f} us{microseconds / total:>7.0%}\n")


def main() -> None:
    """Profile the three passes; one where there is no drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--k", type=int, help="drafts per round; default: the engine's")
    arguments = parser.parse_args()
    manifest = Manifest.read(arguments.engine)
    k = arguments.k or manifest.speculation.num_speculative_tokens
    target = arguments.engine / manifest.target.file
    report("target, 1 column (plain decoding)", target, 1, 1)
    if manifest.drafter is None:
        return
    drafter = arguments.engine / manifest.drafter.file
    report(f"target, {k + 1} columns (verification)", target, k + 1, k + 1)
    committed = max(1, (k + 1) // 2)
    report(f"drafter, {committed} committed columns, K = {k}", drafter, committed, k + 1)


if __name__ == "__main__":
    main()
