"""Precisions that each backend supports or emulates, by GPU, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.tensorrt.products import PRODUCTS
from ..hardware.gpus import sm_name, why_unsupported
from ..hardware.machine import Machine
from ..precision.allowed_recipes import available, unsupported_reason
from ..precision.recipes import RECIPES, is_emulated_format
from ..request.build_platform import lowering_on_cpu
from ..request.request import ONNXRUNTIME


@dataclass(frozen=True)
class PrecisionSupport:
    """Support of a backend for a precision. ``gpus`` (``sm_120``) are for TensorRT; an empty ``cannot`` means yes."""

    precision: str
    gpus: tuple[str, ...]
    emulated: bool
    cannot: str


def support(backend: str, machine: Machine) -> tuple[PrecisionSupport, ...]:
    """Return the support of a backend, one entry for each recipe.

    ONNX Runtime's is on this CPU, and a TensorRT product's on all GPUs for which it builds here.
    """
    if backend == ONNXRUNTIME:
        lowering, _ = lowering_on_cpu(None, None)
        return tuple(_on_cpu(name, lowering) for name in RECIPES)
    sms = PRODUCTS[backend].sms or tuple(sorted(set(machine.sms)))
    return tuple(_on_gpus(name, sms, machine.why_no_gpu) for name in RECIPES)


def _on_cpu(precision: str, lowering: Lowering) -> PrecisionSupport:
    cannot = "" if precision in available(lowering) else unsupported_reason(precision, tensorrt=False)
    return PrecisionSupport(precision, (), is_emulated_format(precision) and not cannot, cannot)


def _on_gpus(precision: str, sms: Sequence[int], why_none: str) -> PrecisionSupport:
    if precision not in available(TENSORRT):
        return PrecisionSupport(precision, (), False, unsupported_reason(precision, tensorrt=True))
    supported = tuple(sm_name(sm) for sm in sms if not why_unsupported(sm, precision))
    cannot = "" if supported else why_unsupported(sms[-1], precision) if sms else why_none
    return PrecisionSupport(precision, supported, False, cannot)
