"""All arithmetic of the interpreter, compared with exact numbers: Python's integers and fractions."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.plugins.ptx.conversions import E4M3
from tests.plugins.ptx.errors import Undefined
from tests.plugins.ptx.floats import Approximation, exponential, exponential_of
from tests.plugins.ptx.operations import DTYPES
from tests.plugins.ptx.program import OPERATIONS

many = settings(max_examples=150, deadline=None)

NAN = 0x7FFFFFFF
EDGES = [0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F7FFFFF, 0xBF800001, 0x4B800000, 0x7F7FFFFF]
EDGES += [0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF, 0x33800000, 0x34000000, 0x00000003, 0x80000001, 0x5F000000]
patterns = st.one_of(
    st.sampled_from(EDGES), st.integers(0, 2**32 - 1), st.integers(0x3E800000, 0x41000000), st.integers(0, 0x01000000)
)


def run(name: str, *operands: Any) -> Any:
    """Return the results of an instruction for operands of its types; NumPy arrays or single numbers."""
    operation = OPERATIONS[name]
    arrays = [np.atleast_1d(np.array(x, DTYPES[t])) for x, t in zip(operands, operation.sources, strict=True)]
    with np.errstate(all="ignore"):
        result = operation.compute(*np.broadcast_arrays(*arrays))
    assert result.dtype == DTYPES[operation.result], name
    return result


def of_bits(*bits: int) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


def bits_of(x: Any) -> int:
    return int(np.ascontiguousarray(x).view(np.uint32)[0])


def rounded(x: Fraction, *, down: bool = False) -> int:
    """Return the pattern of the float32 next to an exact number other than 0: the nearest, or the one below."""
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - 23, -149)
    count = math.floor(x / unit) if down else round(x / unit)  # round: ties to even
    value = count * unit
    if abs(value) >= Fraction(2) ** 128:
        return (0x7F7FFFFF if down and x > 0 else 0x7F800000) | (0x80000000 if x < 0 else 0)
    return bits_of(np.float32(float(value))) | (0x80000000 if x < 0 else 0)


def exactly(a: Any, b: Any, c: Any) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


def sum_of_zeros(product_sign: bool, addend_sign: bool, down: bool) -> int:
    """Return the sign bit of an exact sum of 0 whose terms have these signs."""
    return 0x80000000 if (product_sign and addend_sign) or (down and (product_sign or addend_sign)) else 0


@many
@given(patterns, patterns, patterns)
@example(0x3F800001, 0x3F800001, 0x33800000)  # a tie that two roundings would break the other way
@example(0x3F800001, 0x3F7FFFFF, 0xBF800000)
@example(0x7F7FFFFF, 0x3F800000, 0x73000000)
@example(0x00000001, 0x3F000000, 0x00000000)
@example(0x3F800000, 0x3F800000, 0xBF800000)
@example(0x80000001, 0x00000001, 0x00000000)
def test_fused_multiply_and_add(x: int, y: int, z: int) -> None:
    a, b, c = of_bits(x), of_bits(y), of_bits(z)
    for name, down in (("fma.rn.f32", False), ("fma.rm.f32", True)):
        got = bits_of(run(name, a, b, c))
        if not np.isfinite([a, b, c]).all():
            with np.errstate(all="ignore"):
                wanted = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
            assert got == (NAN if np.isnan(wanted).any() else bits_of(wanted))
            continue
        value = exactly(a[0], b[0], c[0])
        signs = bool(np.signbit(a[0]) != np.signbit(b[0])), bool(np.signbit(c[0]))
        assert got == (rounded(value, down=down) if value else sum_of_zeros(*signs, down)), (name, value)


@many
@given(
    st.integers(0x3F000000, 0x40000000), st.integers(0x3F000000, 0x40000000), st.integers(-24, 24), st.integers(0, 1)
)
def test_products_close_to_a_tie(x: int, y: int, shift: int, sign: int) -> None:
    """The addend is chosen so that the sum lies next to the middle of two numbers, as far as 48 bits go."""
    a, b = of_bits(x), of_bits(y)
    product = Fraction(float(a[0])) * Fraction(float(b[0]))
    unit = Fraction(2) ** (-23 + shift)
    nearest = (math.floor(product / unit) + Fraction(1, 2)) * unit
    c = np.array([float(nearest - product)], np.float32) * np.float32(-1 if sign else 1)
    value = exactly(a[0], b[0], c[0])
    if value:
        assert bits_of(run("fma.rn.f32", a, b, c)) == rounded(value)
        assert bits_of(run("fma.rm.f32", a, b, c)) == rounded(value, down=True)


@many
@given(patterns, patterns)
def test_sums_products_and_quotients(x: int, y: int) -> None:
    a, b = of_bits(x), of_bits(y)
    finite = bool(np.isfinite([a, b]).all())
    for name, sign in (("add.f32", 1), ("sub.f32", -1)):
        value = Fraction(float(a[0])) + sign * Fraction(float(b[0])) if finite else None
        if value:
            assert bits_of(run(name, a, b)) == rounded(value)
    if finite and float(a[0]) and float(b[0]):
        assert bits_of(run("mul.f32", a, b)) == rounded(Fraction(float(a[0])) * Fraction(float(b[0])))
        assert bits_of(run("div.rn.f32", a, b)) == rounded(Fraction(float(a[0])) / Fraction(float(b[0])))
    with np.errstate(all="ignore"):
        expected = {"add.f32": a + b, "sub.f32": a - b, "mul.f32": a * b, "div.rn.f32": a / b}
    for name, wanted in expected.items():
        got = run(name, a, b)
        assert bits_of(got) == (NAN if np.isnan(wanted[0]) else bits_of(wanted)), name


@many
@given(patterns, patterns)
def test_comparisons_and_maxima(x: int, y: int) -> None:
    a, b = of_bits(x), of_bits(y)
    p, q = float(a[0]), float(b[0])
    nan = math.isnan(p) or math.isnan(q)
    order = {"lt": p < q, "le": p <= q, "gt": p > q, "ge": p >= q, "eq": p == q, "ne": p != q}
    for name, holds in order.items():
        assert bool(run(f"setp.{name}.f32", a, b)[0]) == (holds and not nan)
        assert bool(run(f"setp.{name}u.f32", a, b)[0]) == (holds or nan)
    assert bool(run("setp.nan.f32", a, b)[0]) == nan == (not run("setp.num.f32", a, b)[0])

    def of_two(first: float, second: float, larger: bool) -> float:
        if first == second:  # the sign of zero counts
            return first if (math.copysign(1, first) > 0) == larger else second
        return max(first, second) if larger else min(first, second)

    for name, larger in (("max.f32", True), ("min.f32", False)):
        got = run(name, a, b)
        if nan:
            assert bits_of(got) == (NAN if math.isnan(p) and math.isnan(q) else bits_of(b if math.isnan(p) else a))
        else:
            assert bits_of(got) == bits_of(np.float32(of_two(p, q, larger)))
    got = bits_of(run("max.NaN.f32", a, b))
    assert got == (NAN if nan else bits_of(np.float32(of_two(p, q, True))))
    assert bits_of(run("neg.f32", a)) == x ^ 0x80000000
    assert bits_of(run("abs.f32", a)) == x & 0x7FFFFFFF
    clipped = 0.0 if math.isnan(p) else min(max(p, 0.0), 1.0)
    assert bits_of(run("cvt.sat.f32.f32", a)) == bits_of(np.float32(clipped + 0.0))


@pytest.mark.parametrize(("name", "kind"), [("f16x2", np.float16), ("bf16x2", ml_dtypes.bfloat16)])
def test_maxima_of_two_halves(name: str, kind: Any) -> None:
    rng = np.random.default_rng(0)
    words_of = rng.integers(0, 2**32, (2, 4000), np.uint32)
    special = np.array([0x7C00, 0xFC00, 0x7E01, 0x8000, 0, 0x7F80, 0xFF81, 1], np.uint16)
    words_of[:, :1000] = rng.choice(special, (2, 2000)).view(np.uint32).reshape(2, 1000)
    got = run(f"max.NaN.{name}", *words_of).view(np.uint16)
    a, b = (w.view(np.uint16).view(kind).astype(np.float32) for w in words_of)
    patterns_of = [w.view(np.uint16) for w in words_of]
    wanted = np.where((a > b) | ((a == b) & ~np.signbit(a)), *patterns_of)
    np.testing.assert_array_equal(got, np.where(np.isnan(a) | np.isnan(b), 0x7FFF, wanted))


def test_every_e4m3() -> None:
    """All codes, all middles of two and their neighbours, by exact distance; ties go to the even code."""
    np.testing.assert_array_equal(E4M3, np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64))
    middles = ((E4M3[1:] + E4M3[:-1]) / 2).astype(np.float32)
    x = np.concatenate([E4M3.astype(np.float32), middles, np.nextafter(middles, 9e9), np.nextafter(middles, -9e9)])
    x = np.concatenate([x, [449, 464, 1e30, np.inf, 1e-30]]).astype(np.float32)
    exact = [Fraction(float(v)) for v in E4M3]

    def code(value: float) -> int:
        if math.isinf(value):
            return 0x7E
        distance = [abs(Fraction(value) - e) for e in exact]
        least = min(distance)
        return min((i for i, d in enumerate(distance) if d == least), key=lambda i: i % 2)

    wanted = np.array([code(float(v)) for v in x], np.uint16)
    np.testing.assert_array_equal(run("cvt.rn.satfinite.e4m3x2.f32", 1.0, x) & 0xFF, wanted)
    np.testing.assert_array_equal(run("cvt.rn.satfinite.e4m3x2.f32", -x, 0.0) >> 8, wanted | 0x80)
    np.testing.assert_array_equal(run("cvt.rn.satfinite.e4m3x2.f32", np.nan, -np.nan), [0x7F7F])


def test_the_exponential_is_rounded_once_and_flushes() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-126, 128, 400), rng.uniform(-2, 2, 400), [0, 1, -1, 127, -126]]).astype(np.float32)
    got = run("ex2.approx.ftz.f32", x)
    context = Context(prec=60)
    for value, ours in zip(x, got, strict=True):
        exact = context.power(Decimal(2), Decimal(float(value)))
        for other in np.nextafter(ours, [np.float32(0), np.float32(np.inf)]):
            assert abs(Decimal(float(ours)) - exact) <= abs(Decimal(float(other)) - exact)
    assert [exponential_of(float(value)) for value in x[:50]] == got[:50].tolist()
    np.testing.assert_array_equal(
        run("ex2.approx.ftz.f32", [-127, -np.inf, np.inf, 128, 1e-40]), np.array([0, 0, np.inf, np.inf, 1], np.float32)
    )
    assert bits_of(run("ex2.approx.ftz.f32", np.nan)) == NAN


@pytest.mark.parametrize("ulp", [-2, 2])
def test_the_exponential_can_be_off(monkeypatch: pytest.MonkeyPatch, ulp: int) -> None:
    x = np.array([0.3, -5.5, 0.0], np.float32)
    exact = exponential(x).view(np.int32)
    monkeypatch.setattr(Approximation, "ulp", ulp)
    assert (exponential(x).view(np.int32) - exact).tolist() == [ulp, ulp, 0]


INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


def wrapped(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


@many
@given(st.sampled_from(INTEGERS), st.data())
def test_integers(kind: str, data: st.DataObject) -> None:
    bits = int(kind[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "s" else (0, 2**bits - 1)
    numbers = st.one_of(
        st.sampled_from([low, low + 1, high, 0, 1]), st.integers(low, high), st.integers(max(low, -9), 9)
    )
    a, b, c = (data.draw(numbers) for _ in range(3))

    def same(name: str, value: int, result: str, *operands: int) -> None:
        assert int(run(name, *operands)[0]) == wrapped(value, result), (name, operands)

    same(f"add.{kind}", a + b, kind, a, b)
    same(f"sub.{kind}", a - b, kind, a, b)
    same(f"mul.lo.{kind}", a * b, kind, a, b)
    same(f"mad.lo.{kind}", a * b + c, kind, a, b, c)
    same(f"min.{kind}", min(a, b), kind, a, b)
    same(f"max.{kind}", max(a, b), kind, a, b)
    if kind[0] == "s":
        same(f"neg.{kind}", -a, kind, a)
        same(f"abs.{kind}", abs(a), kind, a)
    if b:
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        same(f"div.{kind}", quotient, kind, a, b)
        same(f"rem.{kind}", a - quotient * b, kind, a, b)
    else:
        for name in ("div", "rem"):
            with pytest.raises(Undefined):
                run(f"{name}.{kind}", a, b)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        same(f"mul.wide.{kind}", a * b, wide, a, b)
        same(f"mad.wide.{kind}", a * b + c, wide, a, b, c)
    if kind == "s32":
        same("min.relu.s32", max(min(a, b), 0), kind, a, b)
        same("max.relu.s32", max(a, b, 0), kind, a, b)
    if bits == 32:
        same(f"mul.hi.{kind}", (a * b) >> 32, kind, a, b)
    by = data.draw(st.one_of(st.integers(0, 70), st.just(2**32 - 1)))
    same(f"shr.{kind}", a >> min(by, 70), kind, a, by)
    for name, holds in {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}.items():
        assert bool(run(f"setp.{name}.{kind}", a, b)[0]) == holds
    for other in (*INTEGERS, "u8", "s8"):
        same(f"cvt.{other}.{kind}", a, other, a)


@many
@given(st.sampled_from([16, 32, 64]), st.data())
def test_bits(bits: int, data: st.DataObject) -> None:
    numbers = st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([0, 1, 2**bits - 1, 2 ** (bits - 1)]))
    a, b = data.draw(numbers), data.draw(numbers)
    by, length = data.draw(st.integers(0, 300)), data.draw(st.integers(0, 300))
    mask = 2**bits - 1
    values = {"and": a & b, "or": a | b, "xor": a ^ b}
    for name, value in values.items():
        assert int(run(f"{name}.b{bits}", a, b)[0]) == value
    assert int(run(f"not.b{bits}", a)[0]) == a ^ mask
    assert int(run(f"shl.b{bits}", a, by)[0]) == (a << by) & mask
    assert int(run(f"shr.b{bits}", a, by)[0]) == a >> by
    assert int(run(f"selp.b{bits}", a, b, data.draw(st.booleans()))[0]) in (a, b)
    if bits > 16:
        assert int(run(f"clz.b{bits}", a)[0]) == bits - a.bit_length()
        assert int(run(f"popc.b{bits}", a)[0]) == a.bit_count()
        field = ((1 << min(length & 255, bits)) - 1) << (by & 255)
        inserted = (b & ~field & mask) | ((a << (by & 255)) & field & mask)
        assert int(run(f"bfi.b{bits}", a, b, by, length)[0]) == inserted
    if bits == 32:
        wide = b << 32 | a
        assert int(run("shf.l.wrap.b32", a, b, by)[0]) == (wide << (by & 31)) >> 32 & mask
        assert int(run("shf.r.wrap.b32", a, b, by)[0]) == wide >> (by & 31) & mask


@many
@given(st.sampled_from(["u32", "s32", "u64", "s64"]), st.data())
def test_integers_to_float32_and_back(kind: str, data: st.DataObject) -> None:
    bits = int(kind[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind[0] == "s" else (0, 2**bits - 1)
    n = data.draw(st.one_of(st.integers(low, high), st.sampled_from([low, high, 1, 2**24 + 1, 2**25 + 3, 2**31 - 65])))
    if n:
        assert bits_of(run(f"cvt.rn.f32.{kind}", n)) == rounded(Fraction(n))
    assert float(run(f"cvt.rn.f64.{kind}", n)[0]) == float(n)
    x = of_bits(data.draw(patterns))[0]
    for real, value in (("f32", x), ("f64", np.float64(x) * 1.0000000001)):
        got = int(run(f"cvt.rzi.{kind}.{real}", value)[0])
        if math.isnan(value):
            assert got == (wrapped(1 << (bits - 1), kind) if bits == 64 or real == "f64" else 0)
        else:
            whole = int(math.copysign(2**70, value)) if math.isinf(value) else math.trunc(float(value))
            assert got == min(max(whole, low), high)


def test_conversions_between_floats() -> None:
    halves = np.arange(2**16, dtype=np.uint16)
    for name, kind in (("cvt.f32.f16", np.float16), ("cvt.f32.bf16", ml_dtypes.bfloat16)):
        wanted = halves.view(kind).astype(np.float32)
        got = run(name, halves)
        np.testing.assert_array_equal(got, wanted)
        assert (got[np.isnan(wanted)].view(np.uint32) == NAN).all()
    x = np.array([1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 1e300, -1e-320])
    np.testing.assert_array_equal(run("cvt.rn.f32.f64", x), np.array([1, 1 + 2.0**-23, np.inf, -0.0], np.float32))
    assert float(run("cvt.f64.f32", 0.1)[0]) == float(np.float32(0.1))


def test_predicates() -> None:
    for a in (False, True):
        for b in (False, True):
            values = {"and": a and b, "or": a or b, "xor": a != b}
            assert {name: bool(run(f"{name}.pred", a, b)[0]) for name in values} == values
        assert bool(run("not.pred", a)[0]) != a
