"""Floating-point instructions, each rounded once and exactly. NaN results of float32 are the one that GPUs make.

``ex2.approx`` is the exception: its last bits are the hardware's own. ``Approximation`` decides what it gives here: the
correctly rounded number, or one that is off by so many units in the last place, for tests of what depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np

from .operations import COMPARE, Array, Operation, Table

NAN32 = np.uint32(0x7FFFFFFF)
NAN16 = np.uint16(0x7FFF)
EX2_ULP = 2  # the PTX manual's bound of ex2.approx.ftz.f32
MIN_NORMAL = np.float32(2.0**-126)


def canonical(x: Array) -> Array:
    """Return float32 with every NaN as 0x7fffffff."""
    nan = np.isnan(x)
    return np.where(nan, NAN32, x.view(np.uint32)).view(np.float32) if nan.any() else x


def product_and_sum(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Return a * b + c for float32 as float64 with its error: sum + error is exact where it is finite."""
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)  # 48 bits: exact
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    return total, np.where(np.isfinite(total), error, 0)


def fma_nearest(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded once to the nearest float32.

    The float64 sum is first rounded to odd: with more than two bits to spare, rounding that again is rounding once.
    """
    total, error = product_and_sum(a, b, c)
    bits = total.view(np.int64)
    even = (bits & 1) == 0
    # Rounded to nearest, the sum lies on the wrong side of the exact one where the error points towards zero.
    inward = (error < 0) == (total > 0)
    odd = np.where((error != 0) & even, np.where(inward, bits - 1, bits + 1), bits)
    return canonical(odd.view(np.float64).astype(np.float32))


def fma_down(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c rounded once towards minus infinity. An exact zero of two unlike terms is -0."""
    total, error = product_and_sum(a, b, c)
    near = total.astype(np.float32)
    wide = near.astype(np.float64)
    above = np.isfinite(total) & ((wide > total) | ((wide == total) & (error < 0)))
    down = np.where(above, np.nextafter(near, np.float32(-np.inf)), near)
    plus = ~np.signbit(a.astype(np.float64) * b.astype(np.float64)) & ~np.signbit(c)
    zero = (total == 0) & (error == 0) & ~plus
    return canonical(np.where(zero, np.float32(-0.0), down))


def maximum(a: Array, b: Array) -> Array:
    """Return the larger number; the other if one is NaN. +0 is larger than -0."""
    return canonical(np.where((a > b) | np.isnan(b) | ((a == b) & ~np.signbit(a)), a, b))


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller number; the other if one is NaN. -0 is smaller than +0."""
    return canonical(np.where((a < b) | np.isnan(b) | ((a == b) & np.signbit(a)), a, b))


def maximum_nan(a: Array, b: Array) -> Array:
    """Return the larger number, NaN if either is one."""
    return np.where(np.isnan(a) | np.isnan(b), NAN32.view(np.float32), maximum(a, b))


def bfloats(bits: Array) -> Array:
    """Return bfloat16 patterns as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def maximum_of_halves(a: Array, b: Array) -> Array:
    """Return max.NaN of both float16 numbers of a word."""
    x, y = a.view(np.uint16), b.view(np.uint16)
    larger = maximum_nan(x.view(np.float16).astype(np.float32), y.view(np.float16).astype(np.float32))
    return np.where(np.isnan(larger), NAN16, larger.astype(np.float16).view(np.uint16)).view(np.uint32)


def maximum_of_bfloats(a: Array, b: Array) -> Array:
    """Return max.NaN of both bfloat16 numbers of a word."""
    larger = maximum_nan(bfloats(a.view(np.uint16)), bfloats(b.view(np.uint16)))
    upper = (larger.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(larger), NAN16, upper).view(np.uint32)


class Approximation:
    """``ex2.approx.ftz.f32``, off by ``ulp`` units in the last place; 0 is the correctly rounded number."""

    ulp = 0


def exponential(x: Array) -> Array:
    """Return 2^x, rounded once; subnormal numbers and results are 0."""
    x = np.where(np.abs(x) < MIN_NORMAL, np.float32(0), x)
    wide = np.exp2(x.astype(np.float64))
    y = wide.astype(np.float32)
    # Where float64 cannot tell on which side of the middle of two numbers the result lies, more digits do.
    low, high = (wide * (1 + sign * 2.0**-50) for sign in (-1, 1))
    unsure = np.isfinite(wide) & (low.astype(np.float32) != high.astype(np.float32))
    for i in np.flatnonzero(unsure & (x != np.rint(x))):
        y[i] = exponential_of(float(x[i]))
    if Approximation.ulp:
        exact = (x == 0) | ~np.isfinite(y) | (y < MIN_NORMAL)
        y = np.where(exact, y, (y.view(np.int32) + np.int32(Approximation.ulp)).view(np.float32))
    return canonical(np.where(y < MIN_NORMAL, np.float32(0), y))


def exponential_of(x: float) -> np.float32:
    """Return 2^x with fifty digits, rounded to float32: the nearest of the float64 result's neighbours."""
    context = Context(prec=50)
    exact = context.power(Decimal(2), Decimal(x))
    near = np.float32(float(exact))
    candidates = (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(np.inf)))
    return min(candidates, key=lambda each: abs(Decimal(float(each)) - exact))


def _ordered(compare: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return the comparison; NaN compares false except for ``ne``, which needs this."""
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


def _unordered(compare: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def table() -> Table:
    """Return all floating-point instructions by their full name."""
    found: Table = {}
    for t in ("f32", "f64"):
        for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
            for rounding in ("", ".rn"):
                found[f"{name}{rounding}.{t}"] = Operation((t, t), t, _canonical_if(t, function))
        found[f"div.rn.{t}"] = Operation((t, t), t, _canonical_if(t, np.divide))
        # Sign bits only, of NaN too.
        found[f"neg.{t}"] = Operation((t,), t, np.negative)
        found[f"abs.{t}"] = Operation((t,), t, np.abs)
        for name, of in COMPARE.items():
            found[f"setp.{name}.{t}"] = Operation((t, t), "pred", _ordered(of))
            found[f"setp.{name}u.{t}"] = Operation((t, t), "pred", _unordered(of))
        found[f"setp.num.{t}"] = Operation((t, t), "pred", lambda a, b: ~(np.isnan(a) | np.isnan(b)))
        found[f"setp.nan.{t}"] = Operation((t, t), "pred", lambda a, b: np.isnan(a) | np.isnan(b))
    found["fma.rn.f32"] = Operation(("f32",) * 3, "f32", fma_nearest)
    found["fma.rm.f32"] = Operation(("f32",) * 3, "f32", fma_down)
    found["max.f32"] = Operation(("f32", "f32"), "f32", maximum)
    found["min.f32"] = Operation(("f32", "f32"), "f32", minimum)
    found["max.NaN.f32"] = Operation(("f32", "f32"), "f32", maximum_nan)
    found["max.NaN.f16x2"] = Operation(("f16x2", "f16x2"), "f16x2", maximum_of_halves)
    found["max.NaN.bf16x2"] = Operation(("bf16x2", "bf16x2"), "bf16x2", maximum_of_bfloats)
    found["ex2.approx.ftz.f32"] = Operation(("f32",), "f32", exponential)
    return found


def _canonical_if(kind: str, function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return (lambda a, b: canonical(function(a, b))) if kind == "f32" else function
