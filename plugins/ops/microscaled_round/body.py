"""``MicroscaledRound`` in standard opset-24 ops. Cast targets: 1 float32, 17 float8e4m3fn.

The leading power of two of a number is computed without a logarithm, which is inexact exactly where it matters: with
q = (2^23 + 1) * x, q - (1 - 2^-24) * q rounds to it for any x (Rump, Ogita and Oishi, Accurate Floating-Point
Summation I, algorithm 3.6). Large numbers are scaled down first, so that q is finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# x -> blocks [..., C / 32, 32] and scale [..., C / 32, 1], float32
SCALES = """
  lead = Shape<start = 0, end = -1>(x)
  inferred = Constant<value_ints = [-1]>()
  size = Constant<value_ints = [32]>()
  by_block = Concat<axis = 0>(lead, inferred, size)
  x_blocks = Reshape(x, by_block)
  blocks = Cast<to = 1>(x_blocks)

  magnitudes = Abs(blocks)
  amax = ReduceMax<keepdims = 1>(magnitudes, inferred)
  one = Constant<value_float = 1.0>()
  large = Constant<value_float = 1.2379400392853803e27>()
  down = Constant<value_float = 9.094947017729282e-13>()
  up = Constant<value_float = 1.099511627776e12>()
  is_large = Greater(amax, large)
  lowering = Where(is_large, down, one)
  raising = Where(is_large, up, one)
  moderate = Mul(amax, lowering)
  splitter = Constant<value_float = 8388609.0>()
  below_one = Constant<value_float = 0.999999940395355224609375>()
  split = Mul(moderate, splitter)
  rest = Mul(split, below_one)
  leading = Sub(split, rest)

  # 448 = 1.75 * 2^8: a number that begins with 2^n fits under it at 2^(n - 8) if it is no more than 1.75 * 2^n.
  reach = Constant<value_float = 1.75>()
  most = Mul(leading, reach)
  is_past = Greater(moderate, most)
  tight = Constant<value_float = 0.00390625>()
  loose = Constant<value_float = 0.0078125>()
  step = Where(is_past, loose, tight)
  moderate_scale = Mul(leading, step)
  exact_scale = Mul(moderate_scale, raising)
  least = Constant<value_float = 5.877471754111438e-39>()
  scale = Max(exact_scale, least)
"""

# codes float8e4m3fn, in blocks
CODES = """
  quotients = Div(blocks, scale)
  codes = Cast<to = 17>(quotients)
"""

_VALUES = """
  nearest = Cast<to = 1>(codes)
  rounded = Mul(nearest, scale)
  shape = Shape(x)
  together = Reshape(rounded, shape)
  y = CastLike(together, x)
"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return f"""<opset_import: ["" : 24], domain: "peagle">
MicroscaledRound (x) => (y) {{{SCALES}{CODES}{_VALUES}}}"""
