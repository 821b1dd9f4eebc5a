"""The platform that a build is for, fixed before anything is read: backend, GPUs, lowering, and what runs here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from ...graphs.lowering import CPU, ORT, TENSORRT, Lowering, lowering_named
from ...plugins.errors import EnvironmentProblem, UsageError
from ..hardware.gpus import export_form, sm_name, sm_number
from ..hardware.machine import Machine, look
from ..precision.decide_recipe import decide
from ..precision.recipes import emulated, is_emulated_format
from .choose_backend import choose_backend
from .experts_form import as_asked
from .refusals import check_build
from .request import ONNXRUNTIME, CompileRequest, PlanAsked

_MOE_LAYER_SINCE = 11
_TITLES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}


@dataclass(frozen=True)
class BuildPlatform:
    """The backend of a build and what follows from it. ``gpus`` (``sm_120``) are there for TensorRT alone.

    ``version`` is the installed backend's. ``runs_here`` says whether this machine can run the engine, and measure it.
    ``lacks`` is what a build should say of CPU kernels that it would have had with a compiler.
    """

    backend: str
    version: str
    gpus: tuple[str, ...]
    lowering: Lowering
    runs_here: bool
    lacks: str = ""

    @property
    def makes_plans(self) -> bool:
        """Whether the engine holds TensorRT plans."""
        return self.backend in _TITLES

    @property
    def title(self) -> str:
        """The backend's name, for people."""
        return _TITLES.get(self.backend, "ONNX Runtime")


def platform_of(request: CompileRequest) -> BuildPlatform:
    """Choose the backend, and refuse what the request asks of types as far as it can be told. Reads no checkpoint.

    Raises ``EnvironmentProblem`` where this machine cannot build for it, ``UsageError`` for flags it does not have.
    """
    platform = _platform(request)
    decide(request.precision, platform.lowering, gpus=platform.gpus, keeps_own=True)
    return platform


def foretold(request: CompileRequest) -> list[str]:
    """What a build should say before it begins. Raises for what ``build`` refuses before it reads a checkpoint."""
    check_build(request)
    platform = platform_of(request)
    recipe = decide(request.precision, platform.lowering, gpus=platform.gpus, keeps_own=True)
    return emulated(recipe, platform.lowering)


def _platform(request: CompileRequest) -> BuildPlatform:
    machine, asked = look(), request.backend
    choice = choose_backend(asked.name, request.precision.name, asked.gpus, machine, request.pair.model)
    if choice.backend == ONNXRUNTIME:
        _refuse_tensorrts(asked.gpus, request.plans)
        lowering, lacks = _on_cpu(asked.lowering, request.precision.name)
        as_asked(lowering, asked.experts)
        return BuildPlatform(ONNXRUNTIME, version(ONNXRUNTIME), (), lowering, True, lacks)
    here = bool({sm_name(sm) for sm in machine.sms} & set(choice.gpus))
    installed = version_of(choice.backend, machine)
    lowering = as_asked(lowering_of(choice.backend, installed, choice.gpus), asked.experts)
    platform = BuildPlatform(choice.backend, installed, choice.gpus, lowering, here)
    if asked.lowering is not None:
        raise UsageError(
            f"--lowering {asked.lowering} does not go with {platform.title}",
            why="its parser takes a lowering of its own",
            fix="leave --lowering out, or build for --backend onnxruntime",
        )
    return platform


def costs_without_kernels(why: str, fix: str) -> str:
    """What a build says that could have had CPU kernels of ours, in one line."""
    return f"{why}: ONNX Runtime's own kernels are used, with which verifying drafts costs more than with ours; {fix}"


def _on_cpu(asked: str | None, precision: str | None) -> tuple[Lowering, str]:
    """The lowering for ONNX Runtime, and what to say of it.

    Without one that was ``asked`` for that is the one for our kernels, where they multiply in the precision and can be
    compiled and loaded.
    """
    from ...plugins.cpu import is_off
    from ...plugins.cpu.compile import find_compilers

    if asked is not None:
        return lowering_named(asked), ""
    if is_emulated_format(precision) or is_off():
        return ORT, ""
    try:
        find_compilers()
    except EnvironmentProblem as problem:
        return ORT, costs_without_kernels(problem.what, problem.fix)
    return CPU, ""


def version_of(backend: str, machine: Machine) -> str:
    """The version of TensorRT that is installed. Raises ``EnvironmentProblem`` where that cannot be told."""
    installed = machine.products[backend]
    if not installed[:1].isdigit():
        raise EnvironmentProblem(
            f"the version of {backend} cannot be told",
            why="its package has no metadata",
            fix=f"pip install --force-reinstall {backend}",
        )
    return installed


def lowering_of(backend: str, installed: str, gpus: tuple[str, ...]) -> Lowering:
    """The form that a backend of this version builds for GPUs.

    TensorRT's own layer for routed experts is there from 11.0 on, for some GPUs only, and never in TensorRT-RTX.
    """
    native = backend == "tensorrt" and int(installed.partition(".")[0]) >= _MOE_LAYER_SINCE
    return lowering_named(export_form([*map(sm_number, gpus)])) if native else TENSORRT


def _refuse_tensorrts(gpus: tuple[str, ...], plans: PlanAsked) -> None:
    flags = (["--gpu"] if gpus else []) + plans.given()
    if flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be had with ONNX Runtime",
            why="its engines hold no TensorRT plan",
            fix="leave them out, or build for a GPU, for example with --backend tensorrt-rtx --gpu sm_120",
        )
