"""Tensors stored without scales: BF16, FP16 and FP32 weights, integers, booleans. Every format has some."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ....plugins.problems import Problems, counted, listed
from ..safetensors import TensorEntry, read_rows
from .base import Format, Settings, Stored, View
from .stored_numbers import Array, as_numbers

FLOATS = ("F32", "F16", "BF16")
_READABLE = (*FLOATS, "I64", "I32", "BOOL")


@dataclass(frozen=True)
class Plain:
    """A tensor without scales."""

    name: str
    entry: TensorEntry
    granule: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    def rows(self, begin: int, end: int) -> Array:
        return as_numbers(self.entry.dtype, read_rows(self.name, self.entry, begin, end))


def plain_tensors(stored: Stored, problems: Problems) -> dict[str, Plain]:
    """Return every tensor as stored. Types that need a format to be interpreted are reported as problems."""
    unreadable: dict[str, list[str]] = defaultdict(list)
    for name, entry in stored.items():
        if entry.dtype not in _READABLE:
            unreadable[entry.dtype].append(name)
    for dtype, names in unreadable.items():
        problems.add(
            f"{problems.subject} has {counted(names)} stored as {dtype}: {listed(names)}",
            why="config.json declares no quantization for them"
            if dtype == "F8_E4M3"
            else "weights can be BF16, FP16 or FP32, or FP8 or MXFP4 with their scales",
            fix="use a BF16, FP16 or FP32 checkpoint of the model, or the config.json that belongs to these weights",
        )
    return {name: Plain(name, entry) for name, entry in stored.items() if entry.dtype in _READABLE}


def _view(stored: Stored, _: Settings, problems: Problems) -> View:
    return View(dict(plain_tensors(stored, problems)), {})


PLAIN = Format("plain", lambda settings: not settings, _view)
