"""The choice of a backend for a build, from the request and this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ...graphs.lowering import CPU, TENSORRT
from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ...plugins.number_formats import FP16, NUMBER_FORMATS, kernels_of
from ...plugins.optional_packages import install_to_build
from ...plugins.tensorrt.import_tensorrt import EXTRA_OF, Product
from ..hardware.gpus import (
    DATA_CENTRE_SMS,
    RTX_SMS,
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
    product: Product = "tensorrt" if requested == "tensorrt" else "tensorrt-rtx"
    _require_wide(product, precision)
    if product == "tensorrt":
        return _tensorrt(product, precision, gpu_names, machine, model)
    return _rtx(precision, gpu_names, machine)


def _choose(precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str) -> BackendChoice:
    ready = machine.has("tensorrt") and any(sm in DATA_CENTRE_SMS for sm in machine.sms)
    if precision in _cpu_alone():
        return _onnxruntime(precision, gpu_names, unsupported_reason(precision, tensorrt=True))
    if machine.gpu_problem and not gpu_names:
        raise EnvironmentProblem(
            "no --backend was given, and the choice depends on the GPUs of this machine",
            why=machine.gpu_problem,
            fix="run `nvidia-smi` to see what is wrong, or use --backend onnxruntime to build for the CPU",
        )
    if not gpu_names and not ready and (precision is None or kernels_of(precision)):
        if supported := [gpu for gpu in machine.gpus if gpu.sm in (*DATA_CENTRE_SMS, *RTX_SMS)]:
            raise _undecided(supported[0], machine)
        return BackendChoice("onnxruntime", (), "this machine has no GPU that TensorRT builds for")
    if not gpu_names and not machine.gpus and is_emulated_format(precision):
        return BackendChoice("onnxruntime", (), "this machine has no GPU")
    if ready and (not gpu_names or set(gpu_names) <= {sm_name(sm) for sm in machine.sms}):
        return _tensorrt("tensorrt", precision, gpu_names, machine, model)
    if gpu_names and machine.has("tensorrt-rtx") and all(sm_number(gpu) in RTX_SMS for gpu in gpu_names):
        return BackendChoice("tensorrt-rtx", gpu_names, "TensorRT-RTX builds ahead of time for the requested GPU")
    raise _cannot("tensorrt", precision, gpu_names, machine, model)


def _undecided(gpu: LocalGpu, machine: Machine) -> UsageError:
    """Return the error for a machine whose GPU a build would leave idle unless the user names a backend."""
    product: Product = "tensorrt" if gpu.sm in DATA_CENTRE_SMS else "tensorrt-rtx"
    ways = [] if machine.has(product) else [f"run `{install_to_build(EXTRA_OF[product])}`"]
    ways += [f"use --backend {product}"] if product == "tensorrt-rtx" else []
    why = f"{product} is not installed, so the engine would run on the CPU and leave the GPU idle"
    return UsageError(
        f"this machine has a GPU ({gpu.name}, {sm_name(gpu.sm)}), and no --backend was given",
        why=f"{product} is used only on request" if machine.has(product) else why,
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
    rtx = all(sm_number(gpu) in RTX_SMS for gpu in gpu_names)
    backend, host_hint = ("--backend tensorrt-rtx", "") if rtx else ("--backend tensorrt", " on a host with this GPU")
    if precision is None:
        return backend + host_hint
    kind = NUMBER_FORMATS.get(precision)
    available_precisions = [
        each for each in (precision, *(kind.instead if kind else ())) if each in available(TENSORRT)
    ]
    has = [each for each in available_precisions if all(supports(gpu, each) for gpu in gpu_names)]
    return f"{backend} --precision {has[0] if has else FP16.name}{host_hint}"


def _require_wide(product: Product, precision: str | None) -> None:
    if precision in _cpu_alone():
        raise UsageError(
            f"the precision {precision!r} is not available with {product}",
            why=unsupported_reason(precision, tensorrt=True),
            fix="use --precision fp16 or bf16, or --backend onnxruntime",
        )


def _tensorrt(
    product: Product, precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str
) -> BackendChoice:
    if not machine.has(product) or not machine.gpus:
        raise _cannot(product, precision, gpu_names, machine, model)
    candidates = [gpu for gpu in machine.gpus if gpu.sm in DATA_CENTRE_SMS] or machine.gpus
    gpus = gpu_names or (sm_name(candidates[0].sm),)
    require_targets(product, gpus, machine.sms)
    name = next(gpu.name for gpu in machine.gpus if sm_name(gpu.sm) in gpus)
    return BackendChoice("tensorrt", gpus, f"this machine has {name} and TensorRT")


def _rtx(precision: str | None, gpu_names: tuple[str, ...], machine: Machine) -> BackendChoice:
    if not machine.has("tensorrt-rtx"):
        raise EnvironmentProblem(
            "TensorRT-RTX is not installed",
            why="the build needs TensorRT-RTX, but no GPU",
            fix=f"run `{install_to_build(EXTRA_OF['tensorrt-rtx'])}`, or {_on_cpu(precision, gpu_names)}",
        )
    gpus = gpu_names or tuple(sm_name(sm) for sm in sorted(set(machine.sms)) if sm in RTX_SMS)
    if not gpus:
        local = f"does not support this machine's GPUs ({', '.join(map(sm_name, machine.sms))})"
        raise UsageError(
            "no GPU was specified",
            why=f"TensorRT-RTX {local}, only {', '.join(map(sm_name, RTX_SMS))}"
            if machine.gpus
            else f"this machine has no GPU; TensorRT-RTX supports {', '.join(map(sm_name, RTX_SMS))}",
            fix="specify one, for example --gpu sm_120",
        )
    require_targets("tensorrt-rtx", gpus, machine.sms)
    return BackendChoice("tensorrt-rtx", gpus, "requested")


def _cannot(
    product: Product, precision: str | None, gpu_names: tuple[str, ...], machine: Machine, model: str
) -> PeagleError:
    """Return the error that lists what a build with TensorRT lacks here, and the alternatives."""
    missing = []
    if not machine.gpus:
        missing.append(machine.why_no_gpu)
    elif gpu_names and not set(gpu_names) <= {sm_name(sm) for sm in machine.sms}:
        missing.append(f"the GPU is {machine.gpus[0].name} ({sm_name(machine.sms[0])}), not {', '.join(gpu_names)}")
    elif not any(sm in DATA_CENTRE_SMS for sm in machine.sms):
        missing.append(f"{machine.gpus[0].name} ({sm_name(machine.sms[0])}) is not a data center GPU")
    if not machine.has(product):
        missing.append(f"TensorRT is not installed ({install_to_build(EXTRA_OF[product])})")
    for_gpu = gpu_names or tuple(sm_name(sm) for sm in machine.sms if sm in DATA_CENTRE_SMS) or ("b200",)
    kind = f" --precision {precision}" if precision else ""
    rtx = [gpu for gpu in gpu_names if sm_number(gpu) in RTX_SMS and supports(gpu, precision or "")] or ["sm_120"]
    first = "" if machine.has("tensorrt-rtx") else f" (after {install_to_build(EXTRA_OF['tensorrt-rtx'])})"
    instead = _instead_on_rtx(precision)
    return EnvironmentProblem(
        f"this machine cannot build {precision + ' ' if precision else ''}engines for TensorRT"
        + (f" on {', '.join(gpu_names)}" if gpu_names else ""),
        why="; ".join(missing),
        fix="run the same command on a host that meets these requirements; or run "
        f"`peagle-compile export --model {shlex.quote(model)}{kind} --for tensorrt --gpu {','.join(for_gpu)} "
        "--out DIR` here, with the other options of this build, and then `peagle-compile build --from DIR` on "
        "that host, which needs neither the checkpoints nor torch; or use "
        f"--backend tensorrt-rtx --gpu {','.join(rtx)}{instead} to build ahead of time for RTX GPUs{first}; or "
        + _on_cpu(precision, gpu_names),
    )


def _cpu_alone() -> set[str]:
    """Return the formats that TensorRT does not support."""
    return {*NUMBER_FORMATS} - {*available(TENSORRT)}


def _instead_on_rtx(precision: str | None) -> str:
    """Return the flag with the nearest format that TensorRT-RTX supports, if it does not support ``precision``."""

    def has(kind: str) -> bool:
        return any(supports(sm_name(sm), kind) for sm in RTX_SMS)

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
