"""Lowerings: tables that turn semantic ops into the nodes that each backend runs best.

``std`` is standard ONNX everywhere (the reference), ``ort`` targets ONNX Runtime's CPU kernels, ``cpu`` adds this
project's own kernels for matrices (with function bodies for sessions without them), ``tensorrt`` uses what TensorRT's
parser supports (and ONNX Runtime still runs), ``tensorrt-sm100`` adds TensorRT's own layer for routed experts. To add a
backend, add a record and its table; no exporter changes.
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
    """Properties of a backend's graphs; the command line and manifests refer to it by ``name``.

    ``backend`` is the display name. ``wide_types`` are its unquantized compute types, the default first. The length of
    its caches is a multiple of ``cache_multiple``. ``has_kernels``: ONNX Runtime's kernels compute with integer codes.
    ``packs``: suitable matrices are packed for this project's kernels. ``has_expert_layer``: TensorRT's own layer for
    routed experts, whose inputs are not quantized. ``experts_share_scale``: all matrices of a stack of experts have one
    FP8 scale, instead of one each in that layer or one per row. Routed experts that a checkpoint stores in one of
    ``expert_blocks`` (types as GGUF names them) stay so, for the ops that read them.
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
    experts_share_scale: bool = False
    expert_blocks: tuple[str, ...] = ()
    join: Callable[[ir.Model], object] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def cache_types(self) -> tuple[str, ...]:
        """The available cache formats besides the compute type."""
        uses = {each.name: each.caches for each in NUMBER_FORMATS.values()}
        return tuple(name for name, use in uses.items() if use and self.name in use.lowerings)

    @property
    def integer_caches(self) -> str | None:
        """The default cache format of models with integer weights; None for the compute type."""
        uses = {each.name: each.caches for each in NUMBER_FORMATS.values()}
        return next((name for name, use in uses.items() if use and self.name in use.default_of), None)


def _std(model: ir.Model) -> None:
    from . import std

    std.apply(model)


def _ort(model: ir.Model) -> None:
    from . import ort, shared_passes, std

    shared_passes.share_experts(model)
    ort.apply(model)
    std.apply(model)  # for ops without a fused kernel in ONNX Runtime


def _cpu(model: ir.Model) -> None:
    from . import cpu, shared_passes

    shared_passes.share_experts(model)
    cpu.apply(model)


def _join(model: ir.Model) -> object:
    from .cpu import fused_regions

    return fused_regions.join(model)


def _tensorrt(model: ir.Model) -> None:
    from . import shared_passes, tensorrt

    shared_passes.share_experts(model, shared_passes.SPARSE)
    tensorrt.apply(model, expert_layer=False)


def _tensorrt_sm100(model: ir.Model) -> None:
    from . import shared_passes, tensorrt

    shared_passes.share_experts(model)
    tensorrt.apply(model, expert_layer=True)


_EXPERT_BLOCKS = ("MXFP4",)
# TensorRT pads caches of odd lengths, and requires every slot of a batch to be aligned.
_ALIGNED = 64

STD = Lowering("std", "standard ONNX", ("fp32", "fp16", "bf16"), _std)
ORT = Lowering("ort", "ONNX Runtime", ("fp32",), _ort, has_kernels=True)
CPU = Lowering("cpu", "ONNX Runtime", ("fp32",), _cpu, has_kernels=True, packs=True, join=_join)
TENSORRT = Lowering(
    "tensorrt",
    "TensorRT",
    ("bf16", "fp16"),
    _tensorrt,
    _ALIGNED,
    is_tensorrt=True,
    expert_blocks=_EXPERT_BLOCKS,
)
_TENSORRT_SM100 = Lowering(
    "tensorrt-sm100",
    "TensorRT",
    ("bf16", "fp16"),
    _tensorrt_sm100,
    _ALIGNED,
    is_tensorrt=True,
    has_expert_layer=True,
    expert_blocks=_EXPERT_BLOCKS,
)
LOWERINGS: Mapping[str, Lowering] = {lowering.name: lowering for lowering in (ORT, CPU, STD, TENSORRT, _TENSORRT_SM100)}


def lowering_named(name: str) -> Lowering:
    """Return a lowering by name. Raises ``UsageError`` listing the available ones."""
    if name not in LOWERINGS:
        raise UsageError(
            f"unknown lowering {name!r}",
            why=f"the valid names are {', '.join(LOWERINGS)}",
            fix="use one of these names",
        )
    return LOWERINGS[name]


def lower(model: ir.Model, lowering: Lowering, *, cache_length: int) -> Lowered:
    """Lower a semantic graph (changed in place) with caches of static length T = ``cache_length``."""
    from . import shared_passes

    shared_passes.fix_cache_length(model, cache_length)
    shared_passes.fill_rope_tables(model, cache_length)
    lowering.apply(model)
    return shared_passes.finish(model)
