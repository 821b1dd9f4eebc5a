"""Conversion of a packed matrix to float32 in standard opset-24 ops. Cast targets: 1 float32, 6 int32."""

from __future__ import annotations

from collections.abc import Iterable

from .packed_formats import PACKED_FORMATS, PackedFormat
from .scale_layouts import (
    BlockScales,
    BlockScalesAndMin,
    Exponents,
    HalfBlockSteps,
    RowScales,
    StepsAndMin,
)

# codes [tiles, blocks, bytes] -> codes_5 [tiles, blocks, 8, 16, 4]
_EIGHT_BITS = """
  eight_form = Constant<value_ints = [0, 0, 8, 16, 4]>()
  codes_5 = Reshape(codes, eight_form)
"""
_LOWER_BITS = """
  four_form = Constant<value_ints = [0, 0, 4, 16, 4]>()
  both = Reshape({lower}, four_form)
  four = Constant<value_ints = [4]>()
  shift = CastLike(four, codes)
  high = BitShift<direction = "RIGHT">(both, shift)
  mask_64 = Constant<value_ints = [15]>()
  mask = CastLike(mask_64, codes)
  low = BitwiseAnd(both, mask)
  {joined} = Concat<axis = 2>(low, high)
"""
_SPLIT_PLANES = """
  planes = Constant<value_ints = [256, {bytes}]>()
  lower, upper = Split<axis = 2>(codes, planes)
"""
_UPPER_BITS = """
  upper_form = Constant<value_ints = [0, 0, {vectors}, 16, 4]>()
  upper_vectors = Reshape(upper, upper_form)
  vector_of_group = Constant<value_ints = [{vector_of_group}]>()
  upper_of_group = Gather<axis = 2>(upper_vectors, vector_of_group)
  bit_of_group = Constant<value_ints = [{bit_of_group}]>()
  bits_flat = CastLike(bit_of_group, codes)
  bits_form = Constant<value_ints = [8, 1, 1]>()
  bits = Reshape(bits_flat, bits_form)
  upper_lowest = BitShift<direction = "RIGHT">(upper_of_group, bits)
  upper_mask_64 = Constant<value_ints = [{mask}]>()
  upper_mask = CastLike(upper_mask_64, codes)
  upper_only = BitwiseAnd(upper_lowest, upper_mask)
  upper_in_place = BitShift<direction = "LEFT">(upper_only, shift)
  codes_5 = BitwiseOr(lower_5, upper_in_place)
"""

# -> whole_5 [tiles, 16, blocks, 8, 4]
_TURNED = """
  turned = Transpose<perm = [0, 3, 1, 2, 4]>(codes_5)
"""
_MINUS_ZERO_POINT = """
  codes_32 = Cast<to = 1>(turned)
  middle = Constant<value_float = {middle}.0>()
  whole_5 = Sub(codes_32, middle)
"""
_VALUES = """
  indices = Cast<to = 6>(turned)
  values = Constant<value_floats = [{values}]>()
  whole_5 = Gather(values, indices)
"""

