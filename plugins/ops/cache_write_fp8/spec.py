"""``CacheWriteFp8``: write new keys and values into caches of E4M3 codes, in place."""

from __future__ import annotations

from ...limits import Bound
from ...op_spec import FLOAT8, FLOATS, Kernel, Operand, OpSpec
from .body import body
from .reference import cache_write_fp8

_MAX = 2**31 - 1  # elements of k: the kernel counts those of k and v in 32 bits

SPEC = OpSpec(
    name="CacheWriteFp8",
    doc="""Write new keys and values, as E4M3 codes, into linear caches.

A code is round(x / scale) to the nearest E4M3 number, ties to even, in float32. Values outside the range, including
infinities, become 448 with their sign; NaN stays NaN. Column s of a row goes to position start + s. A column whose
position is not in the cache is dropped, so no value of ``start`` makes a write leave the buffer. One launch writes
both caches, because every layer has two caches and the number of launches limits the speed of a decode step.

Source: ONNX operator QuantizeLinear-24 (float8e4m3fn, saturating) and TensorScatter-24.""",
    inputs=(
        Operand("k_cache", ("B", "Hkv", "T", "D"), (FLOAT8,), "codes of keys by absolute position"),
        Operand("v_cache", ("B", "Hkv", "T", "D"), (FLOAT8,), "codes of values by absolute position"),
        Operand("k", ("B", "Hkv", "S", "D"), FLOATS, "new keys, rotated"),
        Operand("v", ("B", "Hkv", "S", "D"), FLOATS, "new values", same_as="k"),
        Operand("start", ("B",), ("int64",), "absolute position of column 0"),
        Operand("k_scale", (), ("float32",), "factor of a key's code; positive"),
        Operand("v_scale", (), ("float32",), "factor of a value's code; positive"),
    ),
    outputs=(
        Operand("k_out", ("B", "Hkv", "T", "D"), (FLOAT8,), "k_cache with k written", aliases="k_cache"),
        Operand("v_out", ("B", "Hkv", "T", "D"), (FLOAT8,), "v_cache with v written", aliases="v_cache"),
    ),
    reference=cache_write_fp8,
    body=body,
    bounds=(
        Bound(("S",), "{S} new positions do not fit a cache of {T}", maximum="T"),
        Bound(("B", "Hkv", "S", "D"), "{product} new numbers exceed the limit of one launch", maximum=_MAX),
    ),
    kernel=Kernel(
        entry="cache_write_fp8",
        blocks="B+S",
        threads=256,
        scalars=("B", "Hkv", "S", "T", "D"),
        typed_by="k",
    ),
)
