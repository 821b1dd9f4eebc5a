"""Matmuls with weights as TensorRT runs them: in the parsed network, and in the programs of a finished plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ...plugins.number_types import FLOAT32, INT4, INT8, tensorrt_name
from ..precision.product_table import BITS, BuiltProduct
from .plan_programs import KERNEL, ONNX_LAYERS, PRODUCT, Program, Step

_BACK = "DEQUANTIZE"
_MOVES = ("SHUFFLE", "IDENTITY", "CAST", "SLICE", "SQUEEZE", "UNSQUEEZE", _BACK)
_EXPERTS = "MOE"
_PLUGIN = "PLUGIN_V3"


def of_network(trt: Any, network: Any) -> tuple[BuiltProduct, ...]:
    """Return all matmuls with weights of a parsed network, in order."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    for layer in layers:
        if layer.type.name == _EXPERTS:
            layer.__class__ = trt.IMoELayer  # gives access to the layer's own attributes in the bindings
    held = _Network.of(layers)
    return tuple(product for layer in layers for product in held.products(layer))


def with_built_types(
    products: Sequence[BuiltProduct], programs: Sequence[Program], by: str, profiles: int = 0
) -> tuple[BuiltProduct, ...]:
    """Update matmuls with what the programs of all profiles show; those not shown stay unchanged.

    A plugin in the middle of the network splits a profile into several programs; they are ordered by profile and equal
    in number. With 0 ``profiles``, each has one.
    """
    readers = [_ProgramReader(program) for program in programs]
    pieces = len(readers) // profiles if profiles and len(readers) % profiles == 0 else 1
    profile_parts = [readers[at : at + pieces] for at in range(0, len(readers), pieces or 1)]
    return tuple(_widest(one, [_shown(one, parts) for parts in profile_parts], by) for one in products)


class _Shown(NamedTuple):
    """A matmul in a program: its storage and compute types, and whether its weight is dequantized to memory first."""

    stored: str
    computed: str
    unpacked: bool


def _shown(product: BuiltProduct, parts: Sequence[_ProgramReader]) -> _Shown | None:
    """Return what the programs of one profile show of a matmul; None if none shows it, or if they differ."""
    known = {shown for part in parts if (shown := part.read(product))}
    return known.pop() if len(known) == 1 else None


def _widest(product: BuiltProduct, shown: Sequence[_Shown | None], by: str) -> BuiltProduct:
    """Return a matmul in the widest types over all profiles, which may differ."""
    known = [one for one in shown if one is not None]
    if not known or len(known) < len(shown):
        return product
    stored = max((one.stored for one in known), key=lambda name: BITS.get(name, 0))
    computed = max((one.computed for one in known), key=lambda name: BITS.get(name, 0))
    return replace(product, stored=stored, computed=computed, unpacked=any(one.unpacked for one in known), by=by)


@dataclass(frozen=True)
class _Network:
    """A parsed network; ``makers`` maps tensor names to the layers that produce them."""

    makers: Mapping[str, Any]

    @classmethod
    def of(cls, layers: Sequence[Any]) -> _Network:
        return cls({layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)})

    def products(self, layer: Any) -> Iterator[BuiltProduct]:
        """Yield the matmuls of one layer: none, one, or one for each weight of stacked experts."""
        kind = layer.type.name
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        if kind == "MATRIX_MULTIPLY":
            factors = [(self.constant(factor), factor) for factor in inputs[:2]]
            for constant, factor in [pair for pair in factors if pair[0] is not None][-1:]:
                other = inputs[0] if factor is inputs[1] else inputs[1]
                yield self._product(layer, constant, self._quantized(factor, other) or tensorrt_name(factor.dtype))
        elif kind == _EXPERTS:
            yield from self._of_experts(layer, inputs)
        elif kind == _PLUGIN:
            yield from self._of_blocks(layer, inputs)

    def _of_blocks(self, layer: Any, inputs: Sequence[Any]) -> Iterator[BuiltProduct]:
        """Yield the matmul of a plugin over MXFP4 blocks: bytes of two codes each, and the exponents of the blocks."""
        constants = [self.constant(tensor) if tensor is not None else None for tensor in inputs]
        for codes, exponents in pairwise(constants):
            if codes is None or exponents is None or tuple(codes.shape)[:-1] != tuple(exponents.shape):
                continue
            if {tensorrt_name(codes.dtype), tensorrt_name(exponents.dtype)} == {INT8.name}:
                found = self._product(layer, codes, FLOAT32.name)
                yield replace(found, stored=INT4.name, numbers=2 * found.numbers)

    def _of_experts(self, layer: Any, inputs: Sequence[Any]) -> Iterator[BuiltProduct]:
        """Yield the gate, up and down matmuls of TensorRT's own expert layer.

        It computes in the codes' type if both factors are dequantized directly before it, and quantizes the input of
        the second matmul to that type. Anything in between makes it compute in the wide type.
        """
        x, gate, up, down = (inputs[index] for index in (0, 3, 4, 5))
        inner = tensorrt_name(layer.quantization_to_type)
        for factor, other in ((gate, self._direct(x)), (up, self._direct(x)), (down, inner)):
            constant = self.constant(factor)
            if constant is not None:
                is_narrow = self._direct(factor) == other == inner
                yield self._product(layer, constant, inner if is_narrow else tensorrt_name(x.dtype))

    def _direct(self, tensor: Any) -> str:
        """Return the type of the codes that are dequantized to ``tensor``; empty if another layer makes it."""
        maker = self.makers.get(tensor.name)
        return tensorrt_name(maker.get_input(0).dtype) if maker is not None and maker.type.name == _BACK else ""

    def constant(self, tensor: Any) -> Any:
        """Return the network constant that ``tensor`` is a moved or scaled copy of, else None."""
        layer = self.makers.get(tensor.name)
        while layer is not None and layer.type.name in _MOVES:
            layer = self.makers.get(layer.get_input(0).name)
        return layer.get_output(0) if layer is not None and layer.type.name == "CONSTANT" else None

    def _product(self, layer: Any, constant: Any, computed: str) -> BuiltProduct:
        weight = self.makers[constant.name].name
        onnx_names = ONNX_LAYERS.findall(str(layer.metadata))  # TensorRT renames layers with duplicate names
        return BuiltProduct(
            onnx_names[0] if onnx_names else layer.name,
            weight,
            tensorrt_name(constant.dtype),
            computed,
            math.prod(constant.shape),
        )

    def _quantized(self, *factors: Any) -> str:
        """Return the type of the codes that all factors are dequantized from; empty if there is none."""
        kinds = {self._codes(factor) for factor in factors}
        return kinds.pop() if len(kinds) == 1 else ""

    def _codes(self, tensor: Any) -> str:
        layer = self.makers.get(tensor.name)
        while layer is not None and layer.type.name in _MOVES:
            if layer.type.name == _BACK:
                return tensorrt_name(layer.get_input(0).dtype)
            layer = self.makers.get(layer.get_input(0).name)
        return ""


