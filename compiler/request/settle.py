"""What a request comes to on this machine: backend, GPUs, lowering, and, once the checkpoint is open, precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import version

from ...graphs.lowering import TENSORRT, Lowering, lowering_named
from ...plugins.errors import EnvironmentProblem, UsageError
from ..checkpoints.target import Target
from ..hardware.architectures import MOE_LAYER_SMS, sm_name, sm_number
from ..precision.legal import require_legal, supports
from ..precision.recipes import RECIPES, Recipe, wide_type
from .backend import choose_backend, look
from .options import ONNXRUNTIME, BuildOptions

DEFAULT_BATCH_SIZE = 8
_MOE_LAYER_SINCE = 11
_TITLES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}


@dataclass(frozen=True)
class Settled:
    """The backend of a build and what follows from it. ``gpus`` (``sm_120``) are there for TensorRT alone.

    ``version`` is the installed backend's. ``runs_here`` says whether this machine can run the engine, and measure it.
    """

    backend: str
    version: str
    gpus: tuple[str, ...]
    lowering: Lowering
    runs_here: bool

    @property
    def makes_plans(self) -> bool:
        """Whether the engine holds TensorRT plans."""
        return self.backend in _TITLES

    @property
    def title(self) -> str:
        """The backend's name, for people."""
        return _TITLES.get(self.backend, "ONNX Runtime")


def settle(options: BuildOptions) -> Settled:
    """Choose the backend. Reads no checkpoint.

    Raises ``EnvironmentProblem`` where this machine cannot build for it, ``UsageError`` for flags it does not have.
    """
    machine = look()
    choice = choose_backend(options.backend, options.precision, options.gpus, machine)
    if choice.backend == ONNXRUNTIME:
        _refuse_tensorrts(options.tensorrt_only())
        return _legal(
            Settled(ONNXRUNTIME, version(ONNXRUNTIME), (), lowering_named(options.lowering or "ort"), True), options
        )
    here = bool({sm_name(sm) for sm in machine.sms} & set(choice.gpus))
    installed = machine.products[choice.backend]
    if not installed[:1].isdigit():
        raise EnvironmentProblem(
            f"the version of {choice.backend} cannot be told",
            why="its package has no metadata",
            fix=f"pip install --force-reinstall {choice.backend}",
        )
    settled = Settled(choice.backend, installed, choice.gpus, _lowering(choice.backend, installed, choice.gpus), here)
    if options.lowering is not None:
        raise UsageError(
            f"--lowering {options.lowering} does not go with {settled.title}",
            why="its parser takes a lowering of its own",
            fix="leave --lowering out, or build for --backend onnxruntime",
        )
    return _legal(settled, options)


def _legal(settled: Settled, options: BuildOptions) -> Settled:
    """Refuse what the request says of types, as far as it can be told before the checkpoint is read."""
    wide = "bf16" if settled.makes_plans else "fp32"
    overrides = options.overrides
    if settled.makes_plans and options.precision is None:  # an FP8 checkpoint has something to exclude from
        overrides = replace(overrides, exclude=())
    recipe = overrides.of(RECIPES[options.precision or wide].on(wide, settled.lowering))
    require_legal(recipe, settled.lowering, settled.gpus, settled=not settled.makes_plans)
    return settled


def precision_for(settled: Settled, options: BuildOptions, target: Target) -> str:
    """The precision asked for; else FP32 for ONNX Runtime, and for TensorRT the checkpoint's own.

    That is FP8 for a checkpoint that holds it with scales for its inputs, where all GPUs have arithmetic for it.
    """
    if options.precision is not None:
        return options.precision
    if not settled.makes_plans:
        return "fp32"
    from ..precision.source import is_whole_fp8

    fp8 = all(supports(gpu, "fp8") for gpu in settled.gpus) and is_whole_fp8(target, settled.lowering)
    return "fp8" if fp8 else wide_type(target.checkpoint)


def recipe_for(settled: Settled, options: BuildOptions, target: Target) -> Recipe:
    """What that precision, and what was asked for beside it, comes to for this target."""
    wide = wide_type(target.checkpoint) if settled.makes_plans else "fp32"
    recipe = options.overrides.of(RECIPES[precision_for(settled, options, target)].on(wide, settled.lowering))
    require_legal(recipe, settled.lowering, settled.gpus)
    return recipe


def _lowering(backend: str, installed: str, gpus: tuple[str, ...]) -> Lowering:
    """TensorRT's own layer for routed experts is there from 11.0 on, for some GPUs only, and never in TensorRT-RTX."""
    native = (
        backend == "tensorrt"
        and int(installed.partition(".")[0]) >= _MOE_LAYER_SINCE
        and set(map(sm_number, gpus)) <= set(MOE_LAYER_SMS)
    )
    return lowering_named("tensorrt-sm100") if native else TENSORRT


def _refuse_tensorrts(given: dict[str, object]) -> None:
    if given:
        raise UsageError(
            f"{' and '.join(given)} cannot be had with ONNX Runtime",
            why="its engines hold no TensorRT plan",
            fix="leave them out, or build for a GPU, for example with --backend tensorrt-rtx --gpu sm_120",
        )
