"""``CachedAttention`` in standard opset-24 ops: two TensorScatter, then one of three forms of attention.

Full: Attention-24, causal through ``nonpad_kv_seqlen``. Window: Attention-24 with a bool mask (opset 24 has no window).
Sinks: written out in float32, because Attention has no extra softmax column. Each form is an overload of one function.
Caches of codes are scattered as float32, a lossless conversion, because ONNX Runtime cannot scatter 8-bit types.
A tree of drafts is one more mask. Cast targets: 1 float32, 3 int8, 9 bool, 17 float8e4m3fn.
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

# NaN and infinities stay.
_SATURATE = """
  {x}_new_32 = Cast<to=1>({x})
  {x}_is_infinite = IsInf({x}_new_32)
  {x}_clamped = Clip({x}_new_32, least, most)
  {x}_sound = Where({x}_is_infinite, {x}_new_32, {x}_clamped)
  {x}_new = CastLike({x}_sound, {x}_cache)
  {x}_out = TensorScatter<axis=2>({x}_cache, {x}_new, start)
  {x}_all = CastLike({x}_out, q)
"""

_FLOAT16 = """
  most = Constant<value_float = 65504.0>()
  least = Constant<value_float = -65504.0>()
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

# The leading power of two of a number is computed as in ``microscaled_round/body.py``.
_WRITE_INT8 = """
  {x}_new_32 = Cast<to=1>({x})
  {x}_is_nan = IsNaN({x}_new_32)
  {x}_is_infinite = IsInf({x}_new_32)
  {x}_bad = Or({x}_is_nan, {x}_is_infinite)
  {x}_bad_32 = Cast<to=1>({x}_bad)
  {x}_worst = ReduceMax<keepdims=1>({x}_bad_32, last)
  {x}_is_flawed = Greater({x}_worst, nothing)
  {x}_sound = Where({x}_bad, nothing, {x}_new_32)
  {x}_magnitudes = Abs({x}_sound)
  {x}_largest = ReduceMax<keepdims=1>({x}_magnitudes, last)
  {x}_is_small = Less({x}_largest, smallest)
  {x}_is_none = Or({x}_is_small, {x}_is_flawed)
  {x}_top = Where({x}_is_none, unit, {x}_largest)
  {x}_is_large = Greater({x}_top, large)
  {x}_lowering = Where({x}_is_large, down, unit)
  {x}_raising = Where({x}_is_large, up, unit)
  {x}_lowered = Mul({x}_top, {x}_lowering)
  {x}_quotient = Div({x}_lowered, most_squared)
  {x}_split = Mul({x}_quotient, splitter)
  {x}_rest = Mul({x}_split, below_one)
  {x}_leading = Sub({x}_split, {x}_rest)
  {x}_is_past = Greater({x}_quotient, {x}_leading)
  {x}_doubled = Add({x}_leading, {x}_leading)
  {x}_least_power = Where({x}_is_past, {x}_doubled, {x}_leading)
  {x}_power = Mul({x}_least_power, {x}_raising)
  {x}_steps = Mul({x}_power, most)
  {x}_ratio = Div({x}_top, {x}_steps)
  {x}_whole = Ceil({x}_ratio)
  {x}_mantissa = Min({x}_whole, most)
  {x}_scale = Mul({x}_mantissa, {x}_power)
  {x}_quotients = Div({x}_sound, {x}_scale)
  {x}_rounded = Round({x}_quotients)
  {x}_codes = Where({x}_is_none, nothing, {x}_rounded)
  {x}_mantissa_or_0 = Where({x}_is_small, nothing, {x}_mantissa)
  {x}_m = Where({x}_is_flawed, flawed, {x}_mantissa_or_0)
  {x}_logarithm = Log({x}_power)
  {x}_binary = Div({x}_logarithm, logarithm_of_2)
  {x}_exponent = Round({x}_binary)
  {x}_e = Where({x}_is_none, nothing, {x}_exponent)
  {x}_kept = Concat<axis=-1>({x}_codes, {x}_m, {x}_e)
  {x}_old = Cast<to=1>({x}_cache)
  {x}_scattered = TensorScatter<axis=2>({x}_old, {x}_kept, start)
  {x}_out = Cast<to=3>({x}_scattered)
  {x}_all_codes = Slice({x}_scattered, first_byte, of_scale, axis)
  {x}_all_m = Slice({x}_scattered, of_scale, last, axis)
  {x}_all_e = Slice({x}_scattered, last, behind, axis)
  {x}_all_powers = Pow(two, {x}_all_e)
  {x}_all_scales = Mul({x}_all_m, {x}_all_powers)
  {x}_all_flawed = Less({x}_all_m, nothing)
  {x}_all_sound = Where({x}_all_flawed, no_number, {x}_all_scales)
  {x}_all_32 = Mul({x}_all_codes, {x}_all_sound)
  {x}_all = CastLike({x}_all_32, q)
"""

