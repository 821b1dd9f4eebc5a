"""Integer, bit and predicate instructions. Arithmetic is modulo 2^w, as it is in PTX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .errors import Undefined
from .operations import COMPARE, DTYPES, Array, Operation, Table


def _divisor(b: Array) -> None:
    if (zero := np.flatnonzero(b == 0)).size:
        raise Undefined("division by 0", int(zero[0]))


def _magnitude(x: Array) -> Array:
    """Return |x| as an unsigned number, right for the smallest one too."""
    unsigned = x.view(x.dtype.str.replace("i", "u"))
    return np.where(x < 0, -unsigned, unsigned)


def divide(a: Array, b: Array) -> Array:
    """Divide and drop the fraction; the smallest number by -1 is itself."""
    _divisor(b)
    if a.dtype.kind == "u":
        return a // b
    quotient = _magnitude(a) // _magnitude(b)
    return np.where((a < 0) != (b < 0), -quotient, quotient).view(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """Return what ``divide`` leaves; its sign is that of ``a``."""
    _divisor(b)
    if a.dtype.kind == "u":
        return a % b
    rest = _magnitude(a) % _magnitude(b)
    return np.where(a < 0, -rest, rest).view(a.dtype)


def shift_left(a: Array, by: Array) -> Array:
    """Shift; beyond the width nothing is left."""
    width = a.dtype.itemsize * 8
    return np.where(by < width, a << np.minimum(by, width - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Array, by: Array) -> Array:
    """Shift, with the sign for signed numbers; beyond the width the sign or nothing is left."""
    width = a.dtype.itemsize * 8
    moved = a >> np.minimum(by, width - 1).astype(a.dtype)
    return moved if a.dtype.kind == "i" else np.where(by < width, moved, a.dtype.type(0))


def high_product(a: Array, b: Array) -> Array:
    """Return the upper 32 bits of a product of 32-bit numbers."""
    wide = np.dtype(a.dtype.str.replace("4", "8"))
    return ((a.astype(wide) * b.astype(wide)) >> wide.type(32)).astype(a.dtype)


def leading_zeros(x: Array) -> Array:
    """Count the zeros above the highest one."""
    count, rest = np.full(x.shape, x.dtype.itemsize * 8, np.uint32), x.copy()
    for step in (32, 16, 8, 4, 2, 1):
        if step < x.dtype.itemsize * 8:
            upper = rest >> rest.dtype.type(step)
            found = upper != 0
            count = np.where(found, count - np.uint32(step), count)
            rest = np.where(found, upper, rest)
    return count - (rest != 0).astype(np.uint32)


def insert_bits(field: Array, into: Array, position: Array, length: Array) -> Array:
    """Replace ``length`` bits of ``into`` from ``position`` on; both count their lower 8 bits."""
    one, width = into.dtype.type(1), into.dtype.itemsize * 8
    position, length = position & np.uint32(255), np.minimum(length & np.uint32(255), width)
    ones = shift_left(np.full(into.shape, one), length) - one
    mask = shift_left(ones, position)
    return (into & ~mask) | (shift_left(field, position) & mask)


def funnel_left(low: Array, high: Array, by: Array) -> Array:
    """Return the upper 32 bits of high:low shifted left by the lower 5 bits of ``by``."""
    wide = (high.astype(np.uint64) << np.uint64(32)) | low
    return ((wide << (by & np.uint32(31)).astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def funnel_right(low: Array, high: Array, by: Array) -> Array:
    """Return the lower 32 bits of high:low shifted right by the lower 5 bits of ``by``."""
    wide = (high.astype(np.uint64) << np.uint64(32)) | low
    return (wide >> (by & np.uint32(31)).astype(np.uint64)).astype(np.uint32)


def choose(a: Array, b: Array, which: Array) -> Array:
    """Return ``a`` where the predicate holds, otherwise ``b``."""
    return np.where(which, a, b)


def table() -> Table:
    """Return all integer instructions by their full name."""
    found: Table = {}

    def add(name: str, sources: tuple[str, ...], result: str, compute: Callable[..., Array]) -> None:
        found[name] = Operation(sources, result, compute)

    for t in ("u16", "s16", "u32", "s32", "u64", "s64"):
        add(f"add.{t}", (t, t), t, np.add)
        add(f"sub.{t}", (t, t), t, np.subtract)
        add(f"mul.lo.{t}", (t, t), t, np.multiply)
        add(f"mad.lo.{t}", (t, t, t), t, lambda a, b, c: a * b + c)
        add(f"min.{t}", (t, t), t, np.minimum)
        add(f"max.{t}", (t, t), t, np.maximum)
        add(f"div.{t}", (t, t), t, divide)
        add(f"rem.{t}", (t, t), t, remainder)
        add(f"shr.{t}", (t, "u32"), t, shift_right)
        if t[0] == "s":
            add(f"neg.{t}", (t,), t, np.negative)
            add(f"abs.{t}", (t,), t, np.abs)
        if t[1:] != "64":
            wide = f"{t[0]}{2 * int(t[1:])}"

            def product(a: Array, b: Array, to: str = wide) -> Array:
                return a.astype(DTYPES[to]) * b.astype(DTYPES[to])

            def product_and(a: Array, b: Array, c: Array, to: str = wide) -> Array:
                return a.astype(DTYPES[to]) * b.astype(DTYPES[to]) + c

            add(f"mul.wide.{t}", (t, t), wide, product)
            add(f"mad.wide.{t}", (t, t, wide), wide, product_and)
        for comparison, compare in COMPARE.items():
            add(f"setp.{comparison}.{t}", (t, t), "pred", compare)
    for t in ("u32", "s32"):
        add(f"mul.hi.{t}", (t, t), t, high_product)
    for t in ("b16", "b32", "b64", "pred"):
        add(f"and.{t}", (t, t), t, np.bitwise_and)
        add(f"or.{t}", (t, t), t, np.bitwise_or)
        add(f"xor.{t}", (t, t), t, np.bitwise_xor)
        add(f"not.{t}", (t,), t, np.invert)
        if t != "pred":
            add(f"shl.{t}", (t, "u32"), t, shift_left)
            add(f"shr.{t}", (t, "u32"), t, shift_right)
            add(f"setp.eq.{t}", (t, t), "pred", np.equal)
            add(f"setp.ne.{t}", (t, t), "pred", np.not_equal)
    for t in ("b32", "b64"):
        add(f"clz.{t}", (t,), "u32", leading_zeros)
        add(f"popc.{t}", (t,), "u32", lambda x: np.bitwise_count(x).astype(np.uint32))
        add(f"bfi.{t}", (t, t, "u32", "u32"), t, insert_bits)
    # .relu: what is negative becomes 0.
    add("min.relu.s32", ("s32", "s32"), "s32", lambda a, b: np.maximum(np.minimum(a, b), np.int32(0)))
    add("max.relu.s32", ("s32", "s32"), "s32", lambda a, b: np.maximum(np.maximum(a, b), np.int32(0)))
    add("shf.l.wrap.b32", ("b32", "b32", "u32"), "b32", funnel_left)
    add("shf.r.wrap.b32", ("b32", "b32", "u32"), "b32", funnel_right)
    for t in (*(f"{k}{w}" for k in "bus" for w in (16, 32, 64)), "f32", "f64"):
        add(f"selp.{t}", (t, t, "pred"), t, choose)
    for t in (*(f"{k}{w}" for k in "bus" for w in (16, 32, 64)), "f32", "f64", "pred"):
        add(f"mov.{t}", (t,), t, np.copy)  # registers are changed in place: none may share an array
    return found
