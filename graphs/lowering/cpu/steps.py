"""What a node becomes as a step of a ``Stretch``: a line of its program, or the reason why it cannot be one.

One class a kind of node, in the order of ``plugins/cpu/stretch/``: each looks at a node, complains of what its kernel
does not do, and spells the rest. A float that a step makes is float32; other types come from outside of a stretch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from ....plugins.op_spec import DOMAIN
from ....plugins.ops import OPS
from ...names import CONTRIB

STRETCH = "Stretch"
_MOST_PARTS = 8  # of a Concat
PROGRAM = "program"  # its attribute


@dataclass(frozen=True)
class Spelled:
    """A step: the inputs that its kernel is given (the first ``inputs`` of the node's) and its attributes, as text."""

    inputs: int
    attributes: Mapping[str, str] = field(default_factory=dict)


class StepRule:
    """A kind of node that can be a step: by operator and domain."""

    ops: Sequence[str] = ()
    domain = ""

    def complaint(self, node: ir.Node) -> str | None:
        """Why the node cannot be a step; None if it can."""
        del node
        return None

    def spelled(self, node: ir.Node) -> Spelled:
        """The step of a node that nothing is said against."""
        return Spelled(len(node.inputs))


class Ours(StepRule):
    """Ops of ours whose kernel may be a step; its weights must be constants, which the spec says to be packed."""

    domain = DOMAIN

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of an op that is run by other means here."""
        return None if OPS[node.op_type].in_stretches else "its kernel is a node of its own"

    def spelled(self, node: ir.Node) -> Spelled:
        """Every attribute, with the defaults of the spec."""
        given = {name: attribute.value for name, attribute in node.attributes.items()}
        return Spelled(len(node.inputs), {n: text_of(v) for n, v in OPS[node.op_type].check_attributes(given).items()})


class OfTwo(StepRule):
    """Sums and products of two streams, or of a stream and something that meets each of its tokens."""

    ops = ("Add", "Sub", "Mul", "Div")


class OfOne(StepRule):
    """Activations, number by number."""

    ops = ("Sigmoid", "Tanh", "Gelu")

    def complaint(self, node: ir.Node) -> str | None:
        """GELU is that by the tangent."""
        if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") != "tanh":
            return "the kernel has GELU by the tangent only"
        return None


class Norm(StepRule):
    """``RMSNormalization`` over the last dimension."""

    ops = ("RMSNormalization",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of another dimension, and of a weight that is not one number for each of it."""
        if node.attributes.get_int("axis", -1) != -1:
            return "it is not over the last dimension"
        weight = node.inputs[1]
        if weight is None or weight.shape is None or len(weight.shape) != 1:
            return "its weight is not one number for each of the last dimension"
        return None

    def spelled(self, node: ir.Node) -> Spelled:
        """With its epsilon."""
        return Spelled(2, {"epsilon": text_of(node.attributes.get_float("epsilon", 1e-5))})


class NormOfSum(Norm):
    """ONNX Runtime's norm of a sum, which it hands on as well."""

    ops, domain = ("SkipSimplifiedLayerNormalization",), CONTRIB

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of a bias."""
        return "it adds a bias" if len(node.inputs) > 3 and node.inputs[3] is not None else None

    def spelled(self, node: ir.Node) -> Spelled:
        """With its epsilon."""
        return Spelled(3, {"epsilon": text_of(node.attributes.get_float("epsilon", 1e-12))})


class Rotary(StepRule):
    """``RotaryEmbedding`` of heads ``[B, H, S, D]`` by tables of all positions."""

    ops = ("RotaryEmbedding",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of other forms."""
        x = node.inputs[0]
        if x is None or x.shape is None or len(x.shape) != 4:
            return "it is not of [B, H, S, D]"
        if len(node.inputs) != 4 or node.inputs[3] is None:
            return "it has no positions"
        if node.attributes.get_int("interleaved", 0):
            return "pairs that are turned lie side by side"
        return None

    def spelled(self, node: ir.Node) -> Spelled:
        """How many numbers of a head are turned follows from the tables."""
        return Spelled(4)


class Concat(StepRule):
    """``Concat`` of the last dimension."""

    ops = ("Concat",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of another dimension, and of more parts than the step has."""
        if not _is_of_last(node):
            return "it is not of the last dimension"
        return None if 2 <= len(node.inputs) <= _MOST_PARTS else f"it has no 2 to {_MOST_PARTS} parts"


class Gather(StepRule):
    """``Gather`` of rows, by numbers from outside."""

    ops = ("Gather",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of another dimension, and of rows that are counted otherwise."""
        rows = node.inputs[1]
        if node.attributes.get_int("axis", 0) != 0:
            return "it is not of the first dimension"
        return None if rows is not None and rows.dtype == ir.DataType.INT64 else "its rows are not numbered in int64"


class Split(StepRule):
    """``Split`` of the last dimension: no numbers are moved."""

    ops = ("Split",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of another dimension, and of sizes that are not known."""
        if not _is_of_last(node):
            return "it is not of the last dimension"
        return None if len(node.inputs) > 1 and _constant(node.inputs[1]) is not None else "its sizes are not constants"

    def spelled(self, node: ir.Node) -> Spelled:
        """With the sizes."""
        return Spelled(1, {"sizes": text_of(_constant(node.inputs[1]))})


class Reshape(StepRule):
    """``Reshape``: no numbers are moved, unless they lie apart."""

    ops = ("Reshape",)

    def spelled(self, node: ir.Node) -> Spelled:
        """With the shape if it is a constant; else it is read when a stretch begins."""
        zero = {"allowzero": text_of(node.attributes.get_int("allowzero", 0))}
        shape = _constant(node.inputs[1])
        return Spelled(2, zero) if shape is None else Spelled(1, zero | {"shape": text_of(shape)})


class Transpose(StepRule):
    """``Transpose`` of all dimensions but the last: no numbers are moved."""

    ops = ("Transpose",)

    def complaint(self, node: ir.Node) -> str | None:
        """Complain of a last dimension that is moved."""
        order = node.attributes.get_ints("perm", [])
        return None if order and order[-1] == len(order) - 1 else "it moves the last dimension"

    def spelled(self, node: ir.Node) -> Spelled:
        """With the order."""
        return Spelled(1, {"perm": text_of(list(node.attributes.get_ints("perm", [])))})


class Nothing(StepRule):
    """``Identity``."""

    ops = ("Identity",)


RULES: Sequence[StepRule] = (
    OfTwo(), OfOne(), Norm(), NormOfSum(), Rotary(),
    Concat(), Gather(), Split(), Reshape(), Transpose(), Nothing(),
)  # fmt: skip
_OURS = Ours()
_BY_OP = {(rule.domain, op): rule for rule in RULES for op in rule.ops}
VIEWS = (*Split.ops, *Reshape.ops, *Transpose.ops, *Nothing.ops)


def rule_of(node: ir.Node) -> StepRule | None:
    """The rule for a kind of node, if there is one."""
    return _OURS if node.domain == DOMAIN else _BY_OP.get((node.domain, node.op_type))


def steps_of(node: onnx.NodeProto) -> list[tuple[str, str]]:
    """Domain and operator of every step of a node, which has none unless it is a ``Stretch``."""
    programs = [attribute.s.decode() for attribute in node.attribute if attribute.name == PROGRAM]
    if (node.domain, node.op_type) != (DOMAIN, STRETCH) or not programs:
        return []
    domains = dict.fromkeys(OPS, DOMAIN) | {op: domain for domain, op in _BY_OP}
    return [(domains[line.split()[0]], line.split()[0]) for line in programs[0].splitlines()[:-1]]


def text_of(value: Any) -> str:
    """An attribute as a program has it: floats by their bits, lists by commas."""
    if isinstance(value, float):
        return f"#{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _is_of_last(node: ir.Node) -> bool:
    """Whether the axis of a node is the last of its first input."""
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    return axis == -1 or (x is not None and x.shape is not None and axis + 1 == len(x.shape))


def _constant(value: ir.Value | None) -> list[int] | None:
    """The whole numbers of a constant list."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(each) for each in tensor.numpy().reshape(-1)]
