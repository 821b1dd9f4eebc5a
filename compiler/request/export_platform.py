"""The platform of a build from an export, checked against the form of the exported graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...graphs.lowering import TENSORRT, lowering_named
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import install, install_to_build
from ...plugins.tensorrt.import_tensorrt import EXTRA_OF
from ..hardware.gpus import RTX_SMS, export_form, lacks, require_targets, sm_name, sm_names, sm_number
from ..hardware.machine import Machine, look
from .build_platform import BuildPlatform, lowering_of, version_of
from .choose_backend import choose_backend
from .request import ONNXRUNTIME, BackendOptions


def platform_of_export(
    asked: BackendOptions, form: str, gpus: Sequence[str], types: Collection[str], where: str
) -> BuildPlatform:
    """Return the platform of a build from an export of this ``form`` (``tensorrt-sm100``), made for ``gpus`` if any.

    ``types`` are the types in its graphs, ``where`` is its folder. Raises ``UsageError`` for GPUs that the export does
    not support, and ``EnvironmentProblem``, with alternatives, for what this machine cannot do.
    """
    machine = look()
    _check(asked)
    named = sm_names(asked.gpus or gpus)
    backend = asked.name or _suits(named, machine)
    named = named or _here(backend, machine)
    try:
        choice = choose_backend(backend, None, named, machine)
    except EnvironmentProblem as error:
        extra = EXTRA_OF["tensorrt-rtx" if backend == "tensorrt-rtx" else "tensorrt"]
        whose = f"a host with {', '.join(named)}" if named else "the host with the GPU"
        fix = f"copy {where} to {whose} and TensorRT, and run `peagle-compile build --from` there"
        if backend == "tensorrt-rtx" and not machine.has("tensorrt-rtx"):
            fix = install(extra)
        # Nothing is traced here, so the export extra is not needed.
        why = error.why.replace(install_to_build(extra), install(extra))
        raise EnvironmentProblem(error.what, why=why, fix=fix) from None
    _require_types(choice.gpus, types, where)
    installed = version_of(choice.backend, machine)
    needed = lowering_of(choice.backend, installed, choice.gpus)
    lowering = lowering_named(form)
    if lowering.has_expert_layer and not needed.has_expert_layer:
        raise _other_form(
            form,
            where,
            choice.gpus[0],
            f"{choice.backend} {installed} has no layer of experts on {', '.join(choice.gpus)}; it builds {needed}",
            f", or with TensorRT 11 or newer: {install('tensorrt')}" if choice.backend == "tensorrt" else "",
        )
    runs_here = bool({sm_name(sm) for sm in machine.sms} & {*choice.gpus})
    return BuildPlatform(choice.backend, installed, choice.gpus, lowering, runs_here)


def planned_platform(
    asked: BackendOptions, form: str, gpus: Sequence[str], types: Collection[str], where: str
) -> BuildPlatform | None:
    """Return the platform of the same build on a machine that supports it; None if no GPU is known.

    Its version is empty. Raises ``UsageError`` for what no machine can build.
    """
    _check(asked)
    named = sm_names(asked.gpus or gpus)
    if not named:
        return None
    backend = asked.name or _suits(named, Machine())
    require_targets("tensorrt-rtx" if backend == "tensorrt-rtx" else "tensorrt", named, [*map(sm_number, named)])
    _require_types(named, types, where)
    lowering = lowering_named(form)
    newest = export_form([sm_number(gpu) for gpu in named]) if backend == "tensorrt" else TENSORRT.name
    if lowering.has_expert_layer and not lowering_named(newest).has_expert_layer:
        raise _other_form(form, where, named[0], f"{backend} has no layer of experts on {', '.join(named)}")
    return BuildPlatform(backend, "", named, lowering, False)


def _check(asked: BackendOptions) -> None:
    """Raise ``UsageError`` for a backend that cannot build from an export."""
    asked.check_known()
    if asked.name == ONNXRUNTIME:
        raise UsageError(
            "--from and --backend onnxruntime contradict each other",
            why="the exported graphs are for TensorRT's parser",
            fix="build from the checkpoint: `peagle-compile build --model ... --backend onnxruntime`",
        )


def _require_types(gpus: Sequence[str], types: Collection[str], where: str) -> None:
    """Raise ``UsageError`` for GPUs that do not support the types of the export."""
    lacking = [f"{gpu}: {why}" for gpu in gpus for kind in types if (why := lacks(sm_number(gpu), kind))]
    if lacking:
        raise UsageError(
            f"the export at {where} cannot be built for {', '.join(gpus)}",
            why="; ".join(dict.fromkeys(lacking)),
            fix="export again with another --precision",
        )


def _other_form(form: str, where: str, gpu: str, why: str, instead: str = "") -> UsageError:
    return UsageError(
        f"the export at {where} is for other GPUs (its lowering is {form})",
        why=why,
        fix=f"export again with `--for tensorrt --gpu {gpu}`{instead}",
    )


def _suits(named: Sequence[str], machine: Machine) -> str:
    """Return the product for these GPUs: TensorRT-RTX if it supports them and TensorRT cannot build here."""
    sms = {sm_number(gpu) for gpu in named} or {*machine.sms}
    full = machine.has("tensorrt") and sms <= {*machine.sms}
    return "tensorrt-rtx" if sms and sms <= {*RTX_SMS} and not full else "tensorrt"


def _here(backend: str, machine: Machine) -> tuple[str, ...]:
    if backend == "tensorrt" or machine.gpus:
        return ()  # choose_backend takes the local GPUs, or raises
    raise UsageError(
        "no GPU was specified",
        why="this machine has no GPU, and the export was made without --gpu",
        fix="specify one, for example --gpu sm_120",
    )
