"""The choice of a backend for a build, from the request and this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ...graphs.lowering import CPU, TENSORRT
from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ...plugins.number_formats import FP16, NUMBER_FORMATS, kernels_of
from ...plugins.optional_packages import install_to_build
from ...plugins.tensorrt.products import FULL_TENSORRT, PRODUCTS, TENSORRT_RTX, TensorRTProduct
from ..hardware.gpus import (
    DATA_CENTRE_SMS,
    require_targets,
    sm_name,
    sm_names,
    sm_number,
    supports,
)
from ..hardware.machine import LocalGpu, Machine
from ..precision.allowed_recipes import available, unsupported_reason
from ..precision.recipes import is_emulated_format
from .request import BackendOptions


@dataclass(frozen=True)
class BackendChoice:
    """The backend, the GPUs that plans are built for (``sm_100``; none for ONNX Runtime), and the reason."""

    backend: str
    gpus: tuple[str, ...]
    why: str


def choose_backend(
    requested: str | None, precision: str | None, gpus: Sequence[str], machine: Machine, model: str = "MODEL"
) -> BackendChoice:
    """Choose the backend for a build of ``precision`` (None: the backend's default) for ``gpus`` (none: local ones).

    ``model`` is the name used in errors. Without a request, the backend is TensorRT on a machine with a data center GPU
    and TensorRT, and ONNX Runtime on a machine without a GPU that TensorRT supports. On any other machine the user has
    to choose. Raises ``UsageError`` in that case and for what no machine can build, and ``EnvironmentProblem``, with
    alternatives, for what this machine lacks, or if its GPUs are unknown.
    """
    BackendOptions(requested).check_known()
    gpu_names = sm_names(gpus)
    if requested is None:
        return _choose(precision, gpu_names, machine, model)
    if requested == "onnxruntime":
        return _onnxruntime(precision, gpu_names, "requested")
    product = PRODUCTS[requested]
    _require_wide(product, precision)
    if product.builds_ahead:
        return _ahead(product, precision, gpu_names, machine)
    return _on_its_gpu(product, precision, gpu_names, machine, model)


def product_for(gpus: Sequence[str], machine: Machine) -> TensorRTProduct:
    """Return the product for these GPUs, or those of ``machine``.

    This is TensorRT-RTX if it supports them all and TensorRT cannot build for them on ``machine``.
    """
    sms = {sm_number(gpu) for gpu in gpus} or {*machine.sms}
    full = machine.has(FULL_TENSORRT.name) and sms <= {*machine.sms}
    return TENSORRT_RTX if sms and all(map(TENSORRT_RTX.supports, sms)) and not full else FULL_TENSORRT


def _choose(precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str) -> BackendChoice:
    ready = machine.has(FULL_TENSORRT.name) and any(sm in DATA_CENTRE_SMS for sm in machine.sms)
    if precision in _cpu_alone():
        return _onnxruntime(precision, gpu_names, unsupported_reason(precision, tensorrt=True))
    if machine.gpu_problem and not gpu_names:
        raise EnvironmentProblem(
            "no --backend was given, and the choice depends on the GPUs of this machine",
            why=machine.gpu_problem,
            fix="run `nvidia-smi` to see what is wrong, or use --backend onnxruntime to build for the CPU",
        )
    if not gpu_names and not ready and (precision is None or kernels_of(precision)):
        if supported := [gpu for gpu in machine.gpus if gpu.sm in (*DATA_CENTRE_SMS, *TENSORRT_RTX.sms)]:
            raise _undecided(supported[0], machine)
        return BackendChoice("onnxruntime", (), "this machine has no GPU that TensorRT builds for")
    if not gpu_names and not machine.gpus and is_emulated_format(precision):
        return BackendChoice("onnxruntime", (), "this machine has no GPU")
    if ready and (not gpu_names or set(gpu_names) <= {sm_name(sm) for sm in machine.sms}):
        return _on_its_gpu(FULL_TENSORRT, precision, gpu_names, machine, model)
    rtx = TENSORRT_RTX
    if gpu_names and machine.has(rtx.name) and all(rtx.supports(sm_number(gpu)) for gpu in gpu_names):
        return BackendChoice(rtx.name, gpu_names, f"{rtx.title} builds ahead of time for the requested GPU")
    raise _cannot(FULL_TENSORRT, precision, gpu_names, machine, model)


def _undecided(gpu: LocalGpu, machine: Machine) -> UsageError:
    """Return the error for a machine whose GPU a build would leave idle unless the user names a backend."""
    is_default = gpu.sm in DATA_CENTRE_SMS  # if TensorRT is installed
    product = FULL_TENSORRT if is_default else TENSORRT_RTX
    ways = [] if machine.has(product.name) else [f"run `{install_to_build(product.extra)}`"]
    ways += [] if is_default else [f"use --backend {product.name}"]
    why = f"{product.name} is not installed, so the engine would run on the CPU and leave the GPU idle"
    return UsageError(
        f"this machine has a GPU ({gpu.name}, {sm_name(gpu.sm)}), and no --backend was given",
        why=f"{product.name} is used only on request" if machine.has(product.name) else why,
        fix=f"for the GPU, {' and '.join(ways)}; for the CPU, use --backend onnxruntime",
    )


def _onnxruntime(precision: str | None, gpu_names: tuple[str, ...], why: str) -> BackendChoice:
    if precision not in (None, *available(CPU)):
        raise UsageError(
            f"the precision {precision!r} is not available with ONNX Runtime",
            why="ONNX Runtime computes in fp32 on a CPU",
            fix="omit --precision, or build for a GPU, for example with --backend tensorrt-rtx --gpu sm_120",
        )
    if gpu_names:
        raise UsageError(
            f"--gpu {','.join(gpu_names)} does not work with ONNX Runtime" + (f" in {precision}" if precision else ""),
            why="engines for ONNX Runtime run on a CPU"
            + (f", and {unsupported_reason(precision, tensorrt=True)}" if precision in _cpu_alone() else ""),
            fix=f"omit --gpu, or build with {_for_gpus(precision, gpu_names)}",
        )
    return BackendChoice("onnxruntime", (), why)


def _for_gpus(precision: str | None, gpu_names: tuple[str, ...]) -> str:
    """Return the flags that build for these GPUs, in the requested precision or the nearest one."""
    product = product_for(gpu_names, Machine())
    backend, host_hint = f"--backend {product.name}", "" if product.builds_ahead else " on a host with this GPU"
    if precision is None:
        return backend + host_hint
    kind = NUMBER_FORMATS.get(precision)
    available_precisions = [
        each for each in (precision, *(kind.instead if kind else ())) if each in available(TENSORRT)
    ]
    has = [each for each in available_precisions if all(supports(gpu, each) for gpu in gpu_names)]
    return f"{backend} --precision {has[0] if has else FP16.name}{host_hint}"


def _require_wide(product: TensorRTProduct, precision: str | None) -> None:
    if precision in _cpu_alone():
        raise UsageError(
            f"the precision {precision!r} is not available with {product.name}",
            why=unsupported_reason(precision, tensorrt=True),
            fix="use --precision fp16 or bf16, or --backend onnxruntime",
        )


def _on_its_gpu(
    product: TensorRTProduct, precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str
) -> BackendChoice:
    if not machine.has(product.name) or not machine.gpus:
        raise _cannot(product, precision, gpu_names, machine, model)
    candidates = [gpu for gpu in machine.gpus if gpu.sm in DATA_CENTRE_SMS] or machine.gpus
    gpus = gpu_names or (sm_name(candidates[0].sm),)
    require_targets(product, gpus, machine.sms)
    name = next(gpu.name for gpu in machine.gpus if sm_name(gpu.sm) in gpus)
    return BackendChoice(product.name, gpus, f"this machine has {name} and {product.title}")


def _ahead(
    product: TensorRTProduct, precision: str | None, gpu_names: tuple[str, ...], machine: Machine
) -> BackendChoice:
    if not machine.has(product.name):
        raise EnvironmentProblem(
            f"{product.title} is not installed",
            why=f"the build needs {product.title}, but no GPU",
            fix=f"run `{install_to_build(product.extra)}`, or {_on_cpu(precision, gpu_names)}",
        )
    gpus = gpu_names or tuple(sm_name(sm) for sm in sorted(set(machine.sms)) if product.supports(sm))
    if not gpus:
        supported = ", ".join(map(sm_name, product.sms))
        local = f"does not support this machine's GPUs ({', '.join(map(sm_name, machine.sms))})"
        raise UsageError(
            "no GPU was specified",
            why=f"{product.title} {local}, only {supported}"
            if machine.gpus
            else f"{machine.why_no_gpu}; {product.title} supports {supported}",
            fix="specify one, for example --gpu sm_120",
        )
    require_targets(product, gpus, machine.sms)
    return BackendChoice(product.name, gpus, "requested")


def _cannot(
    product: TensorRTProduct, precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str
) -> PeagleError:
    """Return the error that lists what a build with TensorRT lacks here, and the alternatives."""
    missing = []
    if not machine.gpus:
        missing.append(machine.why_no_gpu)
    elif gpu_names and not set(gpu_names) <= {sm_name(sm) for sm in machine.sms}:
        missing.append(f"the GPU is {machine.gpus[0].name} ({sm_name(machine.sms[0])}), not {', '.join(gpu_names)}")
    elif not any(sm in DATA_CENTRE_SMS for sm in machine.sms):
        missing.append(f"{machine.gpus[0].name} ({sm_name(machine.sms[0])}) is not a data center GPU")
    if not machine.has(product.name):
        missing.append(f"{product.title} is not installed ({install_to_build(product.extra)})")
    for_gpu = gpu_names or tuple(sm_name(sm) for sm in machine.sms if sm in DATA_CENTRE_SMS) or ("b200",)
    kind = f" --precision {precision}" if precision else ""
    computing = [gpu for gpu in gpu_names if supports(gpu, precision or "")]
    rtx = [gpu for gpu in computing if TENSORRT_RTX.supports(sm_number(gpu))] or ["sm_120"]
    first = "" if machine.has(TENSORRT_RTX.name) else f" (after {install_to_build(TENSORRT_RTX.extra)})"
    instead = _instead_on_rtx(precision)
    return EnvironmentProblem(
        f"this machine cannot build {precision + ' ' if precision else ''}engines for TensorRT"
        + (f" on {', '.join(gpu_names)}" if gpu_names else ""),
        why="; ".join(missing),
        fix="run the same command on a host that meets these requirements; or run "
        f"`peagle-compile export --model {shlex.quote(model)}{kind} --for tensorrt --gpu {','.join(for_gpu)} "
        "--out DIR` here, with the other options of this build, and then `peagle-compile build --from DIR` on "
        "that host, which needs neither the checkpoints nor torch; or use "
        f"--backend {TENSORRT_RTX.name} --gpu {','.join(rtx)}{instead} to build ahead of time for RTX GPUs{first}; or "
        + _on_cpu(precision, gpu_names),
    )


def _cpu_alone() -> set[str]:
    """Return the formats that TensorRT does not support."""
    return {*NUMBER_FORMATS} - {*available(TENSORRT)}


def _instead_on_rtx(precision: str | None) -> str:
    """Return the flag with the nearest format that TensorRT-RTX supports, if it does not support ``precision``."""

    def has(kind: str) -> bool:
        return any(supports(sm_name(sm), kind) for sm in TENSORRT_RTX.sms)

    kind = NUMBER_FORMATS.get(precision or "")
    others = kind.instead if kind and not has(kind.name) else ()
    return next((f" --precision {each}" for each in others if has(each)), "")


def _on_cpu(precision: str | None, gpu_names: tuple[str, ...]) -> str:
    """Return the advice to use ONNX Runtime instead."""
    without = " without --gpu" if gpu_names else ""
    if is_emulated_format(precision):
        return f"use --backend onnxruntime{without}, which emulates {precision}, to measure its accuracy"
    if precision and kernels_of(precision):
        return f"use --backend onnxruntime{without} to build in {precision} for this CPU"
    precision_flag = " --precision fp32" if precision else ""
    return f"use --backend onnxruntime{precision_flag}{without} to build in fp32 for this CPU"
