"""Each product with weights as TensorRT has it: in its network once parsed, and in the programs of a finished plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...plugins.numbers import BFLOAT16, E4M3, E8M0, FLOAT16, FLOAT32, INT4, INT8, UINT8
from ...plugins.tensorrt.dtypes import to_name
from .program import KERNEL, ONNX_LAYERS, PRODUCT, Program, Step

# A type that is not among them tells nothing of a product.
_BITS = {kind.name: kind.bits for kind in (FLOAT32, FLOAT16, BFLOAT16, E4M3, E8M0, INT8, UINT8, INT4)}
_MOVES = ("SHUFFLE", "IDENTITY", "CAST", "SLICE", "SQUEEZE", "UNSQUEEZE", "DEQUANTIZE")
_STACKED = ("MOE", "PLUGIN_V3")


@dataclass(frozen=True)
class BuiltMatmul:
    """A product of the node ``layer`` with ``numbers`` weights. Types go by their ONNX names in small letters.

    ``computed`` is the type of both factors where they are multiplied. ``unpacked``: a kernel of its own writes the
    weights to memory in that type before every product. ``by`` is who says so: ``network`` (as parsed), ``plan`` (its
    programs) or ``inspector``.
    """

    layer: str
    weight: str
    stored: str
    computed: str
    numbers: int
    unpacked: bool = False
    by: str = "network"


def bytes_of(stored: str, numbers: int) -> int:
    """What so many take in a type."""
    return numbers * _BITS.get(stored, 8) // 8


def of_network(network: Any) -> tuple[BuiltMatmul, ...]:
    """Every product with weights of a parsed network, in its order."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    held = _Network.of(layers)
    return tuple(found for layer in layers for found in held.products(layer))


def as_built(
    found: Sequence[BuiltMatmul], programs: Sequence[Program], by: str, profiles: int = 0
) -> tuple[BuiltMatmul, ...]:
    """What the programs say of the same products, all profiles together; one that they do not show stays as it is.

    Where a plugin of ours stands in the middle, a profile runs several programs: as many as every other, in turn. With
    0 ``profiles`` each has one.
    """
    readers = [_Reader(program) for program in programs]
    pieces = len(readers) // profiles if profiles and len(readers) % profiles == 0 else 1
    each = [readers[at : at + pieces] for at in range(0, len(readers), pieces or 1)]
    return tuple(_widest(one, [_said(one, parts) for parts in each], by) for one in found)


def _said(found: BuiltMatmul, parts: Sequence[_Reader]) -> tuple[str, str, bool] | None:
    """Of a product by the parts of one profile; None where none or two that differ show it."""
    known = {said for part in parts if (said := part.read(found))}
    return known.pop() if len(known) == 1 else None


def _widest(found: BuiltMatmul, said: Sequence[tuple[str, str, bool] | None], by: str) -> BuiltMatmul:
    """One profile may do it otherwise: the widest types count."""
    known = [each for each in said if each is not None]
    if not known or len(known) < len(said):
        return found
    stored = max((each[0] for each in known), key=lambda name: _BITS.get(name, 0))
    computed = max((each[1] for each in known), key=lambda name: _BITS.get(name, 0))
    return replace(found, stored=stored, computed=computed, unpacked=any(each[2] for each in known), by=by)


