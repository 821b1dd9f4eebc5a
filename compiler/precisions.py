"""Precisions by name, and which of them each kind of graph can be written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graphs.trace import Dtype

DTYPES: dict[str, Dtype] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# The first is what a graph is written in unless told.
PRECISIONS: dict[str, tuple[str, ...]] = {
    "ort": ("fp32",),
    "std": ("fp32", "fp16", "bf16"),
    "tensorrt": ("bf16", "fp16", "fp8"),
}
