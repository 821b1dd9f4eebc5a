"""FP8 weights with scales per tensor, per row, or per block of rows and columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....plugins.errors import BuildError
from ....plugins.number_types import to_e4m3
from ....plugins.problems import Problems, listed
from ..safetensors import TensorEntry, read_rows
from .base import Stored, View
from .plain import FLOATS, plain_tensors
from .stored_numbers import Array, as_numbers, check_codes, check_finite, check_scales

Shape = tuple[int, ...]
Block = tuple[int, int]
_FP8 = "F8_E4M3"
_WEIGHT = ".weight"
_SCALE_TYPES = (*FLOATS, "F8_E8M0")


@dataclass(frozen=True)
class ScaledFp8:
    """A matrix of FP8 values with one scale per ``block`` of rows and columns.

    Or stacked matrices with one common scale.
    """

    name: str
    entry: TensorEntry
    scale_name: str
    scales: TensorEntry
    block: Block
    input_name: str = ""
    input_scales: TensorEntry | None = None

    @property
    def shape(self) -> Shape:
        return self.entry.shape

    @property
    def granule(self) -> int:
        return self.block[0] if self.block[0] < self.shape[0] else 1  # with one common scale, any number is fine

    def rows(self, begin: int, end: int) -> Array:
        values = as_numbers(_FP8, read_rows(self.name, self.entry, begin, end))
        scales = self._scales(begin, end)
        if self._one_scale:
            values *= scales[0, 0]
            return values
        width = self.block[1]
        for column in range(scales.shape[1]):
            values[:, column * width : (column + 1) * width] *= scales[:, column : column + 1]
        return values

    def rescaled(self, scale: float | None = None) -> bool:
        """Return True if ``codes`` differ from the stored ones: a row has several scales, or all get a new one."""
        several = not self._one_scale and self.scales.shape[1] > 1
        return several or (scale is not None and bool(np.any(self.row_scales() != np.float32(scale))))

    def codes(self, begin: int, end: int, loss: Loss | None = None, scale: float | None = None) -> Array:
        """Rows as E4M3 codes, uint8: as stored, or requantized to one scale per row or to the common ``scale``.

        ``loss`` accumulates the error of requantizing.
        """
        if not self.rescaled(scale):
            codes = read_rows(self.name, self.entry, begin, end)
            check_codes(self.name, self.entry, codes)
            return codes
        values = self.rows(begin, end)
        check_finite(self.name, self.entry, values)
        largest = self._scales(begin, end).max(axis=1, keepdims=True) if scale is None else np.float32(scale)
        codes = to_e4m3(values / largest)
        if loss is not None:
            loss.add(values, as_numbers(_FP8, codes) * largest - values)
        return codes

    def row_scales(self) -> Array:
        """The scales of ``codes``, float32: one, or one per row.

        For a row with several scales it is the largest, so no stored value overflows.
        """
        if self._one_scale:
            return self._scales(0, 1).reshape(())
        largest: Array = self._scales(0, self.shape[0]).max(axis=1)
        return largest

    def matrix_scale(self) -> float:
        """The largest of its scales; with it, no stored value overflows."""
        return float(self.row_scales().max())

    def input_scale(self) -> float | None:
        """The calibrated scale of the input in E4M3; None if inputs are scaled at run time."""
        if self.input_scales is None:
            return None
        return read_scale(
            self.input_name,
            self.input_scales,
            why="the scale of an input must be one number",
            fix="download the file again, or omit --precision",
        )

    @property
    def _one_scale(self) -> bool:
        return self.scales.shape in ((), (1,))

    def _scales(self, begin: int, end: int) -> Array:
        """Return the scales of each row, one line per row."""
        height = self.block[0]
        first, last = begin // height, -(-end // height)
        one = self._one_scale
        raw = read_rows(self.scale_name, self.scales, *((0, 1) if one else (first, last)))
        scales = as_numbers(self.scales.dtype, raw).astype(np.float32, copy=False)
        check_scales(self.scale_name, self.scales, scales)
        return scales.reshape(1, 1).repeat(end - begin, 0) if one else scales[np.arange(begin, end) // height - first]


def read_scale(name: str, entry: TensorEntry, *, why: str, fix: str) -> float:
    """Read a scale stored as one number; ``why`` completes the error for another shape, ``fix`` also for another type.

    Raises ``BuildError`` unless it is one positive number.
    """
    if entry.shape not in ((), (1,)):
        raise BuildError(f"{entry.file}: {name} has shape {list(entry.shape)}", why=why, fix=fix)
    if entry.dtype not in _SCALE_TYPES:
        known = f"the supported types of scales are {', '.join(_SCALE_TYPES)}"
        raise BuildError(f"{entry.file}: {name} has type {entry.dtype}", why=known, fix=fix)
    scales = as_numbers(entry.dtype, read_rows(name, entry, 0, 1)).astype(np.float32, copy=False)
    check_scales(name, entry, scales)
    return float(scales.reshape(-1)[0])


class Loss:
    """Relative error of requantizing: the norm of the differences divided by the norm of the values."""

    def __init__(self) -> None:
        self._moved = self._length = 0.0

    def add(self, before: Array, moved: Array) -> None:
        """Add rows and the change of each value."""
        self._moved += _squares(moved)
        self._length += _squares(before)

    def join(self, other: Loss) -> None:
        """Add the rows of another measure."""
        self._moved += other._moved
        self._length += other._length

    @property
    def relative(self) -> float:
        """The relative error; 0 if all values are zero or nothing changed."""
        return float(np.sqrt(self._moved / self._length)) if self._length else 0.0


def _squares(values: Array) -> float:
    """Sum of squares, in float32 within a row: float64 for whole tensors takes twice as long."""
    rows = values.reshape(-1, values.shape[-1]) if values.size else values.reshape(0, 1)
    total = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))
    return total if np.isfinite(total) else float(np.square(values, dtype=np.float64).sum())


def scaled_view(
    stored: Stored,
    problems: Problems,
    *,
    suffix: str,
    input_scale: str,
    others: tuple[str, ...],
    block: Callable[[Shape, Shape], Block | None],
    layout: str,
    stacks: bool = False,
) -> View:
    """Pair FP8 tensors with their scales, named by ``suffix``, and read everything else unscaled.

    ``input_scale`` is the name of an input's scale within a module; ``others`` are suffixes of further companions.
    ``block(weight, scale)`` returns how many rows and columns share a scale, or None if the shapes do not match;
    ``layout`` describes the expected layout in messages. With ``stacks``, stacked matrices are supported, parameters of
    a module that has several: ``x`` with ``x_weight_scale`` and ``x_input_scale``.
    """
    tensors: dict[str, ScaledFp8] = {}
    misfits: dict[str, list[str]] = defaultdict(list)
    for name, entry in stored.items():
        stacked = stacks and not name.endswith(_WEIGHT)
        scale_name = f"{name}_weight{suffix}" if stacked else f"{name}{suffix}"
        input_name = f"{name}_{input_scale}" if stacked else f"{name.removesuffix(_WEIGHT)}.{input_scale}"
        scale = stored.get(scale_name)
        if entry.dtype != _FP8:
            if scale and (stacked or name.endswith(_WEIGHT)):
                misfits["scales of weights that are not FP8"].append(f"{scale_name} ({entry.dtype})")
        elif scale is None:
            misfits["FP8 weights without a scale"].append(f"{name} (no {scale_name})")
        elif scale.dtype not in _SCALE_TYPES:
            misfits["scales of an unsupported type"].append(f"{scale_name} ({scale.dtype})")
        elif len(entry.shape) != 2 + stacked or not (size := block(entry.shape, scale.shape)):
            misfits["scales with a wrong shape"].append(
                f"{scale_name} {list(scale.shape)} for a weight {list(entry.shape)}"
            )
        else:
            tensors[name] = ScaledFp8(name, entry, scale_name, scale, size, input_name, stored.get(input_name))
    weights = {name: weight for name in stored if (weight := _weight_of(name, suffix, stacks))}
    scales = weights.keys() | {each.scale_name for each in tensors.values()}
    if lone := [name for name, weight in weights.items() if weight not in stored]:
        misfits["scales without a weight"] = lone
    for problem, names in misfits.items():
        problems.add(
            f"{problems.subject} has {len(names)} {problem}: {listed(sorted(names))}",
            why=layout,
            fix="download all files of the model again: weights, scales and config.json do not match",
        )
    inputs = (f".{input_scale}", *([f"_{input_scale}"] if stacks else []))
    used = scales | {name for name in stored if name.endswith((*inputs, *others))}
    plain = {n: entry for n, entry in stored.items() if n not in used and entry.dtype != _FP8}
    companions = {name: entry for name, entry in stored.items() if name in used}
    return View({**plain_tensors(plain, problems), **tensors}, companions)


def _weight_of(scale: str, suffix: str, stacks: bool) -> str:
    """Return the weight that a scale belongs to, by name; empty if none."""
    if scale.endswith(f"{_WEIGHT}{suffix}"):
        return scale.removesuffix(suffix)
    end = f"_weight{suffix}"
    return scale.removesuffix(end) if stacks and scale.endswith(end) else ""