@dataclass(frozen=True)
class _Network:
    """``makers`` are layers by the name of what they make."""

    makers: Mapping[str, Any]

    @classmethod
    def of(cls, layers: Sequence[Any]) -> _Network:
        return cls({layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)})

    def products(self, layer: Any) -> Iterator[BuiltMatmul]:
        """Of one layer: none, one, or of a stack of experts one for each of its weights."""
        kind = layer.type.name
        inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
        if kind == "MATRIX_MULTIPLY":
            weights = [(self.constant(each), each) for each in inputs[:2]]
            for constant, factor in [each for each in weights if each[0] is not None][-1:]:
                other = inputs[0] if factor is inputs[1] else inputs[1]
                yield self._product(layer, constant, self._narrow(factor, other) or to_name(factor.dtype))
        elif kind in _STACKED:
            for each in inputs:
                constant = self.constant(each) if each is not None else None
                if constant is not None and len(constant.shape) > 2:
                    yield self._product(layer, constant, self._narrow(each, inputs[0]) or to_name(inputs[0].dtype))

    def constant(self, tensor: Any) -> Any:
        """What ``tensor`` is moved and scaled from, if that is a constant of the network, else None."""
        layer = self.makers.get(tensor.name)
        while layer is not None and layer.type.name in _MOVES:
            layer = self.makers.get(layer.get_input(0).name)
        return layer.get_output(0) if layer is not None and layer.type.name == "CONSTANT" else None

    def _product(self, layer: Any, constant: Any, computed: str) -> BuiltMatmul:
        weight = self.makers[constant.name].name
        named = ONNX_LAYERS.findall(str(layer.metadata))  # TensorRT renames what is called as something else is
        return BuiltMatmul(
            named[0] if named else layer.name, weight, to_name(constant.dtype), computed, math.prod(constant.shape)
        )

    def _narrow(self, *factors: Any) -> str:
        """The type of the codes that all are dequantised from."""
        kinds = {self._codes(factor) for factor in factors}
        return kinds.pop() if len(kinds) == 1 else ""

    def _codes(self, tensor: Any) -> str:
        layer = self.makers.get(tensor.name)
        while layer is not None and layer.type.name in _MOVES:
            if layer.type.name == "DEQUANTIZE":
                return to_name(layer.get_input(0).dtype)
            layer = self.makers.get(layer.get_input(0).name)
        return ""


class _Reader:
    """Finds products in one program. ``sources``: the largest constant that each constant tensor is computed from."""

    def __init__(self, program: Program) -> None:
        self.tensors = program.tensors
        self.sources = {name: name for name, held in program.tensors.items() if held.constant}
        self.unpacked: set[str] = set()
        self.steps: dict[str, list[Step]] = {}
        for step in program.steps:
            self._follow(step)
            for layer in step.layers:
                self.steps.setdefault(layer, []).append(step)

    def read(self, found: BuiltMatmul) -> tuple[str, str, bool] | None:
        """How the weight is stored and multiplied, and whether it is unpacked before; None if the program hides it."""
        steps = self.steps.get(found.layer, [])
        said = [self._product(step, found) for step in steps if step.kind == PRODUCT]
        said = [each for each in said if each] or [self._kernel(step, found) for step in steps if step.kind == KERNEL]
        return next((each for each in said if each and each[0] in _BITS and each[1] in _BITS), None)

    def _product(self, step: Step, found: BuiltMatmul) -> tuple[str, str, bool] | None:
        """A product of two factors, one of them constant."""
        factors = step.reads[:2]
        factor = max((name for name in factors if name in self.sources), key=self._numbers, default="")
        if not factor or self._numbers(factor) < found.numbers:
            return None
        kinds = [self.tensors[name].dtype if name in self.tensors else "" for name in factors]
        computed = max(kinds, key=lambda name: _BITS.get(name, 99))  # an unknown one tells nothing
        return self.tensors[self.sources[factor]].dtype, computed, factor in self.unpacked

    def _kernel(self, step: Step, found: BuiltMatmul) -> tuple[str, str, bool] | None:
        """One generated kernel that reads the weight and does all the rest, of other products as well. It is what
        becomes of a product with a single row; in which type it adds is nowhere said, and what enters is as parsed.
        """
        weights = [name for name in step.reads if name in self.sources and self._numbers(name) >= found.numbers]
        kinds = {self.tensors[self.sources[name]].dtype for name in weights}
        unpacked = {self.tensors[self.sources[name]].dtype for name in weights if name in self.unpacked}
        if not kinds:
            return None
        stored = found.stored if found.stored in kinds else max(kinds, key=lambda name: _BITS.get(name, 0))
        return stored, found.computed, stored in unpacked

    def _follow(self, step: Step) -> None:
        """What is computed from nothing but constants is one; not fused, it is written to memory."""
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