# scales -> factors [tiles, units, 16], and least_values alike; a unit is a row, a block or half a block
_NUMBERS = """
  factors = Cast<to = 1>(scales)
"""
_NUMBERS_AND_MIN = """
  scales_32 = Cast<to = 1>(scales)
  factors, least_values = Split<axis = 2, num_outputs = 2>(scales_32)
"""
_POWERS = """
  exponents = Cast<to = 6>(scales)
  sixteen_64 = Constant<value_int = 16>()
  sixteen = CastLike(sixteen_64, exponents)
  exponents_high = Div(exponents, sixteen)
  exponents_low = Mod(exponents, sixteen)
  powers_high = Constant<value_floats = [{high}]>()
  powers_low = Constant<value_floats = [{low}]>()
  factors_high = Gather(powers_high, exponents_high)
  factors_low = Gather(powers_low, exponents_low)
  factors = Mul(factors_high, factors_low)
"""
# -> d [tiles, superblocks, 1, halves, 16], float16 numbers made from their bytes, and steps [.., 8, 2, 16]
_ENTRIES = """
  entry_parts = Constant<value_ints = [{half_bytes}, 256]>()
  half_bytes, step_bytes = Split<axis = 2>(scales, entry_parts)
  half_form = Constant<value_ints = [0, 0, 1, {halves}, 16, 2]>()
  half_pairs = Reshape(half_bytes, half_form)
  low_byte, high_byte = Split<axis = 5, num_outputs = 2>(half_pairs)
  exponent_at = Constant<value_ints = [2]>()
  exponent_at_8 = CastLike(exponent_at, scales)
  above_mantissa = BitShift<direction = "RIGHT">(high_byte, exponent_at_8)
  exponent_mask = Constant<value_ints = [31]>()
  exponent_mask_8 = CastLike(exponent_mask, scales)
  exponent_8 = BitwiseAnd(above_mantissa, exponent_mask_8)
  exponent = Cast<to = 6>(exponent_8)
  half_powers = Constant<value_floats = [{powers}]>()
  power = Gather(half_powers, exponent)
  leading_ones = Constant<value_floats = [{leading}]>()
  leading = Gather(leading_ones, exponent)
  mantissa_mask = Constant<value_ints = [3]>()
  mantissa_mask_8 = CastLike(mantissa_mask, scales)
  mantissa_high = BitwiseAnd(high_byte, mantissa_mask_8)
  mantissa_high_32 = Cast<to = 1>(mantissa_high)
  of_high_byte = Constant<value_float = 256.0>()
  mantissa_upper = Mul(mantissa_high_32, of_high_byte)
  mantissa_lower = Cast<to = 1>(low_byte)
  mantissa = Sum(mantissa_upper, mantissa_lower, leading)
  sign_at = Constant<value_ints = [7]>()
  sign_at_8 = CastLike(sign_at, scales)
  sign_8 = BitShift<direction = "RIGHT">(high_byte, sign_at_8)
  sign_index = Cast<to = 6>(sign_8)
  signs = Constant<value_floats = [1.0, -1.0]>()
  sign = Gather(signs, sign_index)
  magnitude = Mul(mantissa, power)
  number = Mul(magnitude, sign)
  d_form = Constant<value_ints = [0, 0, 1, {halves}, 16]>()
  d = Reshape(number, d_form)
  step_form = Constant<value_ints = [0, 0, 8, 2, 16]>()
  steps = Reshape(step_bytes, step_form)
  units_form = Constant<value_ints = [0, -1, 16]>()
"""
_STEPS = """
  steps_32 = Cast<to = 1>(steps)
  added_or_not = Constant<value_floats = [1.0, -1.0]>()
  kinds_form = Constant<value_ints = [2, 1]>()
  of_kind = Reshape(added_or_not, kinds_form)
  d_of_kind = Mul(d, of_kind)
  products = Mul(d_of_kind, steps_32)
  products_scale, products_least = Split<axis = 3, num_outputs = 2>(products)
  factors = Reshape(products_scale, units_form)
  least_values = Reshape(products_least, units_form)
"""
_SIGNED_STEPS = """
  step_offset = Constant<value_ints = [128]>()
  step_offset_8 = CastLike(step_offset, scales)
  raised_steps = BitwiseXor(steps, step_offset_8)
  raised_32 = Cast<to = 1>(raised_steps)
  step_offset_32 = CastLike(step_offset, raised_32)
  steps_32 = Sub(raised_32, step_offset_32)
  products = Mul(d, steps_32)
  factors = Reshape(products, units_form)
"""


def _list(numbers: Iterable[float]) -> str:
    return ", ".join(map(repr, numbers))