class _ProgramReader:
    """Finds matmuls in one program. ``sources``: the largest constant that each constant tensor is computed from."""

    def __init__(self, program: Program) -> None:
        self.tensors = program.tensors
        self.sources = {name: name for name, held in program.tensors.items() if held.constant}
        self.unpacked: set[str] = set()
        self.steps: dict[str, list[Step]] = {}
        for step in program.steps:
            self._follow(step)
            for layer in step.layers:
                self.steps.setdefault(layer, []).append(step)

    def read(self, product: BuiltProduct) -> _Shown | None:
        """Return storage and compute types of a weight, and whether it is dequantized first; None if not visible."""
        steps = self.steps.get(product.layer, [])
        shown = [self._product(step, product) for step in steps if step.kind == PRODUCT]
        shown = [one for one in shown if one] or [self._kernel(step, product) for step in steps if step.kind == KERNEL]
        return next((one for one in shown if one and one.stored in BITS and one.computed in BITS), None)

    def _product(self, step: Step, product: BuiltProduct) -> _Shown | None:
        """Return what a matmul step shows if one of its factors is the constant weight."""
        factors = step.reads[:2]
        factor = max((name for name in factors if name in self.sources), key=self._numbers, default="")
        if not factor or self._numbers(factor) < product.numbers:
            return None
        kinds = [self.tensors[name].dtype if name in self.tensors else "" for name in factors]
        computed = max(kinds, key=lambda name: BITS.get(name, 99))  # an unknown type carries no information
        return _Shown(self.tensors[self.sources[factor]].dtype, computed, factor in self.unpacked)

    def _kernel(self, step: Step, product: BuiltProduct) -> _Shown | None:
        """Return what a generated kernel shows, which reads the weight and may fuse other matmuls.

        Matmuls with a single row become such kernels. Their accumulation type is not visible; their input type is the
        parsed one.
        """
        weights = [name for name in step.reads if name in self.sources and self._numbers(name) >= product.numbers]
        kinds = {self.tensors[self.sources[name]].dtype for name in weights}
        unpacked = {self.tensors[self.sources[name]].dtype for name in weights if name in self.unpacked}
        if not kinds:
            return None
        stored = product.stored if product.stored in kinds else max(kinds, key=lambda name: BITS.get(name, 0))
        return _Shown(stored, product.computed, stored in unpacked)

    def _follow(self, step: Step) -> None:
        """Track constants through a step: its result is constant too, and in memory unless the step is fused."""
        if not step.reads or not all(name in self.sources for name in step.reads):
            return
        source = max((self.sources[name] for name in step.reads), key=self._numbers)
        for name in step.writes:
            if name not in self.sources:
                self.sources[name] = source
                if not step.fused:
                    self.unpacked.add(name)

    def _numbers(self, name: str) -> int:
        return self.tensors[self.sources.get(name, name)].numbers
