"""Lowerings: tables that turn semantic ops into the nodes one backend runs best.

``std`` is standard ONNX everywhere (the oracle), ``ort`` what ONNX Runtime's CPU kernels are fastest at, ``cpu`` the
same with our own kernels for matrices (and their bodies where those are not), ``tensorrt``
what TensorRT's parser takes (and ONNX Runtime still runs), ``tensorrt-sm100`` the same with TensorRT's own layer for
routed experts. Adding a backend is adding a record and its table; no exporter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...plugins.errors import UsageError
from ...plugins.number_formats import NUMBER_FORMATS
from .lowering_result import GraphWeight, Lowered

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "CPU",
    "LOWERINGS",
    "ORT",
    "STD",
    "TENSORRT",
    "GraphWeight",
    "Lowered",
    "Lowering",
    "lower",
    "lowering_named",
]


@dataclass(frozen=True)
class Lowering:
    """What a backend's graphs are like; the command line and manifests know it by its ``name``.

    ``backend`` is for people. ``wide_types`` are what it computes in where nothing is quantized, the first of them
    unless told. The length of its caches is a multiple of ``cache_multiple``. ``has_kernels``: ONNX Runtime's, which
    multiply with integer codes as they are. ``packs``: matrices are packed for kernels of ours, where they fit those.
    ``has_expert_layer``: TensorRT's own layer for routed experts, which is given no inputs that are rounded.
    """

    name: str
    backend: str
    wide_types: tuple[str, ...]
    apply: Callable[[ir.Model], None] = field(repr=False, compare=False)
    cache_multiple: int = 1
    is_tensorrt: bool = False
    has_kernels: bool = False
    packs: bool = False
    has_expert_layer: bool = False
    join: Callable[[ir.Model], object] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def cache_types(self) -> tuple[str, ...]:
        """The formats, beside the one that it computes in, in which keys and values can be kept."""
        uses = {each.name: each.caches for each in NUMBER_FORMATS.values()}
        return tuple(name for name, use in uses.items() if use and self.name in use.lowerings)


def _std(model: ir.Model) -> None:
    from . import std

    std.apply(model)


def _ort(model: ir.Model) -> None:
    from . import ort, shared_passes, std

    shared_passes.share_experts(model)
    ort.apply(model)
    std.apply(model)  # what ONNX Runtime has no fused kernel for


def _cpu(model: ir.Model) -> None:
    from . import cpu, shared_passes

    shared_passes.share_experts(model)
    cpu.apply(model)


def _join(model: ir.Model) -> object:
    from .cpu import stretches

    return stretches.join(model)


def _tensorrt(model: ir.Model) -> None:
    from . import tensorrt

    tensorrt.apply(model, expert_layer=False)


def _tensorrt_sm100(model: ir.Model) -> None:
    from . import shared_passes, tensorrt

    shared_passes.share_experts(model)
    tensorrt.apply(model, expert_layer=True)


# TensorRT pads caches of odd lengths, and wants every slot of a batch at an aligned address.
_ALIGNED = 64

STD = Lowering("std", "standard ONNX", ("fp32", "fp16", "bf16"), _std)
ORT = Lowering("ort", "ONNX Runtime", ("fp32",), _ort, has_kernels=True)
CPU = Lowering("cpu", "ONNX Runtime", ("fp32",), _cpu, has_kernels=True, packs=True, join=_join)
TENSORRT = Lowering("tensorrt", "TensorRT", ("bf16", "fp16"), _tensorrt, _ALIGNED, is_tensorrt=True)
_TENSORRT_SM100 = Lowering(
    "tensorrt-sm100",
    "TensorRT",
    ("bf16", "fp16"),
    _tensorrt_sm100,
    _ALIGNED,
    is_tensorrt=True,
    has_expert_layer=True,
)
LOWERINGS: Mapping[str, Lowering] = {lowering.name: lowering for lowering in (ORT, CPU, STD, TENSORRT, _TENSORRT_SM100)}


def lowering_named(name: str) -> Lowering:
    """The lowering of that name. Raises ``UsageError`` naming those that there are."""
    if name not in LOWERINGS:
        raise UsageError(f"the lowering {name!r} does not exist", why=f"it is one of {', '.join(LOWERINGS)}")
    return LOWERINGS[name]


def lower(model: ir.Model, lowering: Lowering, *, cache_length: int) -> Lowered:
    """Lower a semantic graph (changed in place) with caches of static length T = ``cache_length``."""
    from . import shared_passes

    shared_passes.fix_cache_length(model, cache_length)
    shared_passes.fill_rope_tables(model, cache_length)
    lowering.apply(model)
    return shared_passes.finish(model)
