"""Stand-ins for plans: PyTorch runs the graph that TensorRT gets, on the GPU and the runtime's stream.

See ``tests/engines/backends/stand_in.py`` for what calls it. Nodes of this project launch its kernels, as plugins do;
the others are PyTorch's functions. Whether a value lives on the host or on the device follows from the graph alone, see
``TorchGraph``. Values of the host that the device reads go there in the first run over these shapes: a CUDA graph can
then capture the second, in which nothing may wait for the device or copy from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from peagle.plugins.number_types import BY_NAME, BY_ONNX
from peagle.plugins.op_spec import DOMAIN
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt.check_call import bind, check_attributes, check_call
from tests.engines.backends.stand_in import GraphTensor, Run
from tests.gpu import onnx_on_torch
from tests.gpu.on_device import launcher_of
from tests.gpu.torch_device import TorchDevice

if TYPE_CHECKING:
    import onnx

Values = dict[str, torch.Tensor]


class TorchGraph:
    """The graph of one half, with its weights on the device.

    Inputs and what is computed from them lives on the device. Shapes live on the host, and so does what is computed
    from constants and shapes alone. Sizes and axes of an op of the device are values of the host.
    """

    def __init__(self, path: Path, device: TorchDevice) -> None:
        import onnx

        model = onnx.load(str(path))
        self.device, self._path = device, path
        self.inputs: Mapping[str, GraphTensor] = {value.name: _tensor(value) for value in model.graph.input}
        self.outputs: Mapping[str, GraphTensor] = {value.name: _tensor(value) for value in model.graph.output}
        nodes = [_Node(node) for node in model.graph.node]
        self.constants: Values = {each.name: _array(each) for each in model.graph.initializer}
        self.nodes = [node for node in nodes if not self._fold(node)]
        _require_any_order(self.nodes)
        self._place()
        self._widen()
        self.on_device = {name: device.constant(x) for name, x in self._read_by_the_device().items()}
        self._uploads: dict[tuple[torch.dtype, torch.Size, bytes], torch.Tensor] = {}

    def _fold(self, node: _Node) -> bool:
        """Compute what depends on nothing."""
        if not node.is_plugin and all(name in self.constants for name in node.inputs if name):
            self.constants |= zip(
                node.outputs, node.run([self.constants.get(name) for name in node.inputs]), strict=True
            )
            return True
        return False

    def _place(self) -> None:
        """Decide where each node runs. Raises ``ValueError`` for sizes that only the device would know."""
        device = set(self.inputs)
        for node in self.nodes:
            node.is_on_the_host = node.op == "Shape" or not (node.is_plugin or device & set(node.inputs))
            if node.is_on_the_host:
                continue
            if unknown := [name for at, name in enumerate(node.inputs) if at in node.sizes and name in device]:
                raise ValueError(f"{node} takes sizes that the device computes: {', '.join(unknown)}")
            device |= set(node.outputs)

    def _widen(self) -> None:
        """Keep matrices as float64, in which they are multiplied."""
        products = {name for node in self.nodes if node.op == "MatMul" for name in node.inputs}
        others = {name for node in self.nodes if node.op != "MatMul" for name in node.inputs}
        for name in (products - others) & set(self.constants):
            self.constants[name] = self.constants[name].double()

    def _read_by_the_device(self) -> Values:
        nodes = [node for node in self.nodes if not node.is_on_the_host]
        names = {name for node in nodes for at, name in enumerate(node.inputs) if at not in node.sizes}
        return {name: x for name, x in self.constants.items() if name in names | set(self.outputs)}

    def context(self) -> Run:
        """Return what runs the graph; see ``LoadedGraph``."""
        return self._enqueue

    def _enqueue(self, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> None:
        """Enqueue one run on the device's stream."""
        bound = {
            name: self.device.tensor(addresses[name], shapes[name], each.dtype) for name, each in self.inputs.items()
        }
        kind = self._path, *(x.shape for x in bound.values())
        self.device.enqueue_pass(kind, lambda: self._run(bound, addresses))

    def _run(self, bound: Values, addresses: Mapping[str, int]) -> None:
        values = _PlacedValues(self.constants, {**self.on_device, **bound}, next(iter(bound.values())).device)
        for node in self.nodes:
            try:
                self._evaluate(node, values)
            except Exception as error:
                raise RuntimeError(f"{node}: {error}") from error
        for name, each in self.outputs.items():
            value = self._on_device(name, values)
            if value.data_ptr() != addresses[name] and value.numel():
                self.device.tensor(addresses[name], tuple(value.shape), each.dtype).copy_(value)

    def _evaluate(self, node: _Node, values: _PlacedValues) -> None:
        """Add the outputs of a node to the values of its place."""
        given: list[torch.Tensor | None] = [
            None if not name
            else values.anywhere(name) if node.op == "Shape"
            else values.host[name] if node.is_on_the_host or at in node.sizes
            else self._on_device(name, values)
            for at, name in enumerate(node.inputs)
        ]  # fmt: skip
        results = self._launched(node, given) if node.is_plugin else node.run(given)
        values.add(node, results)

    def _on_device(self, name: str, values: _PlacedValues) -> torch.Tensor:
        """The value on the device. Uploads stay, because enqueued and captured runs read them."""
        if name not in values.device:
            value = values.host[name]
            content = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
            key = value.dtype, value.shape, content
            if key not in self._uploads:
                self._uploads[key] = self.device.constant(value)
            values.device[name] = self._uploads[key]
        return values.device[name]

    def _launched(self, node: _Node, inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Launch the kernel of an op, as its plugin does."""
        spec, given = OPS[node.op], [x.contiguous() for x in inputs if x is not None]
        assert spec.kernel is not None
        names = [_NAMES[x.dtype] for x in given]
        shapes = [tuple(x.shape) for x in given]
        by_name = {operand.name: x for operand, x in zip(spec.inputs, given, strict=True)}
        outputs = [
            by_name[operand.aliases]
            if operand.aliases
            else torch.empty(tuple(map(int, shape)), dtype=_TYPES[dtype], device=given[0].device)
            for operand, (dtype, shape) in zip(
                spec.outputs, check_call(spec, node.attributes, names, shapes), strict=True
            )
        ]
        typed_by = spec.kernel.typed_by
        launcher_of(node.op).launch(
            self.device.stream,
            [x.data_ptr() for x in (*given, *outputs)],
            bind(spec, shapes),
            node.attributes,
            _NAMES[by_name[typed_by].dtype] if typed_by else None,
        )
        return outputs


class _PlacedValues:
    """The values of one run by the place where they live; those of the host may have a copy on the device."""

    def __init__(self, host: Values, device: Values, gpu: torch.device) -> None:
        self.host, self.device = dict(host), device
        self._gpu = gpu

    def anywhere(self, name: str) -> torch.Tensor:
        return self.host[name] if name in self.host else self.device[name]

    def add(self, node: _Node, results: Sequence[torch.Tensor]) -> None:
        """Add the outputs of a node. Raises ``RuntimeError`` if PyTorch made them elsewhere."""
        place = torch.device("cpu") if node.is_on_the_host else self._gpu
        if wrong := [str(x.device) for x in results if x.device != place]:
            raise RuntimeError(f"the result is on {', '.join(wrong)} and belongs on {place}")
        (self.host if node.is_on_the_host else self.device).update(zip(node.outputs, results, strict=False))


class _Node:
    """A node, its attributes read."""

    def __init__(self, node: onnx.NodeProto) -> None:
        from onnx.helper import get_attribute_value

        self.name, self.op, self.is_plugin = node.name, node.op_type, node.domain == DOMAIN
        self.inputs, self.outputs = [*node.input], [*node.output]
        values = {each.name: get_attribute_value(each) for each in node.attribute}
        if self.is_plugin:
            decoded = {name: x.decode() if isinstance(x, bytes) else x for name, x in values.items()}
            self.attributes = check_attributes(OPS[self.op], decoded)
        elif self.op == "Constant":
            (value,) = values.values()
            self.attributes = {"value": _array(value) if hasattr(value, "data_type") else torch.tensor(value)}
        else:
            self.attributes = {name: _array(x) if hasattr(x, "data_type") else x for name, x in values.items()}
        self.sizes = onnx_on_torch.SIZES.get(self.op, frozenset())
        self.is_on_the_host = False

    def __str__(self) -> str:
        return f"{self.op} {self.name!r} of {', '.join(self.inputs)}"

    def run(self, inputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """The outputs of an ordinary node."""
        if self.op == "Constant":
            return (self.attributes["value"],)
        return onnx_on_torch.run(self.op, inputs, self.attributes)


_TYPES = {name: getattr(torch, kind.numpy) for name, kind in BY_NAME.items() if hasattr(torch, kind.numpy)}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def _tensor(value: onnx.ValueInfoProto) -> GraphTensor:
    kind = value.type.tensor_type
    return GraphTensor(BY_ONNX[kind.elem_type].name, tuple(d.dim_param or d.dim_value for d in kind.shape.dim))


def _array(tensor: onnx.TensorProto) -> torch.Tensor:
    from onnx.numpy_helper import to_array

    dtype = onnx_on_torch.torch_type(tensor.data_type)
    array = np.ascontiguousarray(to_array(tensor)).reshape(tuple(tensor.dims))
    if dtype in (torch.float8_e4m3fn, torch.bfloat16):  # NumPy has none of these
        return torch.from_numpy(array.view(np.uint8 if dtype.itemsize == 1 else np.uint16).copy()).view(dtype)
    return torch.from_numpy(array.copy())


def _require_any_order(nodes: Sequence[_Node]) -> None:
    """A cache is written in place. Others may only take parts of it: attention sees none of what a pass writes."""
    written = [node.inputs[0] for node in nodes if node.op == "TensorScatter"]
    assert len(written) == len(set(written))
    assert {node.op for node in nodes if set(node.inputs) & set(written)} <= {"TensorScatter", "Slice", "Reshape"}
    views = {node.outputs[0] for node in nodes if node.op == "Reshape" and node.inputs[0] in written}
    assert {node.op for node in nodes if set(node.inputs) & views} <= {"Gather"}
