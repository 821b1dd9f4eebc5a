"""The platform of a build from an export, checked against the form of the exported graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...graphs.lowering import lowering_named
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import install, install_to_build
from ...plugins.tensorrt.products import PRODUCTS, TensorRTProduct
from ..hardware.gpus import (
    MOE_LAYER_SMS,
    require_targets,
    sm_name,
    sm_names,
    sm_number,
    why_unsupported,
)
from ..hardware.machine import Machine, inspect_machine
from .build_platform import BuildPlatform, lowering_of, version_of
from .choose_backend import choose_backend, product_for
from .request import ONNXRUNTIME, BackendOptions


@dataclass(frozen=True)
class ExportedGraphs:
    """The graphs of an export in the folder ``path``: their lowering (``tensorrt-sm100``) and number types.

    ``gpus`` are those that the export was made for, if any. ``has_expert_layer``: a graph has TensorRT's layer for
    routed experts, which dense models and experts in MXFP4 do not need.
    """

    path: str
    lowering: str
    gpus: Sequence[str] = ()
    types: Collection[str] = ()
    has_expert_layer: bool = False


def platform_of_export(options: BackendOptions, exported: ExportedGraphs) -> BuildPlatform:
    """Return the platform of a build from an export.

    Raises ``UsageError`` for GPUs that the export does not support, and ``EnvironmentProblem``, with alternatives, for
    what this machine cannot do.
    """
    machine = inspect_machine()
    _check(options)
    gpu_names = sm_names(options.gpus or exported.gpus)
    product = PRODUCTS[options.name] if options.name else product_for(gpu_names, machine)
    gpu_names = gpu_names or _require_gpus(product, machine)
    try:
        choice = choose_backend(product.name, None, gpu_names, machine)
    except EnvironmentProblem as error:
        whose = f"a host with {', '.join(gpu_names)}" if gpu_names else "the host with the GPU"
        fix = f"copy {exported.path} to {whose} and TensorRT, and run `peagle-compile build --from` on that host"
        if product.builds_ahead and not machine.has(product.name):
            fix = f"run `{install(product.extra)}`"
        # Nothing is traced here, so the export extra is not needed.
        why = error.why.replace(install_to_build(product.extra), install(product.extra))
        raise EnvironmentProblem(error.what, why=why, fix=fix) from None
    _require_types(choice.gpus, exported)
    installed = version_of(choice.backend, machine)
    runs_here = bool({sm_name(sm) for sm in machine.sms} & {*choice.gpus})
    platform = BuildPlatform(choice.backend, installed, choice.gpus, lowering_named(exported.lowering), runs_here)
    _require_variant(platform, exported)
    if exported.has_expert_layer and not lowering_of(product, choice.gpus, installed).has_expert_layer:
        raise EnvironmentProblem(
            f"the export at {exported.path} needs TensorRT 11 or newer (its lowering is {exported.lowering})",
            why=f"TensorRT {installed} has no layer for routed experts",
            fix="run `pip install --upgrade 'tensorrt>=11,<12'`, or export again with "
            f"`--for tensorrt --gpu {choice.gpus[0]} --experts dense`",
        )
    return platform


def planned_platform(options: BackendOptions, exported: ExportedGraphs) -> BuildPlatform | None:
    """Return the platform of the same build on a machine that supports it; None if no GPU is known.

    Its version is empty. Raises ``UsageError`` for what no machine can build.
    """
    _check(options)
    gpu_names = sm_names(options.gpus or exported.gpus)
    if not gpu_names:
        return None
    product = PRODUCTS[options.name] if options.name else product_for(gpu_names, Machine())
    require_targets(product, gpu_names, [*map(sm_number, gpu_names)])
    _require_types(gpu_names, exported)
    platform = BuildPlatform(product.name, "", gpu_names, lowering_named(exported.lowering), False)
    _require_variant(platform, exported)
    return platform


def _check(options: BackendOptions) -> None:
    """Raise ``UsageError`` for a backend that cannot build from an export."""
    options.check_known()
    if options.name == ONNXRUNTIME:
        raise UsageError(
            "--from and --backend onnxruntime cannot be combined",
            why="the exported graphs are for TensorRT's parser",
            fix="build from the checkpoint: `peagle-compile build --model ... --backend onnxruntime`",
        )


def _require_types(gpus: Sequence[str], exported: ExportedGraphs) -> None:
    """Raise ``UsageError`` for GPUs that do not support the types of the export."""
    reasons = [(gpu, why_unsupported(sm_number(gpu), kind)) for gpu in gpus for kind in exported.types]
    if unsupported := [f"{gpu}: {why}" for gpu, why in reasons if why]:
        raise UsageError(
            f"the export at {exported.path} cannot be built for {', '.join(gpus)}",
            why="; ".join(dict.fromkeys(unsupported)),
            fix="export again with another --precision",
        )


def _require_variant(platform: BuildPlatform, exported: ExportedGraphs) -> None:
    """Raise ``UsageError`` if the graphs are those for GPUs with TensorRT's expert layer, and the GPUs are others."""
    newest = lowering_of(PRODUCTS[platform.backend], platform.gpus)
    if platform.lowering.has_expert_layer and not newest.has_expert_layer:
        raise UsageError(
            f"the export at {exported.path} is for other GPUs (its lowering is {platform.lowering})",
            why=f"{platform.title} has no layer for routed experts on {', '.join(platform.gpus)}"
            if exported.has_expert_layer
            else f"these graphs were made for TensorRT on {', '.join(map(sm_name, MOE_LAYER_SMS))}",
            fix=f"export again with `--for tensorrt --gpu {platform.gpus[0]}`",
        )


def _require_gpus(product: TensorRTProduct, machine: Machine) -> tuple[str, ...]:
    if not product.builds_ahead or machine.gpus:
        return ()  # choose_backend takes the local GPUs, or raises
    raise UsageError(
        "no GPU was specified",
        why=f"{machine.why_no_gpu}; and the export does not name one (--gpu)",
        fix="specify one, for example --gpu sm_120",
    )
