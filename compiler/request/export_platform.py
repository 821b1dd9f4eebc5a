"""The platform that the plans of an export are built for, held against the form that it was written in."""

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
from .request import ONNXRUNTIME, BackendAsked


def platform_of_export(
    asked: BackendAsked, form: str, gpus: Sequence[str], types: Collection[str], where: str
) -> BuildPlatform:
    """The platform of a build from an export of this ``form`` (``tensorrt-sm100``), made for ``gpus`` if any.

    ``types`` are those that its graphs hold, ``where`` is its folder. Raises ``UsageError`` for what it cannot be built
    for, ``EnvironmentProblem`` for what this machine cannot do, with what to do instead.
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
        whose = f"a host that has {', '.join(named)}" if named else "the host that has the GPU"
        fix = f"copy {where} to {whose} and TensorRT, and run `peagle-compile build --from` there"
        if backend == "tensorrt-rtx" and not machine.has("tensorrt-rtx"):
            fix = install(extra)
        # Nothing is traced here: what an export needs has not to be installed.
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
    asked: BackendAsked, form: str, gpus: Sequence[str], types: Collection[str], where: str
) -> BuildPlatform | None:
    """The platform of the same build on a machine that has all of it; None where no GPU is known.

    Its version is unknown, and empty. Raises ``UsageError`` for what no machine can build.
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


def _check(asked: BackendAsked) -> None:
    """Raise ``UsageError`` for a backend that builds nothing of an export."""
    asked.check_known()
    if asked.name == ONNXRUNTIME:
        raise UsageError(
            "--from and --backend onnxruntime contradict each other",
            why="the graphs of the export are for TensorRT's parser",
            fix="`peagle-compile build --model ... --backend onnxruntime` builds from the checkpoint",
        )


def _require_types(gpus: Sequence[str], types: Collection[str], where: str) -> None:
    """Raise ``UsageError`` for GPUs that do not compute in the types of the export."""
    lacking = [f"{gpu}: {why}" for gpu in gpus for kind in types if (why := lacks(sm_number(gpu), kind))]
    if lacking:
        raise UsageError(
            f"the export at {where} cannot be built for {', '.join(gpus)}",
            why="; ".join(dict.fromkeys(lacking)),
            fix="export again with another --precision",
        )


def _other_form(form: str, where: str, gpu: str, why: str, instead: str = "") -> UsageError:
    return UsageError(
        f"the export at {where} is for other GPUs: its form is {form}",
        why=why,
        fix=f"export again with `--for tensorrt --gpu {gpu}`{instead}",
    )


def _suits(named: Sequence[str], machine: Machine) -> str:
    """The product for these GPUs: ahead of time where they are not here and it can be."""
    sms = {sm_number(gpu) for gpu in named} or {*machine.sms}
    full = machine.has("tensorrt") and sms <= {*machine.sms}
    return "tensorrt-rtx" if sms and sms <= {*RTX_SMS} and not full else "tensorrt"


def _here(backend: str, machine: Machine) -> tuple[str, ...]:
    if backend == "tensorrt" or machine.gpus:
        return ()  # those of the machine, or the error that says that it has none
    raise UsageError(
        "no GPU to build for was named", why="no GPU is here, and the export names none", fix="for example --gpu sm_120"
    )
