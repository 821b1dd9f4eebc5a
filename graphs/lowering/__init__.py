"""Lowerings: tables that turn semantic ops into the nodes one backend runs best.

``std`` is standard ONNX everywhere (the oracle), ``ort`` what ONNX Runtime's CPU kernels are fastest at, ``tensorrt``
what TensorRT's parser takes (and ONNX Runtime still runs), ``tensorrt-sm100`` the same with TensorRT's own layer for
routed experts. Adding a backend is adding a table; no exporter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from .lowered import Lowered, Weight

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CACHE_MULTIPLE", "LOWERINGS", "Lowered", "Lowering", "Weight", "lower"]

Lowering = Literal["std", "ort", "tensorrt", "tensorrt-sm100"]


def _std(model: ir.Model) -> None:
    from . import std

    std.apply(model)


def _ort(model: ir.Model) -> None:
    from . import ort, std

    ort.apply(model)
    std.apply(model)  # what ONNX Runtime has no fused kernel for


def _tensorrt(model: ir.Model) -> None:
    from . import tensorrt

    tensorrt.apply(model, expert_layer=False)


def _tensorrt_sm100(model: ir.Model) -> None:
    from . import tensorrt

    tensorrt.apply(model, expert_layer=True)


LOWERINGS: Mapping[str, Callable[[ir.Model], None]] = {
    "std": _std,
    "ort": _ort,
    "tensorrt": _tensorrt,
    "tensorrt-sm100": _tensorrt_sm100,
}

# T is a multiple of this. TensorRT pads caches of odd lengths, and wants every slot of a batch at an aligned address.
CACHE_MULTIPLE: Mapping[str, int] = {"std": 1, "ort": 1, "tensorrt": 64, "tensorrt-sm100": 64}


def lower(model: ir.Model, lowering: Lowering, *, cache_length: int) -> Lowered:
    """Lower a semantic graph (changed in place) with caches of static length T = ``cache_length``."""
    from . import finish

    finish.fix_cache_length(model, cache_length)
    finish.fill_rope_tables(model, cache_length)
    LOWERINGS[lowering](model)
    return finish.finish(model)
