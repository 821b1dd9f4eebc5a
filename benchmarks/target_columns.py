"""What a pass of the target costs by its columns: one is plain decoding, K + 1 verify K drafts.

    chrt -f 10 python benchmarks/target_columns.py demo-engine other-engine

Engines are measured side by side: a round runs every engine once at every width, and the median of the rounds counts.
Batch 1, 128 tokens in the cache, the threads that the engine itself would take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from peagle.engines.backends.onnxruntime.kernels import library_of
from peagle.engines.backends.onnxruntime.loaded_graphs import bind, default_threads, open_session, run
from peagle.engines.folder.manifest import Manifest

_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32}
CONTEXT = 128


def passes(engine: Path, widths: list[int]) -> tuple[Any, dict[int, Any]]:
    """The session of an engine's target, and what is bound for a pass of each width."""
    manifest = Manifest.read(engine)
    session = open_session(engine / manifest.target.file, default_threads(manifest), library_of(engine, manifest))
    return session, {width: _bound(session, width) for width in widths}


def _bound(session: Any, width: int) -> Any:
    dims = {"B": 1, "S": width, "E": width}
    arrays = {
        given.name: np.zeros([dims.get(dim, dim) for dim in given.shape], _DTYPES[given.type])
        for given in session.get_inputs()
    }
    arrays["start"][:], arrays["window_len"][:], arrays["draft_len"][:] = CONTEXT, width, width - 1
    sizes = {"tokens": np.int32, "num_tokens": np.int32}
    outputs = {}
    for value in session.get_outputs():
        if "_cache." in value.name:
            outputs[value.name] = arrays[value.name.removesuffix(".out")]
        elif value.name != "logits":
            shape = [dims.get(dim, dim) for dim in value.shape]
            outputs[value.name] = np.zeros(shape, sizes.get(value.name, np.float32))
    return bind(session, arrays, outputs)


def main() -> None:
    """Print a line for every engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path, nargs="+")
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    loaded = [passes(engine, arguments.columns) for engine in arguments.engines]
    seconds: dict[tuple[int, int], list[float]] = {}
    for _ in range(arguments.rounds + 2):
        for at, (session, bound) in enumerate(loaded):
            for width, binding in bound.items():
                began = time.perf_counter()
                run(session, binding)
                seconds.setdefault((at, width), []).append(time.perf_counter() - began)
    print(f"{'ms by columns':24}" + "".join(f"{width:>8}" for width in arguments.columns))
    for at, engine in enumerate(arguments.engines):
        medians = [statistics.median(seconds[at, width][2:]) * 1e3 for width in arguments.columns]
        print(f"{engine.name[:23]:24}" + "".join(f"{median:8.1f}" for median in medians))


if __name__ == "__main__":
    main()
