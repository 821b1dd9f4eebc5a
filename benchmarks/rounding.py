"""Measure reading and rounding the weights of a BF16 checkpoint, in nanoseconds, beside the plain implementation.

    make bench-rounding                                     # a minute; ARGS="--rows 65536" takes a larger matrix

A matrix of random BF16 numbers is written as safetensors. In every turn and for every recipe, it is read and rounded
(codes, scales, and the loss) in three ways: by the plain implementation, which processes 64 MB pieces on one thread,
every step over the whole piece; then as builds do, first restricted to one processor, then with all available. A matrix
with one scale, or one per row, is read twice. The output has the median and range of the turns, and the median of the
ratios per turn.

The resource estimate (``compiler/resources/work.py``) uses the column "one processor" minus the time of reading.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.hardware.processors import processors
from peagle.compiler.precision.calibration.saved_ranges import Facts, Scales
from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.rounding import scale_and_min
from peagle.compiler.precision.rounding.numbers_to_codes import block_scales, rounded, scales_for, values_of
from peagle.compiler.precision.weight_selection import Selection
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization.quantized_weight import QuantizedWeight
from peagle.graphs.targets.checkpoint_pieces import Array
from peagle.graphs.targets.weight_roles import RoledWeight
from peagle.plugins.number_types import powers_of_two

NAME = "model.layers.0.mlp.up_proj.weight"
COLUMNS = 2048
PIECE = 64 << 20
READ = ("read", "")
RECIPES_ON = (
    ("fp8", "tensorrt"), ("int8", "tensorrt"), ("mxfp8", "tensorrt"), ("int4", "tensorrt"), ("int8", "ort"),
    ("int4", "ort"), ("int8", "cpu"), ("int4", "cpu"),
)  # fmt: skip


def plainly(stored: QuantizedWeight, checkpoint: Checkpoint) -> None:
    """Compute codes, scales and the loss with the plain implementation."""

    def pieces() -> Iterator[Array]:
        return checkpoint.pieces(NAME, PIECE)

    few, at = None, 0
    if not stored.block:
        of_rows = np.concatenate([abs(rows).max(axis=1) for rows in pieces()])
        few = scales_for(of_rows if stored.scale else np.full_like(of_rows, of_rows.max()), stored.codes)
    for rows in pieces():
        grouped = rows.reshape(len(rows), -1, stored.block or COLUMNS)
        if stored.packed == "q4_1":
            scales = scale_and_min.fit(grouped, np.ones(grouped.shape[1:], np.float32))
            codes = scale_and_min.codes_of(grouped, scales)
            moved = scale_and_min.values_of(codes, scales) - grouped
        else:
            if few is not None:
                scales, at = few[at : at + len(rows), None], at + len(rows)
            elif stored.powers:
                scales = powers_of_two(abs(grouped).max(axis=-1))
            else:
                scales = block_scales(grouped, stored.codes)
            codes = rounded(grouped, scales[..., None], stored.codes)
            moved = values_of(codes, scales[..., None], stored.codes) - grouped
        for numbers in (moved, grouped):
            np.einsum("ijk,ijk->i", numbers, numbers).sum(dtype=np.float64)


def now(source: OnTheFlyQuantizer, shape: tuple[int, ...]) -> None:
    """Compute the same as a build does."""
    for pieces in (source.codes(NAME, shape), source.scales(NAME, shape)):
        for _ in pieces:
            pass


def read(checkpoint: Checkpoint, piece: int | None = None) -> None:
    """Read every number once, and nothing else."""
    for _ in checkpoint.pieces(NAME, piece) if piece else checkpoint.pieces(NAME):
        pass


def on_one(work: Callable[[], None]) -> None:
    """Do ``work`` with this process restricted to one processor."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    try:
        work()
    finally:
        os.sched_setaffinity(0, all_of_them)


def nanoseconds(work: Callable[[], None], count: int) -> float:
    """Return the wall time of ``work`` per number."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e9 / count


def told(values: list[float]) -> str:
    """Format median and range."""
    return f"{statistics.median(values):5.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=16384, help="rows of the matrix, which has 2048 columns")
    parser.add_argument("--turns", type=int, default=5, help="turns per recipe")
    args = parser.parse_args()
    shape = (args.rows, COLUMNS)
    ranges = Scales({}, {}, {}, Facts("", "", "", {}, "", "", "", 0, 0, {}), {NAME: np.ones(COLUMNS, np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        numbers = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(ml_dtypes.bfloat16)
        save_file({NAME: numbers}, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text(json.dumps({}))
        checkpoint = Checkpoint.open(Path(folder))

        def source(kind: str, lowering: str) -> OnTheFlyQuantizer:
            wide, weight = "bf16" if lowering == "tensorrt" else "fp32", RoledWeight(NAME, shape, "mlp", 1)
            selection = Selection(RECIPES[kind].on(wide, LOWERINGS[lowering]), {NAME: weight})
            return OnTheFlyQuantizer(selection, LOWERINGS[lowering], lambda name, _: checkpoint.runs(name), ranges)

        def turn(kind: str, lowering: str) -> list[float]:
            stored = source(kind, lowering).storage()[0][NAME]

            def as_now() -> None:
                now(source(kind, lowering), shape)

            ways = (lambda: plainly(stored, checkpoint), lambda: on_one(as_now), as_now)
            return [nanoseconds(way, numbers.size) for way in ways]

        def reading() -> list[float]:
            before, after = (
                nanoseconds(lambda p=piece: read(checkpoint, p), numbers.size)  # type: ignore[misc]
                for piece in (PIECE, None)
            )
            return [before, after, after]

        print(f"{shape[0]} x {shape[1]} numbers in BF16; nanoseconds per number, including reading")
        print(f"{'':20}{'plain':22}{'one processor':22}{f'{processors()} of them':22}speedup")
        turns = [{READ: reading()} | {pair: turn(*pair) for pair in RECIPES_ON} for _ in range(args.turns)]
        for pair in (READ, *RECIPES_ON):
            plain, one, every = (list(column) for column in zip(*(each[pair] for each in turns), strict=True))
            times = statistics.median(before / after for before, after in zip(plain, every, strict=True))
            print(f"{' for '.join(filter(None, pair)):20}{told(plain):22}{told(one):22}{told(every):22}{times:.1f}")


if __name__ == "__main__":
    main()
