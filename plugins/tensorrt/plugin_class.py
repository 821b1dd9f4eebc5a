"""One TensorRT plugin class for all ops: its answers come from the op's spec, and its work is one launch.

The bindings swallow a plugin's exceptions (they print them and report failure to TensorRT), so each is recorded for
``errors.last``. They ignore the return values of ``enqueue`` and ``on_shape_change``: only raising signals failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast

from ..errors import REPORT, BuildError, EnvironmentProblem, PeagleError
from ..kernels.launch import Launcher, launcher_for
from ..kernels.pack import Pack
from ..number_types import BY_NAME, tensorrt_name
from ..op_spec import DOMAIN, VERSION, OpSpec
from . import errors, plugin_fields
from .check_call import bind
from .symbols import Arithmetic, Symbol

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _recorded(method: _Method) -> _Method:
    """Wrap a method so that its exceptions are recorded for ``errors.last``."""

    @functools.wraps(method)
    def call(self: _HasSpec, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            raise errors.record(error, f"{self.spec.name}: {method.__name__}") from error

    return cast(_Method, call)


class _HasSpec:
    trt: ModuleType
    spec: OpSpec


class _Answers(_HasSpec):
    """The queries of TensorRT's Python plugin interface. The op's dims are sizes, -1 if unknown."""

    packs: Sequence[Pack]
    attributes: dict[str, Any]

    def _prepare(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes
        self.num_outputs = len(self.spec.outputs)
        self.plugin_name, self.plugin_namespace, self.plugin_version = self.spec.name, DOMAIN, str(VERSION)
        self._kept = plugin_fields.write(self.trt, self.spec, attributes)
        self._fields = self.trt.PluginFieldCollection(self._kept)
        self._launcher: Launcher | None = None
        self._not_loaded: PeagleError | None = None

    def get_capability_interface(self, kind: Any) -> Any:
        return self

    @_recorded
    def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
        return [to_tensorrt(self.trt, name) for name in self.spec.infer_dtypes([tensorrt_name(t) for t in input_types])]

    @_recorded
    def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], builder: Any) -> list[Any]:
        arithmetic = _expressions(self.trt, builder)
        sizes = [
            [size.get_constant_value() if size.is_constant() else Symbol(size, arithmetic) for size in shape]
            for shape in inputs
        ]
        shapes = self.spec.infer_shapes(sizes, self.attributes)
        expressions = [
            [size.value if isinstance(size, Symbol) else builder.constant(int(size)) for size in shape]
            for shape in shapes
        ]
        return [self.trt.DimsExprs(shape) for shape in expressions]

    def get_aliased_input(self, output: int) -> int:
        name = self.spec.outputs[output].aliases
        return -1 if name is None else [operand.name for operand in self.spec.inputs].index(name)

    def supports_format_combination(self, position: int, in_out: Sequence[Any], num_inputs: int) -> bool:
        if in_out[position].desc.format != self.trt.TensorFormat.LINEAR:
            return False
        # Only entries up to this position are valid.
        names = [tensorrt_name(tensor.desc.type) for tensor in in_out[: position + 1]]
        if position >= num_inputs:
            try:
                return names[position] == self.spec.infer_dtypes(names[:num_inputs])[position - num_inputs]
            except BuildError:
                return False
        operand = self.spec.inputs[position]
        if operand.same_as is None:
            return names[position] in operand.dtypes
        return names[position] == names[[other.name for other in self.spec.inputs].index(operand.same_as)]

    @_recorded
    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._check_descriptions([tensor.desc for tensor in inputs], [tensor.desc for tensor in outputs])

    @_recorded
    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._check_descriptions(inputs, outputs)

    def get_valid_tactics(self) -> list[int]:
        return []

    def set_tactic(self, tactic: int) -> None:
        """Do nothing: there is only one kernel."""

    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return 0

    def get_fields_to_serialize(self) -> Any:
        return self._fields

    def clone(self) -> Any:
        copy = type(self)()
        copy._prepare(dict(self.attributes))
        copy._launcher, copy._not_loaded = self._launcher, self._not_loaded
        return copy

    def attach_to_context(self, context: Any) -> Any:
        """Return a clone with its kernel loaded: the first launch may be under graph capture, which forbids loading.

        It never raises, because TensorRT would continue with a null pointer, and because a build without a GPU attaches
        plugins that it never launches. ``enqueue`` reports a kernel that could not be loaded.
        """
        copy = self.clone()
        try:
            copy._launcher = launcher_for(self.spec, self.packs)
        except PeagleError as error:
            copy._not_loaded = error
        except Exception as error:
            copy._not_loaded = EnvironmentProblem(
                f"the kernel of {self.spec.name} cannot be loaded",
                why=repr(error),
                fix="run `peagle-compile doctor` to check the driver and GPU",
            )
        return copy

    @_recorded
    def enqueue(
        self,
        input_descs: Sequence[Any],
        output_descs: Sequence[Any],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Launch on TensorRT's stream, without allocating or waiting."""
        if self._launcher is None:
            raise self._not_loaded or EnvironmentProblem(
                f"{self.spec.name} was launched before its kernel was loaded",
                why="TensorRT did not attach the plugin to an execution context",
                fix=REPORT,
            )
        kernel = self.spec.kernel
        typed_by = kernel.typed_by if kernel else None
        names = [operand.name for operand in self.spec.inputs]
        self._launcher.launch(
            stream,
            [*inputs, *outputs],
            bind(self.spec, [tuple(desc.dims) for desc in input_descs]),
            self.attributes,
            tensorrt_name(input_descs[names.index(typed_by)].type) if typed_by else None,
        )

    def _check_descriptions(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Raise ``BuildError`` for dtypes, ranks or known sizes that differ from the spec; -1 is unknown."""
        dtypes = self.spec.infer_dtypes([tensorrt_name(desc.type) for desc in inputs])
        unknown = Symbol(None, _UNKNOWN)
        input_sizes = [[size if size >= 0 else unknown for size in desc.dims] for desc in inputs]
        shapes = self.spec.infer_shapes(input_sizes, self.attributes)
        for operand, desc, dtype, shape in zip(self.spec.outputs, outputs, dtypes, shapes, strict=True):
            sizes = tuple(desc.dims)
            fits = len(sizes) == len(shape) and all(
                isinstance(dim, Symbol) or size in (dim, -1) for size, dim in zip(sizes, shape, strict=True)
            )
            if not fits or tensorrt_name(desc.type) != dtype:
                spec_sizes = [-1 if isinstance(size, Symbol) else size for size in shape]
                raise BuildError(
                    f"{self.spec.name}: TensorRT passed {operand.name} {tensorrt_name(desc.type)} "
                    f"{list(sizes)}, but the spec requires {dtype} {spec_sizes}",
                    fix=REPORT,
                )


def to_tensorrt(trt: ModuleType, name: str) -> Any:
    """Return the ``trt.DataType`` of a name such as ``"float16"``."""
    return getattr(trt.DataType, BY_NAME[name].tensorrt)


_UNKNOWN = Arithmetic(lambda _: None, lambda a, b: None, lambda a, b: None)


def _expressions(trt: ModuleType, builder: Any) -> Arithmetic:
    operation, kinds = builder.operation, trt.DimensionOperation
    return Arithmetic(
        builder.constant, lambda a, b: operation(kinds.SUM, a, b), lambda a, b: operation(kinds.SUB, a, b)
    )


def plugin_class(trt: ModuleType, spec: OpSpec, packs: Sequence[Pack] = ()) -> type:
    """Return the ``IPluginV3`` class of an op, for the module ``tensorrt`` or ``tensorrt_rtx``.

    ``packs`` are searched for the kernel before it is compiled. Raises ``BuildError`` for an op that cannot be a
    plugin.
    """
    if spec.kernel is None:
        raise BuildError(
            f"{spec.name} has no plugin",
            why="the op has no CUDA kernel, because a lowering replaces the op",
            fix="lower the graph for TensorRT first",
        )
    if any(operand.optional for operand in spec.inputs):
        raise BuildError(
            f"{spec.name} cannot be a plugin",
            why="TensorRT's parser rejects optional inputs",
            fix="make every input in the op's spec required",
        )
    dtypes = {dtype for operand in (*spec.inputs, *spec.outputs) for dtype in operand.dtypes}
    if unknown := sorted(name for name in dtypes if name not in BY_NAME or not BY_NAME[name].tensorrt):
        raise BuildError(
            f"{spec.name}: TensorRT has no dtype for {', '.join(unknown)}",
            fix="use only types of TensorRT in the op's spec",
        )
    aliased = any(output.aliases for output in spec.outputs)
    build = trt.IPluginV3OneBuildV2 if aliased else trt.IPluginV3OneBuild
    bases = (trt.IPluginV3, trt.IPluginV3OneCore, build, trt.IPluginV3OneRuntime)

    def __init__(self: Any) -> None:
        for base in bases:
            base.__init__(self)

    members = {"__init__": __init__, "trt": trt, "spec": spec, "packs": packs}
    return type(f"{spec.name}Plugin", (_Answers, *bases), members)


class _Creates(_HasSpec):
    """The queries of TensorRT's plugin creator interface."""

    plugin: type

    @_recorded
    def create_plugin(self, name: str, collection: Any, phase: Any) -> Any:
        """Return the plugin of a node (build phase) or of a plan (run-time phase), made from the same fields."""
        plugin = self.plugin()
        plugin._prepare(plugin_fields.read(self.spec, collection))
        return plugin


def creator(trt: ModuleType, spec: OpSpec, packs: Sequence[Pack] = ()) -> Any:
    """Return the ``IPluginCreatorV3One`` of an op. Keep it alive for as long as TensorRT's registry has it."""
    base = trt.IPluginCreatorV3One
    members = {"trt": trt, "spec": spec, "plugin": plugin_class(trt, spec, packs)}
    result = type(f"{spec.name}Creator", (_Creates, base), members)()
    result.name, result.plugin_namespace, result.plugin_version = spec.name, DOMAIN, str(VERSION)
    result.kept = plugin_fields.declare(trt, spec)
    result.field_names = result.announced = trt.PluginFieldCollection(result.kept)  # the bindings only copy pointers
    return result
