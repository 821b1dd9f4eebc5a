"""What it costs to read a weight of a BF16 checkpoint and to round it, in nanoseconds of one core.

    python benchmarks/rounding.py                           # with the [export] extra installed

The figures of ``compiler/forecast/build_work.py`` come from here. A matrix of 8192 x 2048 random numbers is written as
safetensors and read in pieces, then rounded as a build does it: codes, scales and the loss. CPU time of this process is
counted, so that a busy machine changes little; the median of five turns and their range.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from peagle.compiler.checkpoints.safetensors import read_header, read_rows
from peagle.compiler.precision.calibration.saved_ranges import Facts, Scales
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_selection import Selection
from peagle.compiler.precision.weights_rounded_here import RoundedHere
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.checkpoint_pieces import Array
from peagle.graphs.targets.weight_roles import RoledWeight

NAME = "model.layers.0.mlp.up_proj.weight"
SHAPE = (8192, 2048)
PIECE, TURNS = 4096, 5


def per_weight(work: Callable[[], object]) -> str:
    """The CPU time of ``work`` by weight: median and range."""
    taken = []
    for _ in range(TURNS):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e9 / (SHAPE[0] * SHAPE[1]))
    return f"{statistics.median(taken):5.1f} ns ({min(taken):.1f} to {max(taken):.1f})"


def main() -> None:
    """Measure and print."""
    weights = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32).astype(ml_dtypes.bfloat16)

    def read(name: str, shape: tuple[int, ...]) -> Iterator[Array]:
        yield from (weights[i : i + PIECE].astype(np.float32) for i in range(0, shape[0], PIECE))

    squares = np.ones(SHAPE[1:], np.float32)
    ranges = Scales({}, {}, {}, Facts("", "", "", {}, "", "", "", 0, 0, {}), {NAME: squares})

    def rounding(kind: str, lowering: str) -> None:
        weight = RoledWeight(NAME, SHAPE, "mlp", 1)
        source = RoundedHere(Selection(RECIPES[kind], {NAME: weight}), LOWERINGS[lowering], read, ranges)
        for pieces in (source.codes(NAME, SHAPE), source.scales(NAME, SHAPE)):
            for _ in pieces:
                pass

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save_file({NAME: weights}, path)
        entry = read_header(path)[NAME]

        def reading() -> None:
            for i in range(0, SHAPE[0], PIECE):
                read_rows(NAME, entry, i, i + PIECE).astype(np.float32)

        print(f"read       {per_weight(reading)}")
    for kind, lowering in (*((kind, "tensorrt") for kind in ("fp8", "int8", "mxfp8", "int4")), ("int4", "cpu")):
        name = kind if lowering == "tensorrt" else f"{kind}, {lowering}"
        print(f"{name:10} {per_weight(lambda k=kind, by=lowering: rounding(k, by))}")  # type: ignore[misc]


if __name__ == "__main__":
    main()
