"""The same ops as ahead-of-time quick-deploy plugins, where the installed TensorRT has them.

TensorRT puts the kernel itself into the plan, so that an engine made this way needs neither Python nor this package to
run. The op's spec gives the shapes, the kernel's parameters are already in the order that TensorRT uses: inputs, ints,
outputs. TensorRT-RTX has no such plugins. Source: ``tensorrt.plugin`` of TensorRT 10.8 and later, by its documentation
and the Python files of 11.4; untested on hardware.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from ..errors import BuildError, EnvironmentProblem
from ..kernels.launch import geometry
from ..kernels.pack import Pack, obtain
from ..kernels.sources import kernel_of, kernel_ops
from ..spec import DOMAIN, OpSpec, evaluate_dim
from .check import bind, check_attributes
from .dtypes import to_name, to_tensorrt
from .register import find_creator
from .symbols import Arithmetic, Symbol


def offered(trt: ModuleType) -> bool:
    """Whether this TensorRT takes ahead-of-time quick-deploy plugins."""
    return hasattr(trt, "QuickPluginCreationRequest") and hasattr(trt, "IPluginV3QuickAOTBuild")


def register_quick_deploy(
    trt: ModuleType, sm: int, ops: Iterable[OpSpec] | None = None, packs: Sequence[Pack] = ()
) -> None:
    """Register every op (those with a kernel, if None) in this process, with its code for GPUs of capability ``sm``.

    It takes the place of ``register.register``: a process has one or the other. Build the network with
    ``NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS``. Raises ``EnvironmentProblem`` when this TensorRT has no
    such plugins or the names are taken, ``BuildError`` for an op without a kernel.
    """
    version = getattr(trt, "__version__", "of unknown version")
    if not offered(trt):
        raise EnvironmentProblem(
            f"{trt.__name__} {version} has no ahead-of-time quick-deploy plugins",
            why="full TensorRT has them from 10.8 on, TensorRT-RTX does not",
            fix="build without them; the engine then needs this package to run",
        )
    api = importlib.import_module(f"{trt.__name__}.plugin")
    specs = kernel_ops() if ops is None else tuple(ops)
    if taken := [spec.name for spec in specs if find_creator(trt, spec.name) is not None]:
        raise EnvironmentProblem(
            f"plugins are registered already: {', '.join(taken)}",
            why="a process has either the quick-deploy plugins or the others",
            fix="register the quick-deploy plugins first, in a process of their own",
        )
    codes = [obtain(spec, sm, packs).code for spec in specs]  # all of them before the first is registered
    for spec, code in zip(specs, codes, strict=True):
        identity = f"{DOMAIN}::{spec.name}"
        api.register(identity)(describer(trt, api, spec))
        api.aot_impl(identity)(implementer(api, spec, sm, code))


def describer(trt: ModuleType, api: Any, spec: OpSpec) -> Callable[..., Any]:
    """The function that describes the outputs: ``(inputs..., attributes...) -> TensorDesc`` or a tuple of them."""
    inputs = len(spec.inputs)

    def describe(*given: Any, **named: Any) -> Any:
        tensors, attributes = given[:inputs], _attributes(spec, given[inputs:], named)
        dtypes = spec.infer_dtypes([to_name(tensor.dtype) for tensor in tensors])
        shapes = spec.infer_shapes([_sizes(api, tensor) for tensor in tensors], attributes)
        made = []
        for output, dtype, shape in zip(spec.outputs, dtypes, shapes, strict=True):
            if output.aliases:
                made.append(tensors[[operand.name for operand in spec.inputs].index(output.aliases)].aliased())
                continue
            expressions = api.ShapeExprs(len(shape))
            for i, size in enumerate(shape):
                expressions[i] = _plain(size)
            made.append(api.TensorDesc(expressions, to_tensorrt(trt, dtype)))
        return tuple(made) if len(made) > 1 else made[0]

    answer = _outputs(api, spec) if len(spec.outputs) > 1 else api.TensorDesc
    return _signed(describe, spec, api, [], answer)


def implementer(api: Any, spec: OpSpec, sm: int, code: bytes) -> Callable[..., Any]:
    """The function that gives the kernel: ``(inputs..., attributes..., outputs, tactic)`` to its name, its code, how to
    launch it, and its int arguments.
    """
    kernel = kernel_of(spec)
    inputs = len(spec.inputs)

    def implement(*given: Any, **named: Any) -> tuple[str, bytes, Any, Any]:
        tensors, rest = given[:inputs], given[inputs:]
        attributes = _attributes(spec, rest[: len(spec.attributes)], named)
        dtypes = {operand.name: to_name(tensor.dtype) for operand, tensor in zip(spec.inputs, tensors, strict=True)}
        sizes: dict[str, Any] = bind(spec, [_sizes(api, tensor) for tensor in tensors])
        shape = geometry(spec, sm, dict.fromkeys(sizes, 1))  # for block and cluster, which no size changes
        launch = api.KernelLaunchParams()
        launch.grid_x = _times(_plain(evaluate_dim(kernel.blocks, sizes)), shape.cluster)
        launch.block_x = shape.block
        arguments = api.SymIntExprs(len(kernel.scalars))
        for i, name in enumerate(kernel.scalars):
            value = _plain(sizes[name]) if name in sizes else attributes[name]
            arguments[i] = api.SymInt32(value)
        entry = kernel.entry if kernel.typed_by is None else f"{kernel.entry}_{dtypes[kernel.typed_by]}"
        return entry, code, launch, arguments

    answer = tuple.__class_getitem__((str, bytes, api.KernelLaunchParams, api.SymIntExprs))
    return _signed(implement, spec, api, [("outputs", _outputs(api, spec)), ("tactic", int)], answer)


def _outputs(api: Any, spec: OpSpec) -> Any:
    """The annotation ``tuple[TensorDesc, TensorDesc, ...]``, one for each output."""
    return tuple.__class_getitem__((api.TensorDesc,) * len(spec.outputs))


def _attributes(spec: OpSpec, given: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    return check_attributes(spec, dict(zip((a.name for a in spec.attributes), given, strict=False)) | named)


def _sizes(api: Any, tensor: Any) -> tuple[Any, ...]:
    """The sizes of a tensor: ints where they are known, else symbols."""
    arithmetic = Arithmetic(api.ShapeExpr, lambda a, b: a + b, lambda a, b: a - b)
    return tuple(
        size.constant_value() if not size.is_fake and size.is_constant else Symbol(size, arithmetic)
        for size in tensor.shape_expr
    )


def _plain(size: Any) -> Any:
    return size.value if isinstance(size, Symbol) else size


def _times(size: Any, count: int) -> Any:
    return size if count == 1 else size * count


def _signed(
    function: Callable[..., Any], spec: OpSpec, api: Any, extra: Sequence[tuple[str, Any]], answer: Any
) -> Callable[..., Any]:
    """The function with the signature that TensorRT reads: it takes names, kinds and order of an op from there."""
    names = [(operand.name, api.TensorDesc) for operand in spec.inputs]
    names += [(attribute.name, attribute.kind) for attribute in spec.attributes]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=annotation) for name, annotation in (*names, *extra)]
    if clash := {name for name, _ in names} & {"outputs", "stream", "tactic"}:
        raise BuildError(f"{spec.name}: {', '.join(sorted(clash))} is a word of quick-deploy plugins")
    function.__signature__ = inspect.Signature(parameters, return_annotation=answer)  # type: ignore[attr-defined]
    return function
