"""Known GPUs: memory, supported number types, and the check that a TensorRT product builds plans for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...plugins.errors import EnvironmentProblem, UsageError, nearest
from ...plugins.number_formats import NUMBER_FORMATS
from ...plugins.tensorrt.products import TENSORRT_RTX, TensorRTProduct

_GB = 10**9

DATA_CENTRE_SMS = (80, 90, 100, 103)
# IMoELayer: TensorRT supports it only on these.
MOE_LAYER_SMS = (100, 103, 110)


@dataclass(frozen=True)
class Gpu:
    """A GPU. ``memory_bytes`` comes from ``source``, in GB of 10^9; it was not measured."""

    name: str
    sm: int
    memory_bytes: int
    source: str


_ARCHITECTURE = re.compile(r"(?:sm[-_]?)?(\d{2,3})")
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("b200", 100, 180 * _GB, "NVIDIA, DGX B200: 1,440 GB in 8 GPUs"),
        Gpu("b300", 103, 288 * _GB, "NVIDIA, B300 SXM6: 288 GB"),
        Gpu("gb200", 100, 186 * _GB, "NVIDIA, GB200 superchip: 372 GB in 2 GPUs"),
        Gpu("h200", 90, 141 * _GB, "NVIDIA, H200: 141 GB"),
        Gpu("h100", 90, 80 * _GB, "NVIDIA, H100: 80 GB"),
        Gpu("a100-80gb", 80, 80 * _GB, "NVIDIA, A100: 80 GB"),
        Gpu("l40s", 89, 48 * _GB, "NVIDIA, L40S: 48 GB"),
        Gpu("rtx-4090", 89, 24 * _GB, "NVIDIA, GeForce RTX 4090: 24 GB"),
        Gpu("rtx-5090", 120, 32 * _GB, "NVIDIA, GeForce RTX 5090: 32 GB"),
        Gpu("rtx-pro-6000", 120, 96 * _GB, "NVIDIA, RTX PRO 6000 Blackwell: 96 GB"),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by name, in any spelling. Raises ``UsageError`` with similar names."""
    if (gpu := GPUS.get(_key(name))) is not None:
        return gpu
    raise UsageError(
        f"unknown GPU {name!r}",
        why=_known(),
        fix=_near(name) + "use a known GPU, or omit the GPU and compare the memory figures with those of your GPU",
    )


def is_architecture(name: str) -> bool:
    """Return True for the name of an architecture (``sm_120``, ``sm120``, ``120``), rather than of a GPU."""
    return _ARCHITECTURE.fullmatch(name.strip().lower()) is not None


def sm_name(sm: int) -> str:
    """Return ``"sm_120"`` for 120."""
    return f"sm_{sm}"


def sm_number(name: str) -> int:
    """Return the number of an architecture (``sm_120``) or of a GPU's. Raises ``UsageError`` with similar names."""
    if match := _ARCHITECTURE.fullmatch(name.strip().lower().replace(" ", "-")):
        return int(match[1])
    if (gpu := GPUS.get(_key(name))) is not None:
        return gpu.sm
    raise UsageError(
        f"unknown GPU {name!r}",
        why=_known(),
        fix=_near(name) + "use a known GPU, or the architecture of the GPU, such as sm_120",
    )


def sm_names(names: Sequence[str]) -> tuple[str, ...]:
    """Normalize GPU names to ``("sm_89", "sm_120")``, without duplicates, in ascending order."""
    return tuple(sm_name(sm) for sm in sorted({sm_number(name) for name in names}))


def supports(gpu: str, kind: str) -> bool:
    """Return True if a GPU (``sm_120``) computes with weights in a number format."""
    return not why_unsupported(int(gpu.removeprefix("sm_")), kind)


def why_unsupported(sm: int, kind: str) -> str:
    """Explain why a GPU of ``sm`` (``120``) does not compute with weights in a format; empty if it does."""
    known = NUMBER_FORMATS.get(kind)
    if known is None or not known.is_quantized:
        return ""
    on = known.tensorrt
    if on is None:
        return f"TensorRT does not compute in {known.title}"
    if on.runs_on(sm):
        return ""
    if on.only:
        only = ", ".join(map(sm_name, on.only))
        return f"TensorRT does not compute in {known.title} on {sm_name(sm)}, only on {only}"
    return f"{sm_name(sm)} has no {known.title} arithmetic, which requires {sm_name(on.since)} or newer"


def export_form(sms: Sequence[int]) -> str:
    """Return the lowering, a value of ``export --for``, that the current TensorRT builds for these SM numbers."""
    return "tensorrt-sm100" if sms and set(sms) <= set(MOE_LAYER_SMS) else "tensorrt"


def require_targets(product: TensorRTProduct, gpus: Sequence[str], present: Sequence[int]) -> None:
    """Check that ``product`` can build for ``gpus`` on a machine with GPUs of ``present`` (SM numbers).

    Raises ``UsageError`` if no machine can, ``EnvironmentProblem`` if this one cannot.
    """
    sms = [sm_number(name) for name in gpus]
    if not sms:
        raise UsageError(
            "no GPU was specified",
            why="a TensorRT plan is built for specific GPUs",
            fix="specify one, for example --gpu sm_120",
        )
    if product.builds_ahead:
        _require_supported(product, sms)
    else:
        _require_present(sms, present)


def _require_supported(product: TensorRTProduct, sms: Sequence[int]) -> None:
    refused = [sm for sm in sms if not product.supports(sm)]
    if refused:
        alike = [sm for sm in product.sms if sm // 10 == refused[0] // 10] or [120]
        raise UsageError(
            f"{product.title} does not support {', '.join(map(sm_name, refused))}",
            why=f"{product.title} supports {', '.join(map(sm_name, product.sms))}; data center GPUs need full TensorRT",
            fix=f"use --backend tensorrt on a host with {_whose(refused[0])}, "
            f"or build for another GPU, for example --gpu {sm_name(alike[-1])}",
        )


def _require_present(sms: Sequence[int], present: Sequence[int]) -> None:
    if len(set(sms)) > 1:
        raise UsageError(
            f"TensorRT builds for one GPU architecture at a time, not {len(set(sms))}",
            why="TensorRT chooses kernels by timing them on the local GPU",
            fix="build once for each architecture, on a host with a GPU of that architecture",
        )
    (sm,) = set(sms)
    if sm not in present:
        rtx = TENSORRT_RTX.supports(sm)
        raise EnvironmentProblem(
            f"TensorRT cannot build for {sm_name(sm)} on this machine",
            why=f"TensorRT builds only for the local GPU, and {_gpus_of_machine(present)}",
            fix=f"run the same command on a host with {_whose(sm)}"
            + (f", or build ahead of time with --backend tensorrt-rtx --gpu {sm_name(sm)}" if rtx else ""),
        )


def _whose(sm: int) -> str:
    names = [gpu.name for gpu in GPUS.values() if gpu.sm == sm]
    return f"{sm_name(sm)} ({', '.join(names)})" if names else f"a GPU of {sm_name(sm)}"


def _gpus_of_machine(present: Sequence[int]) -> str:
    return f"this machine has {', '.join(sm_name(sm) for sm in present)}" if present else "this machine has none"


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _near(name: str) -> str:
    """Return the beginning of advice that asks about similar known names; empty if there are none."""
    names = nearest(_key(name), GPUS, cutoff=0.5)
    return f"did you mean {' or '.join(names)}? If not, " if names else ""


def _known() -> str:
    return f"the known GPUs are {', '.join(GPUS)}"
