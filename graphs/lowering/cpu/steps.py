"""Rules that turn a node into a step of a ``FusedRegion``: a line of its program, or the reason why it cannot be one.

One class per kind of node, in the order of ``plugins/cpu/fused_region/``: each checks a node against the limits of its
kernel, and encodes it. Floats computed by a step are float32; other types come from outside the fused region.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ....plugins.op_spec import DOMAIN
from ....plugins.ops import OPS
from ...fused_region_program import NORM_OF_SUM
from ...names import CONTRIB

_MAX_PARTS = 8  # of a Concat


@dataclass(frozen=True)
class EncodedStep:
    """A step: the inputs of its kernel (the first ``inputs`` of the node's) and its attributes, as text."""

    inputs: int
    attributes: Mapping[str, str] = field(default_factory=dict)


class StepRule:
    """A kind of node that can be a step, by operator and domain."""

    ops: Sequence[str] = ()
    domain = ""

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Return the reason why the node cannot be a step; None if it can."""
        del node
        return None

    def encode(self, node: ir.Node) -> EncodedStep:
        """Return the step for a supported node."""
        return EncodedStep(len(node.inputs))


class CustomOp(StepRule):
    """Ops of this project whose kernel can be a step; weights must be constants that the spec marks as packed."""

    domain = DOMAIN

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject an op that is not supported in regions."""
        return None if OPS[node.op_type].in_fused_regions else "the kernel of the op is a separate node"

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode every attribute, with the spec's defaults."""
        given = {name: attribute.value for name, attribute in node.attributes.items()}
        return EncodedStep(
            len(node.inputs), {n: text_of(v) for n, v in OPS[node.op_type].check_attributes(given).items()}
        )


class BinaryOp(StepRule):
    """Sums and products of two streams, or of a stream and a value that is broadcast over its tokens."""

    ops = ("Add", "Sub", "Mul", "Div")


class UnaryOp(StepRule):
    """Elementwise activations."""

    ops = ("Sigmoid", "Tanh", "Gelu")

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject any GELU but the tanh approximation."""
        if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") != "tanh":
            return "the kernel supports only the tanh approximation of GELU"
        return None


class Norm(StepRule):
    """``RMSNormalization`` over the last dimension."""

    ops = ("RMSNormalization",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject another dimension, and a weight that is not one number per element of it."""
        if node.attributes.get_int("axis", -1) != -1:
            return "the norm is not over the last dimension"
        weight = node.inputs[1]
        if weight is None or weight.shape is None or len(weight.shape) != 1:
            return "the weight does not have one value per element of the last dimension"
        return None

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode its epsilon."""
        return EncodedStep(2, {"epsilon": text_of(node.attributes.get_float("epsilon", 1e-5))})


class NormOfSum(Norm):
    """ONNX Runtime's norm of a sum, which also outputs the sum."""

    ops, domain = (NORM_OF_SUM,), CONTRIB

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject a bias."""
        return "the op adds a bias" if len(node.inputs) > 3 and node.inputs[3] is not None else None

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode its epsilon."""
        return EncodedStep(3, {"epsilon": text_of(node.attributes.get_float("epsilon", 1e-12))})


class Rotary(StepRule):
    """``RotaryEmbedding`` of heads ``[B, H, S, D]`` with tables of all positions."""

    ops = ("RotaryEmbedding",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject other forms."""
        x = node.inputs[0]
        if x is None or x.shape is None or len(x.shape) != 4:
            return "the input is not [B, H, S, D]"
        if len(node.inputs) != 4 or node.inputs[3] is None:
            return "the op has no positions"
        if node.attributes.get_int("interleaved", 0):
            return "the op rotates adjacent pairs"
        return None

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode no attributes: the tables determine how much of a head is rotated."""
        return EncodedStep(4)


class Concat(StepRule):
    """``Concat`` along the last dimension."""

    ops = ("Concat",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject another dimension, and more parts than the step supports."""
        if not _is_of_last(node):
            return "the operation is not along the last dimension"
        return None if 2 <= len(node.inputs) <= _MAX_PARTS else f"the op does not have 2 to {_MAX_PARTS} parts"


class Gather(StepRule):
    """``Gather`` of rows, with indices from outside the region."""

    ops = ("Gather",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject another dimension, and indices of another type."""
        rows = node.inputs[1]
        if node.attributes.get_int("axis", 0) != 0:
            return "the operation is not along the first dimension"
        return None if rows is not None and rows.dtype == ir.DataType.INT64 else "the indices are not int64"


class Split(StepRule):
    """``Split`` along the last dimension, without copying."""

    ops = ("Split",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject another dimension, and unknown sizes."""
        if not _is_of_last(node):
            return "the operation is not along the last dimension"
        return None if len(node.inputs) > 1 and _constant(node.inputs[1]) is not None else "the sizes are not constants"

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode the sizes."""
        return EncodedStep(1, {"sizes": text_of(_constant(node.inputs[1]))})


class Reshape(StepRule):
    """``Reshape``, without copying unless the values are not contiguous."""

    ops = ("Reshape",)

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode the shape if it is constant; otherwise it is read when the region starts."""
        zero = {"allowzero": text_of(node.attributes.get_int("allowzero", 0))}
        shape = _constant(node.inputs[1])
        return EncodedStep(2, zero) if shape is None else EncodedStep(1, zero | {"shape": text_of(shape)})


class Transpose(StepRule):
    """``Transpose`` of all dimensions but the last, without copying."""

    ops = ("Transpose",)

    def unsupported_reason(self, node: ir.Node) -> str | None:
        """Reject a permutation of the last dimension."""
        order = node.attributes.get_ints("perm", [])
        return None if order and order[-1] == len(order) - 1 else "the op moves the last dimension"

    def encode(self, node: ir.Node) -> EncodedStep:
        """Encode the permutation."""
        return EncodedStep(1, {"perm": text_of(list(node.attributes.get_ints("perm", [])))})


class NoOp(StepRule):
    """``Identity``."""

    ops = ("Identity",)


RULES: Sequence[StepRule] = (
    BinaryOp(), UnaryOp(), Norm(), NormOfSum(), Rotary(),
    Concat(), Gather(), Split(), Reshape(), Transpose(), NoOp(),
)  # fmt: skip
_CUSTOM_OP = CustomOp()
_BY_OP = {(rule.domain, op): rule for rule in RULES for op in rule.ops}
VIEWS = (*Split.ops, *Reshape.ops, *Transpose.ops, *NoOp.ops)


def rule_of(node: ir.Node) -> StepRule | None:
    """Return the rule for a kind of node, if there is one."""
    return _CUSTOM_OP if node.domain == DOMAIN else _BY_OP.get((node.domain, node.op_type))


def text_of(value: Any) -> str:
    """Return an attribute in program syntax: floats by their bits, lists separated by commas."""
    if isinstance(value, float):
        return f"#{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _is_of_last(node: ir.Node) -> bool:
    """Return True if the node's axis is the last of its first input."""
    x, axis = node.inputs[0], node.attributes.get_int("axis", 0)
    return axis == -1 or (x is not None and x.shape is not None and axis + 1 == len(x.shape))


def _constant(value: ir.Value | None) -> list[int] | None:
    """Return the integers of a constant list."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(each) for each in tensor.numpy().reshape(-1)]
