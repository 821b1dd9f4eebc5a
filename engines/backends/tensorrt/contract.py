"""Dimensions and types of the graph contract's tensors (docs/architecture.md), for giving them memory and shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...folder.manifest import Manifest
from ...folder.records import Part

WINDOW = ("input_ids", "start", "window_len", "draft_len")
NEXT = tuple(f"next_{name}" for name in WINDOW)

ITEMSIZE = {
    "i64": 8, "i32": 4, "f32": 4, "bool": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float8e4m3fn": 1,
}  # fmt: skip

_TENSORS = {
    "input_ids": ("i64", "B S"), "start": ("i64", "B"), "window_len": ("i32", "B"), "draft_len": ("i32", "B"),
    "forced_next": ("i64", "B"), "uniform": ("f32", "B E"), "temperature": ("f32", "B"), "top_k": ("i32", "B"),
    "top_p": ("f32", "B"), "min_p": ("f32", "B"), "tolerance": ("f32", "B"), "tokens": ("i32", "B E"),
    "num_tokens": ("i32", "B"), "aux_hidden": ("w", "B S F"), "logits": ("w", "B E V"), "draft_ids": ("i32", "B K"),
    "next_input_ids": ("i64", "B E"), "next_start": ("i64", "B"), "next_window_len": ("i32", "B"),
    "next_draft_len": ("i32", "B"), "draft_logits": ("w", "B K Vd"),
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """B rows, S columns of the window, E emitted columns; K is E - 1."""

    rows: int
    columns: int
    emitted: int


class Contract:
    """Shapes and bytes of every tensor but the caches, by name; ``wide`` is the type of features and logits, and
    of caches that have no other."""

    def __init__(self, manifest: Manifest) -> None:
        shapes, plan = manifest.shapes, manifest.target.plan
        self.wide = next((t.dtype for t in plan.tensors if t.name == "aux_hidden"), "float16") if plan else "float16"
        self._fixed = {
            "F": len(shapes.taps) * shapes.hidden_size,
            "V": shapes.vocab_size,
            "Vd": shapes.draft_vocab_size,
        }

    def shape(self, name: str, sizes: Sizes) -> tuple[int, ...]:
        """Its shape at these sizes."""
        dims = self._fixed | {"B": sizes.rows, "S": sizes.columns, "E": sizes.emitted, "K": sizes.emitted - 1}
        return tuple(dims[dim] for dim in _TENSORS[name][1].split())

    def bytes(self, name: str, sizes: Sizes) -> int:
        """What it takes at these sizes."""
        dtype = _TENSORS[name][0]
        return math.prod(self.shape(name, sizes)) * ITEMSIZE[self.wide if dtype == "w" else dtype]

    def row_bytes(self, name: str, sizes: Sizes) -> int:
        """What one row of it takes."""
        return self.bytes(name, sizes) // sizes.rows

    def shapes(self, names: Iterable[str], sizes: Sizes) -> Mapping[str, tuple[int, ...]]:
        """Shapes of those of ``names`` that are no caches."""
        return {name: self.shape(name, sizes) for name in names if name in _TENSORS}


def cache_shapes(part: Part, rows: int, length: int) -> dict[str, tuple[int, ...]]:
    """``k_cache.0`` and so on: ``[rows, heads, T, head_dim]``."""
    return {
        f"{kind}_cache.{layer}": (rows, cache.heads, length, cache.head_dim)
        for kind in "kv"
        for layer, cache in enumerate(part.caches)
    }


def cache_itemsizes(part: Part, wide: str) -> dict[str, int]:
    """Bytes of a number in each of them; ``wide`` is the type of those that have none of their own."""
    return {
        f"{kind}_cache.{layer}": ITEMSIZE[cache.dtype or wide]
        for kind in "kv"
        for layer, cache in enumerate(part.caches)
    }