_INT8 = """
  nothing = Constant<value_float = 0.0>()
  unit = Constant<value_float = 1.0>()
  two = Constant<value_float = 2.0>()
  most = Constant<value_float = 127.0>()
  most_squared = Constant<value_float = 16129.0>()
  smallest = Constant<value_float = 8.077935669463161e-28>()
  large = Constant<value_float = 1.2379400392853803e27>()
  down = Constant<value_float = 9.094947017729282e-13>()
  up = Constant<value_float = 1.099511627776e12>()
  splitter = Constant<value_float = 8388609.0>()
  below_one = Constant<value_float = 0.999999940395355224609375>()
  logarithm_of_2 = Constant<value_float = 0.693147180559945309>()
  flawed = Constant<value_float = -128.0>()
  no_number = Sqrt(flawed)
  first_byte = Constant<value_ints = [0]>()
  of_scale = Constant<value_ints = [-2]>()
  last = Constant<value_ints = [-1]>()
  behind = Constant<value_ints = [9223372036854775807]>()
  axis = Constant<value_ints = [3]>()
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
  mask_axes = Constant<value_ints = [1, 3]>()
"""

_CHAIN = """
  position_2 = Add(start_2, s)
  position = Unsqueeze(position_2, mask_axes)
  past = LessOrEqual(slot, position)
  place = Identity(slot)
"""

# path [B, S, S] marks the columns of the window that each column sees, depth the number of them before it. A slot maps
# to a column of the window, or lies before or after the window.
_TREE = """
  columns = Unsqueeze(s, one)
  is_itself = Equal(columns, s)
  is_earlier = Less(s, columns)
  is_named = And(ancestors, is_earlier)
  path = Or(is_named, is_itself)
  path_long = Cast<to=7>(path)
  two_axis = Constant<value_int = 2>()
  depth = CumSum<exclusive=1>(path_long, two_axis)
  path_axis = Constant<value_ints = [2]>()
  count = ReduceSum<keepdims=1>(path_long, path_axis)
  column = Sub(slot, start_2)
  most_column = Sub(queries_0, step)
  least_column = Max(column, first)
  near_column = Min(least_column, most_column)
  near_column_3 = Unsqueeze(near_column, one)
  batch = Shape<start=0, end=1>(q)
  table = Concat<axis=0>(batch, queries, slots)
  near = Expand(near_column_3, table)
  is_on_path = GatherElements<axis=2>(path_long, near)
  depth_there = GatherElements<axis=2>(depth, near)
  column_3 = Unsqueeze(column, one)
  is_before = Less(column_3, first)
  is_in = Less(column_3, queries_0)
  is_on_path_there = Cast<to=9>(is_on_path)
  is_seen_there = And(is_on_path_there, is_in)
  past_3 = Or(is_before, is_seen_there)
  past = Unsqueeze(past_3, one)
  start_3 = Unsqueeze(start_2, one)
  place_there = Add(start_3, depth_there)
  place_3 = Where(is_before, slot, place_there)
  place = Unsqueeze(place_3, one)
  end = Add(start_3, count)
  position_3 = Sub(end, step)
  position = Unsqueeze(position_3, one)
"""

_WINDOW = """
  window = Constant<value_int: int = @window>()
  too_old = Sub(position, window)
  recent = Greater(place, too_old)
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
    """Return the ONNX model-local function for these attributes; its overload names the form."""
    window, softcap, sinks = bool(attributes["window"]), bool(attributes["softcap"]), "sinks" in present
    tree = "ancestors" in present
    mask = _MASK + (_TREE if tree else _CHAIN) + (_WINDOW if window else _NO_WINDOW)
    if sinks:
        overload = "sinks" + "_window" * window + "_softcap" * softcap
        attend = mask + _SCORES + (_SOFTCAP if softcap else _NO_SOFTCAP) + _SINKS
    elif window or tree:
        overload, attend = "window" if window else "full", mask + _MASKED
    else:
        overload, attend = "full", _FULL
    inputs = "q, k, v, k_cache, v_cache, start" + ", sinks" * (sinks or tree) + ", ancestors" * tree
    overload += "_tree" * tree
    names, write = "scale, window, softcap", _WRITE
    if bool(attributes["k_scale"]) != bool(attributes["v_scale"]):
        raise BuildError(
            "CachedAttention: k_scale and v_scale must be set together",
            why="either both caches hold quantized codes, or neither does",
            fix="set both of them, or neither",
        )
    if attributes["scaled"]:
        overload, write = f"int8_{overload}", _INT8 + _WRITE_INT8.format(x="k") + _WRITE_INT8.format(x="v")
        names = f"{names}, scaled"
    if attributes["saturates"]:
        overload, write = f"saturates_{overload}", _FLOAT16 + _SATURATE.format(x="k") + _SATURATE.format(x="v")
        names = f"{names}, saturates"
    if attributes["k_scale"]:
        names, overload = f"{names}, k_scale, v_scale", f"fp8_{overload}"
        write = _WRITE_CODES.format(x="k") + _WRITE_CODES.format(x="v")
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{overload}">
CachedAttention <{names}> ({inputs}) => (y, k_out, v_out) {{{write}{_QUERIES}{attend}
  y = Transpose<perm = [0, 2, 1, 3]>(heads_first)
}}"""
