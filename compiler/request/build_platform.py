"""The platform of a build, chosen before any checkpoint is read: backend, GPUs and lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from ...engines.folder.records import BackendRecord
from ...graphs.lowering import CPU, ORT, TENSORRT, Lowering, lowering_named
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.tensorrt.products import PRODUCTS, TensorRTProduct
from ..hardware.gpus import export_form, sm_name, sm_number
from ..hardware.machine import Machine, inspect_machine
from ..precision.decide_recipe import decide
from ..precision.recipes import emulated, is_emulated_format
from .choose_backend import choose_backend
from .expert_lowering import lowering_with_experts
from .refusals import check_build
from .request import ONNXRUNTIME, CompileRequest, PlanOptions


@dataclass(frozen=True)
class BuildPlatform:
    """The backend of a build, its version, GPUs (``sm_120``, TensorRT only) and lowering.

    ``runs_here`` is true if this machine can run the engine and measure it. ``missing`` is a warning for a build that
    has no CPU kernels for want of a compiler.
    """

    backend: str
    version: str
    gpus: tuple[str, ...]
    lowering: Lowering
    runs_here: bool
    missing: str = ""

    @property
    def makes_plans(self) -> bool:
        """True if the engine holds TensorRT plans."""
        return self.backend in PRODUCTS

    @property
    def title(self) -> str:
        """The backend's display name."""
        return PRODUCTS[self.backend].title if self.makes_plans else "ONNX Runtime"


def platform_of(request: CompileRequest) -> BuildPlatform:
    """Choose the backend and check the requested types, without reading a checkpoint.

    Raises ``EnvironmentProblem`` if this machine cannot build for it, ``UsageError`` for flags that it does not
    support.
    """
    platform = _platform(request)
    decide(request.precision, platform.lowering, gpus=platform.gpus, keeps_own=True)
    return platform


def platform_of_engine(engine: BackendRecord) -> BuildPlatform:
    """Return the platform for one more plan of an engine, which is the one that built its plans.

    Raises ``EnvironmentProblem`` if this machine has another version, or cannot build for the engine's GPUs.
    """
    machine, built = inspect_machine(), engine.versions.get(engine.name)
    product = PRODUCTS.get(engine.name)
    gpus = "" if product and product.builds_ahead else f" and {' or '.join(engine.gpus)}"
    fix = f"run the command on a machine that has {engine.name} {built}{gpus}"
    try:
        choose_backend(engine.name, None, engine.gpus, machine)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(error.what, why=error.why, fix=fix) from None
    installed = version_of(engine.name, machine)
    if installed != built:
        raise EnvironmentProblem(
            f"the plans of the engine were built with {engine.name} {built}, but {installed} is installed",
            why="all plans of an engine must be built with the same version",
            fix=fix,
        )
    here = bool({sm_name(sm) for sm in machine.sms} & {*engine.gpus})
    return BuildPlatform(engine.name, installed, engine.gpus, lowering_named(engine.lowering), here)


def expected_warnings(request: CompileRequest) -> list[str]:
    """Return the warnings to print before a build. Raises what ``build`` raises before it reads a checkpoint."""
    check_build(request)
    platform = platform_of(request)
    recipe = decide(request.precision, platform.lowering, gpus=platform.gpus, keeps_own=True)
    return emulated(recipe, platform.lowering)


def _platform(request: CompileRequest) -> BuildPlatform:
    machine, options = inspect_machine(), request.backend
    choice = choose_backend(options.name, request.precision.name, options.gpus, machine, request.pair.model)
    if choice.backend == ONNXRUNTIME:
        _refuse_tensorrts(options.gpus, request.plans)
        lowering, missing = lowering_on_cpu(options.lowering, request.precision.name)
        lowering_with_experts(lowering, options.experts)
        return BuildPlatform(ONNXRUNTIME, version(ONNXRUNTIME), (), lowering, True, missing)
    here = bool({sm_name(sm) for sm in machine.sms} & set(choice.gpus))
    installed = version_of(choice.backend, machine)
    lowering = lowering_with_experts(lowering_of(PRODUCTS[choice.backend], choice.gpus, installed), options.experts)
    platform = BuildPlatform(choice.backend, installed, choice.gpus, lowering, here)
    if options.lowering is not None:
        raise UsageError(
            f"--lowering {options.lowering} does not work with {platform.title}",
            why="TensorRT's parser needs its own lowering",
            fix="omit --lowering, or use --backend onnxruntime",
        )
    return platform


def costs_without_kernels(why: str, fix: str) -> str:
    """Return the one-line warning of a build that could not compile the CPU kernels."""
    return f"{why}: falling back to ONNX Runtime's own kernels, which verify drafts more slowly; {fix}"


def lowering_on_cpu(requested: str | None, precision: str | None) -> tuple[Lowering, str]:
    """Return the lowering for ONNX Runtime, and a warning.

    Unless one is ``requested`` for, this is the lowering for the CPU kernels if they support the precision and can be
    compiled.
    """
    from ...plugins.cpu import is_off
    from ...plugins.cpu.compile import find_compilers

    if requested is not None:
        return lowering_named(requested), ""
    if is_emulated_format(precision) or is_off():
        return ORT, ""
    try:
        find_compilers()
    except EnvironmentProblem as problem:
        return ORT, costs_without_kernels(problem.what, problem.fix)
    return CPU, ""


def version_of(backend: str, machine: Machine) -> str:
    """Return the installed version of TensorRT. Raises ``EnvironmentProblem`` if it is unknown."""
    installed = machine.products[backend]
    if not installed[:1].isdigit():
        raise EnvironmentProblem(
            f"the version of {backend} is unknown",
            why="the installed package has no metadata",
            fix=f"run `pip install --force-reinstall {backend}`",
        )
    return installed


def lowering_of(product: TensorRTProduct, gpus: Sequence[str], installed: str = "") -> Lowering:
    """Return the lowering that the ``installed`` version of a product builds for GPUs; empty means the newest version.

    A product that has a layer for routed experts has it for some GPUs only.
    """
    return lowering_named(export_form([*map(sm_number, gpus)])) if product.has_expert_layer(installed) else TENSORRT


def _refuse_tensorrts(gpus: tuple[str, ...], plans: PlanOptions) -> None:
    flags = (["--gpu"] if gpus else []) + plans.given_flags()
    if flags:
        raise UsageError(
            f"{' and '.join(flags)} cannot be used with ONNX Runtime",
            why="only TensorRT engines contain plans",
            fix="omit the flags, or build for a GPU, for example with --backend tensorrt-rtx --gpu sm_120",
        )
