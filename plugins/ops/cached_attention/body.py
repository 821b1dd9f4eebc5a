"""``CachedAttention`` in standard opset-24 ops: two TensorScatter, then one of three forms of attention.

Full: Attention-24, causal by ``nonpad_kv_seqlen``. Window: Attention-24 with a bool mask (opset 24 knows no window).
Sinks: spelled out in float32, because Attention has no extra softmax column. Each form is an overload of one function.
Caches of E4M3 codes are scattered as float32, to which and back they go without loss: ONNX Runtime scatters no FP8.
Cast targets: 1 float32, 17 float8e4m3fn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import BuildError

_WRITE = """
  k_new = CastLike(k, k_cache)
  v_new = CastLike(v, v_cache)
  k_out = TensorScatter<axis=2>(k_cache, k_new, start)
  v_out = TensorScatter<axis=2>(v_cache, v_new, start)
  k_all = CastLike(k_out, q)
  v_all = CastLike(v_out, q)
"""

_WRITE_CODES = """
  {x}_scale = Constant<value_float: float = @{x}_scale>()
  {x}_new_32 = Cast<to=1>({x})
  {x}_new_codes = QuantizeLinear<output_dtype=17>({x}_new_32, {x}_scale)
  {x}_new = Cast<to=1>({x}_new_codes)
  {x}_old = Cast<to=1>({x}_cache)
  {x}_codes = TensorScatter<axis=2>({x}_old, {x}_new, start)
  {x}_out = Cast<to=17>({x}_codes)
  {x}_all_32 = Mul({x}_codes, {x}_scale)
  {x}_all = CastLike({x}_all_32, q)
"""

_QUERIES = """
  queries = Shape<start=2, end=3>(q)
"""

_FULL = """
  valid = Add(start, queries)
  heads_first = Attention<scale: float = @scale, softcap: float = @softcap, is_causal=1>
    (q, k_all, v_all, "", "", "", valid)
"""

_MASK = """
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  first = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  queries_0 = Squeeze(queries, zero)
  s = Range(first, queries_0, step)
  slots = Shape<start=2, end=3>(k_cache)
  slots_0 = Squeeze(slots, zero)
  slot = Range(first, slots_0, step)
  start_2 = Unsqueeze(start, one)
  position_2 = Add(start_2, s)
  mask_axes = Constant<value_ints = [1, 3]>()
  position = Unsqueeze(position_2, mask_axes)
  past = LessOrEqual(slot, position)
"""

_WINDOW = """
  window = Constant<value_int: int = @window>()
  too_old = Sub(position, window)
  recent = Greater(slot, too_old)
  seen = And(past, recent)
"""

_NO_WINDOW = """
  seen = Identity(past)
"""

_MASKED = """
  heads_first = Attention<scale: float = @scale, softcap: float = @softcap>(q, k_all, v_all, seen)
"""

_SCORES = """
  # Query heads of one group lie side by side, so [B, Hq, S, D] reads as [B, Hkv, G*S, D].
  same = Constant<value_ints = [0]>()
  rest = Constant<value_ints = [-1]>()
  key_heads = Shape<start=1, end=2>(k_cache)
  heads = Shape<start=1, end=2>(q)
  size = Shape<start=3, end=4>(q)
  grouped = Concat<axis=0>(same, key_heads, rest, size)
  q_32 = Cast<to=1>(q)
  k_32 = Cast<to=1>(k_all)
  v_32 = Cast<to=1>(v_all)
  q_grouped = Reshape(q_32, grouped)
  k_turned = Transpose<perm = [0, 1, 3, 2]>(k_32)
  products = MatMul(q_grouped, k_turned)
  scale = Constant<value_float: float = @scale>()
  scaled = Mul(products, scale)
  per_head = Concat<axis=0>(same, heads, queries, slots)
  scores = Reshape(scaled, per_head)
"""

_SOFTCAP = """
  softcap = Constant<value_float: float = @softcap>()
  over_cap = Div(scores, softcap)
  squashed = Tanh(over_cap)
  capped = Mul(squashed, softcap)
"""

_NO_SOFTCAP = """
  capped = Identity(scores)
"""

_SINKS = """
  never = Constant<value_float = -3.0e38>()
  masked = Where(seen, capped, never)
  sink_shape = Constant<value_ints = [1, -1, 1, 1]>()
  sinks_32 = Cast<to=1>(sinks)
  sink = Reshape(sinks_32, sink_shape)
  last_axis = Constant<value_ints = [3]>()
  top_score = ReduceMax<keepdims=1>(masked, last_axis)
  top = Max(top_score, sink)
  below_top = Sub(masked, top)
  weights = Exp(below_top)
  sink_below_top = Sub(sink, top)
  sink_weight = Exp(sink_below_top)
  key_weight = ReduceSum<keepdims=1>(weights, last_axis)
  total = Add(key_weight, sink_weight)
  shares = Div(weights, total)
  shares_shape = Concat<axis=0>(same, key_heads, rest, slots)
  shares_grouped = Reshape(shares, shares_shape)
  mixed = MatMul(shares_grouped, v_32)
  out_shape = Concat<axis=0>(same, heads, queries, size)
  heads_first_32 = Reshape(mixed, out_shape)
  heads_first = CastLike(heads_first_32, q)
"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """The text of the ONNX model-local function for these attributes; its overload names the form."""
    window, softcap, sinks = bool(attributes["window"]), bool(attributes["softcap"]), "sinks" in present
    if sinks:
        overload = "sinks" + "_window" * window + "_softcap" * softcap
        mask = _MASK + (_WINDOW if window else _NO_WINDOW)
        attend = mask + _SCORES + (_SOFTCAP if softcap else _NO_SOFTCAP) + _SINKS
    elif window:
        overload, attend = "window", _MASK + _WINDOW + _MASKED
    else:
        overload, attend = "full", _FULL
    inputs = "q, k, v, k_cache, v_cache, start" + ", sinks" * sinks
    names, write = "scale, window, softcap", _WRITE
    if bool(attributes["k_scale"]) != bool(attributes["v_scale"]):
        raise BuildError("CachedAttention: k_scale and v_scale go together", why="both caches hold codes or neither")
    if attributes["k_scale"]:
        names, overload = f"{names}, k_scale, v_scale", f"fp8_{overload}"
        write = _WRITE_CODES.format(x="k") + _WRITE_CODES.format(x="v")
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{overload}">
CachedAttention <{names}> ({inputs}) => (y, k_out, v_out) {{{write}{_QUERIES}{attend}
  y = Transpose<perm = [0, 2, 1, 3]>(heads_first)
}}"""
