"""``SparseExperts`` in standard opset-24 ops: every expert computes every token, and the scores select.

Dense on purpose: it copies no weights, has no loop, and runs on every backend. A backend with routed experts lowers the
op to those instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...number_types import E4M3, INT8

# The types that inner may be rounded to, with their ONNX numbers.
CODES: Mapping[str, int] = {kind.numpy: kind.onnx for kind in (E4M3, INT8)}

_HIDDEN = """
  gate_up_turned = Transpose<perm = [0, 2, 1]>(gate_up)
  product = MatMul(x, gate_up_turned)
"""

_HIDDEN_BIAS = """
  middle = Constant<value_ints = [1]>()
  gate_up_shift = Unsqueeze(gate_up_bias, middle)
  hidden = Add(product, gate_up_shift)
"""

_HIDDEN_PLAIN = """
  hidden = Identity(product)
"""

_HALVES = """
  last = Constant<value_ints = [-1]>()
  all = Constant<value_ints = [9223372036854775807]>()
  two = Constant<value_ints = [2]>()
  even = Constant<value_ints = [0]>()
  odd = Constant<value_ints = [1]>()
  gate = Slice(hidden, even, all, last, two)
  up = Slice(hidden, odd, all, last, two)
"""

_LIMITED = """
  limit_32 = Constant<value_float: float = @{prefix}limit>()
  limit = CastLike(limit_32, x)
  lowest = Neg(limit)
  gate_in = Min({gate}, limit)
  up_in = Clip({up}, lowest, limit)
"""

_UNLIMITED = """
  gate_in = Identity({gate})
  up_in = Identity({up})
"""

# Infinite where the cube overflows 16 bits: the sigmoid is 0 or 1 there anyway.
_CUBIC_GATE = """
  cubic_32 = Constant<value_float: float = @cubic>()
  cubic = CastLike(cubic_32, x)
  square = Mul(gate_in, gate_in)
  cube = Mul(square, gate_in)
  addend = Mul(cube, cubic)
  bent = Add(gate_in, addend)
"""

_SWIGLU = """
  alpha_32 = Constant<value_float: float = @{prefix}alpha>()
  alpha = CastLike(alpha_32, x)
  beta_32 = Constant<value_float: float = @{prefix}beta>()
  beta = CastLike(beta_32, x)
  steep = Mul({bent}, alpha)
  open = Sigmoid(steep)
  swish = Mul(gate_in, open)
  lifted = Add(up_in, beta)
  inner = Mul(lifted, swish)
"""

# A Q/DQ pair in float32, so that the scale keeps its precision in a 16-bit graph.
_ROUNDED = """
  inner_scale_32 = Constant<value_float: float = @inner_scale>()
  inner_32 = Cast<to = 1>(inner)
  codes = QuantizeLinear<output_dtype = {codes}>(inner_32, inner_scale_32)
  means = DequantizeLinear(codes, inner_scale_32)
  factor = CastLike(means, x)
"""

_UNROUNDED = """
  factor = Identity(inner)
"""

_BACK = """
  down_turned = Transpose<perm = [0, 2, 1]>(down)
  back = MatMul(factor, down_turned)
"""

_BACK_BIAS = """
  down_shift = Unsqueeze(down_bias, middle)
  each = Add(back, down_shift)
"""

_BACK_PLAIN = """
  each = Identity(back)
"""

_COMBINE = """
  tokens = Shape<start=0, end=1>(x)
  count = Shape<start=0, end=1>({stack})
  by_expert = Concat<axis=0>(tokens, count)
  none = ConstantOfShape(by_expert)
  none_typed = CastLike(none, x)
  share = ScatterElements<axis=1>(none_typed, {experts}, {scores})
  share_turned = Transpose<perm = [1, 0]>(share)
  share_wide = Unsqueeze(share_turned, last)
  weighted = Mul({each}, share_wide)
"""

_SUM = """
  first = Constant<value_ints = [0]>()
  y = ReduceSum<keepdims=0>(weighted, first)
"""


def gating(gate: str, up: str, *, limited: bool, cubic: bool = False, prefix: str = "") -> str:
    """Return the nodes from ``gate`` and ``up`` to ``inner``; attribute names start with ``prefix``. Uses x."""
    text = (_LIMITED if limited else _UNLIMITED) + (_CUBIC_GATE if cubic else "") + _SWIGLU
    return text.format(gate=gate, up=up, prefix=prefix, bent="bent" if cubic else "gate_in")


def words_of(attributes: Mapping[str, Any], *, bias: bool) -> list[str]:
    """Return the words for the form of the experts, for the overload of a body."""
    return ["bias"] * bias + ["limited"] * bool(attributes["limit"]) + ["cubic"] * bool(attributes["cubic"])


def combining(stack: str, experts: str, scores: str, each: str) -> str:
    """Return the nodes from the outputs of ``each`` expert of the ``stack`` to ``weighted``, by token.

    Uses x and last.
    """
    return _COMBINE.format(stack=stack, experts=experts, scores=scores, each=each)


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for these attributes; its overload names the form."""
    bias, codes = "gate_up_bias" in present, str(attributes["inner_codes"])
    overload = "_".join(["dense", *words_of(attributes, bias=bias), *([codes] if codes else [])])
    inputs = "x, experts, scores, gate_up, down" + ", gate_up_bias, down_bias" * bias
    nodes = [
        _HIDDEN,
        _HIDDEN_BIAS if bias else _HIDDEN_PLAIN,
        _HALVES,
        gating("gate", "up", limited=bool(attributes["limit"]), cubic=bool(attributes["cubic"])),
        _ROUNDED.format(codes=CODES[codes]) if codes else _UNROUNDED,
        _BACK,
        _BACK_BIAS if bias else _BACK_PLAIN,
        combining("gate_up", "experts", "scores", "each"),
        _SUM,
    ]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{overload}">
SparseExperts <alpha, beta, limit, cubic{", inner_scale" * bool(codes)}> ({inputs}) => (y) {{{"".join(nodes)}}}"""
