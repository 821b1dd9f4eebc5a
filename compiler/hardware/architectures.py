"""The GPUs a plan can be made for, and which of the two TensorRT products makes it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.tensorrt.module import Product
from .gpus import GPUS

__all__ = [
    "DATA_CENTRE_SMS",
    "MOE_LAYER_SMS",
    "PRODUCTS",
    "RTX_SMS",
    "Product",
    "require_targets",
    "sm_name",
    "sm_names",
    "sm_number",
]

PRODUCTS: tuple[Product, ...] = ("tensorrt", "tensorrt-rtx")

# TensorRT-RTX 1.7: its ComputeCapability values, without 75, which our kernels do not run on. It compiles ahead of
# time, so none of these GPUs need be present.
RTX_SMS = (80, 86, 89, 120, 121)
DATA_CENTRE_SMS = (80, 90, 100, 103)
# IMoELayer: TensorRT generates its code for these only.
MOE_LAYER_SMS = (100, 103, 110)


def sm_name(sm: int) -> str:
    """``120`` -> ``"sm_120"``."""
    return f"sm_{sm}"


def sm_number(name: str) -> int:
    """The number of ``sm_120`` (also ``sm120`` and ``120``) or of a GPU named in ``plans.gpus``.

    Raises ``UsageError`` that names what comes near.
    """
    key = name.strip().lower().replace(" ", "-")
    if match := re.fullmatch(r"(?:sm[-_]?)?(\d{2,3})", key):
        return int(match[1])
    key = key.replace("_", "-")
    if key in GPUS:
        return GPUS[key].sm
    near = difflib.get_close_matches(key, GPUS, 3, cutoff=0.5)
    raise UsageError(
        f"the GPU {name!r} is not known",
        why=f"did you mean {' or '.join(near)}?" if near else f"the known ones are: {', '.join(GPUS)}",
        fix="name one of those, or the architecture of the GPU, such as sm_120",
    )


def sm_names(names: Sequence[str]) -> tuple[str, ...]:
    """GPUs however they were named, as ``("sm_89", "sm_120")``: each once, in ascending order."""
    return tuple(sm_name(sm) for sm in sorted({sm_number(name) for name in names}))


def require_targets(product: Product, gpus: Sequence[str], present: Sequence[int]) -> None:
    """Refuse GPUs that ``product`` cannot build for on a machine that holds those of ``present`` (SM numbers).

    Raises ``UsageError`` for what no machine can do, ``EnvironmentProblem`` for what this one cannot.
    """
    wanted = [sm_number(name) for name in gpus]
    if not wanted:
        raise UsageError("no GPU to build for was named", fix="name one, for example --gpu sm_120")
    if product == "tensorrt-rtx":
        _require_rtx(wanted)
    else:
        _require_present(wanted, present)


def _require_rtx(wanted: Sequence[int]) -> None:
    refused = [sm for sm in wanted if sm not in RTX_SMS]
    if refused:
        nearest = [sm for sm in RTX_SMS if sm // 10 == refused[0] // 10] or [120]
        raise UsageError(
            f"TensorRT-RTX makes no code for {', '.join(map(sm_name, refused))}",
            why=f"its targets are {', '.join(map(sm_name, RTX_SMS))}; data-centre GPUs belong to the full TensorRT",
            fix=f"use --backend tensorrt on a host that has {_whose(refused[0])}, "
            f"or build for another GPU, for example --gpu {sm_name(nearest[-1])}",
        )


def _require_present(wanted: Sequence[int], present: Sequence[int]) -> None:
    if len(set(wanted)) > 1:
        raise UsageError(
            f"TensorRT builds for one kind of GPU at a time, not {len(set(wanted))}",
            why="it chooses kernels by timing them on the GPU of the machine",
            fix="build once on a host of each kind",
        )
    (sm,) = set(wanted)
    if sm not in present:
        rtx = sm in RTX_SMS
        raise EnvironmentProblem(
            f"TensorRT cannot build for {sm_name(sm)} on this machine",
            why=f"it builds for the GPU that is present, and {_here(present)}",
            fix=f"build on a host that has {_whose(sm)}"
            + (f", or ahead of time with --backend tensorrt-rtx --gpu {sm_name(sm)}" if rtx else "")
            + ", or prepare the graphs here with `peagle-compile export --for tensorrt`",
        )


def _whose(sm: int) -> str:
    names = [gpu.name for gpu in GPUS.values() if gpu.sm == sm]
    return f"{sm_name(sm)} ({', '.join(names)})" if names else f"a GPU of {sm_name(sm)}"


def _here(present: Sequence[int]) -> str:
    return f"this machine has {', '.join(sm_name(sm) for sm in present)}" if present else "this machine has none"