def _entries(halves: int) -> str:
    powers = _list(2.0 ** (max(exponent, 1) - 25) for exponent in range(32))
    leading = _list(1024.0 if exponent else 0.0 for exponent in range(32))
    return _ENTRIES.format(half_bytes=32 * halves, halves=halves, powers=powers, leading=leading)


_SCALES: dict[type[RowScales], str] = {
    RowScales: _NUMBERS,
    BlockScales: _NUMBERS,
    BlockScalesAndMin: _NUMBERS_AND_MIN,
    Exponents: _POWERS.format(
        high=_list(2.0 ** (16 * n - 128) for n in range(16)), low=_list(2.0**n for n in range(16))
    ),
    StepsAndMin: _entries(StepsAndMin.halves) + _STEPS,
    HalfBlockSteps: _entries(HalfBlockSteps.halves) + _SIGNED_STEPS,
}

_SCALED = """
  zero = Constant<value_ints = [0]>()
  inferred = Constant<value_ints = [-1]>()
  tile = Constant<value_ints = [16]>()
  units = Shape<start = 1, end = 2>(factors)
  by_unit = Concat<axis = 0>(zero, tile, units, inferred)
  whole = Reshape(whole_5, by_unit)
  factors_turned = Transpose<perm = [0, 2, 1]>(factors)
  factors_4 = Unsqueeze(factors_turned, inferred)
  scaled = Mul(whole, factors_4)
"""
_MOVED = """
  least_turned = Transpose<perm = [0, 2, 1]>(least_values)
  least_4 = Unsqueeze(least_turned, inferred)
  matrix_4 = Add(scaled, least_4)
"""
_NOT_MOVED = """
  matrix_4 = Identity(scaled)
"""
_ROWS = """
  rows = Constant<value_int: int = @rows>()
"""
_MATRIX = """
  blocks_of_codes = Shape<start = 1, end = 2>(codes)
  block = Constant<value_ints = [32]>()
  columns = Mul(blocks_of_codes, block)
  by_row = Concat<axis = 0>(inferred, columns)
  filled_up = Reshape(matrix_4, by_row)
  one = Constant<value_ints = [1]>()
  rows_1 = Reshape(rows, one)
  matrix = Slice(filled_up, zero, rows_1, zero)
"""


def unpacking(format: str, rows: str = _ROWS) -> str:
    """Return the nodes that compute ``matrix``, float32 [rows, K], from ``codes`` and ``scales``.

    ``rows`` are the nodes that compute its number of rows, by default from the attribute of that name.
    They also name ``inferred``, [-1], ``block``, [32], and ``blocks_of_codes``, the number of blocks.
    """
    packed_format = PACKED_FORMATS[format]
    to_integers = _MINUS_ZERO_POINT.format(middle=packed_format.middle)
    if packed_format.values:
        to_integers = _VALUES.format(values=_list(map(float, packed_format.values)))
    moved = _MOVED if packed_format.scales.has_min else _NOT_MOVED
    return (
        rows
        + _codes(packed_format)
        + _TURNED
        + to_integers
        + _SCALES[type(packed_format.scales)]
        + _SCALED
        + moved
        + _MATRIX
    )


def _codes(packed_format: PackedFormat) -> str:
    if packed_format.bits == 8:
        return _EIGHT_BITS
    if not packed_format.upper_bits:
        return _LOWER_BITS.format(lower="codes", joined="codes_5")
    upper_places = [packed_format.upper_place(group) for group in range(8)]
    planes = _SPLIT_PLANES.format(bytes=64 * packed_format.upper_bits) + _LOWER_BITS.format(
        lower="lower", joined="lower_5"
    )
    return planes + _UPPER_BITS.format(
        vectors=packed_format.upper_bits,
        vector_of_group=_list(vector for vector, _ in upper_places),
        bit_of_group=_list(bit for _, bit in upper_places),
        mask=(1 << packed_format.upper_bits) - 1,
    )
