"""CachedAttention: write into a linear cache, attend at absolute positions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.cache_write_fp8.reference import cache_codes
from peagle.plugins.ops.cached_attention.int8_caches import codes_of
from tests.plugins.plugin_cases import Arrays, few

OP = "CachedAttention"
NAMES = [operand.name for operand in OPS[OP].inputs]


E4M3 = ml_dtypes.float8_e4m3fn
SCALES = {"k_scale": 0.011, "v_scale": 0.017}


def inputs_of(case: Arrays) -> list[Any]:
    return [case.get(name) for name in NAMES]


def alone(case: Arrays, b: int) -> Arrays:
    return {name: array if name == "sinks" else array[b : b + 1] for name, array in case.items()}


def close(ours: Any, theirs: Any) -> None:
    """Within the rounding of the dtype; float16 attention is free to round scores and weights on the way."""
    tolerance = 1e-2 if ours.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=tolerance, rtol=tolerance)


def same(ours: list[Any], theirs: list[Any]) -> None:
    close(ours[0], theirs[0])
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine.astype(np.float32), other.astype(np.float32))


attributes = st.fixed_dictionaries(
    {
        "scale": st.sampled_from([0.25, 1.0]),
        "window": st.sampled_from([0, 1, 3]),
        "softcap": st.sampled_from([0.0, 2.0]),
    }
)


@st.composite
def cases(draw: Any) -> Arrays:
    """A step of 1..5 positions into caches that are filled to a different length in every row."""
    batch, key_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    length, size = draw(st.integers(1, 5)), draw(st.sampled_from([4, 8]))
    slots = length + draw(st.integers(0, 6))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(dtype)

    case = {
        "q": normal(batch, key_heads * group, length, size),
        "k": normal(batch, key_heads, length, size),
        "v": normal(batch, key_heads, length, size),
        "k_cache": normal(batch, key_heads, slots, size),
        "v_cache": normal(batch, key_heads, slots, size),
        "start": np.array([draw(st.integers(0, slots - length)) for _ in range(batch)]),
    }
    if draw(st.booleans()):
        case["sinks"] = normal(key_heads * group)
    return case


@few
@given(cases(), attributes)
def test_body_matches_the_reference(run_body: Any, case: Arrays, attributes: dict[str, Any]) -> None:
    same(run_body(OP, inputs_of(case), **attributes), OPS[OP].reference(*inputs_of(case), **attributes))


def in_codes(case: Arrays) -> Arrays:
    """The case with caches of codes."""
    return case | {name: cache_codes(case[name], SCALES[f"{name[0]}_scale"]) for name in ("k_cache", "v_cache")}


@few
@given(cases(), attributes)
def test_body_with_code_caches_matches_the_reference(run_body: Any, case: Arrays, attributes: dict[str, Any]) -> None:
    case, attributes = in_codes(case), attributes | SCALES
    same(run_body(OP, inputs_of(case), **attributes), OPS[OP].reference(*inputs_of(case), **attributes))


@few
@given(cases(), attributes)
def test_codes_match_the_write_op_and_attention_uses_their_values(case: Arrays, attributes: dict[str, Any]) -> None:
    case = in_codes(case)
    y, *caches = OPS[OP].reference(*inputs_of(case), **attributes | SCALES)
    scales = [np.array(scale, np.float32) for scale in SCALES.values()]
    new = [case[name] for name in ("k_cache", "v_cache", "k", "v", "start")]
    for ours, theirs in zip(caches, OPS["CacheWriteFp8"].reference(*new, *scales), strict=True):
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))
    k, v = ((cache.astype(np.float32) * scale).astype(y.dtype) for cache, scale in zip(caches, scales, strict=True))
    starts, length = case["start"], case["k"].shape[2]
    wide = case | {"k_cache": k, "v_cache": v}
    wide |= {
        name: np.stack([cache[b, :, start : start + length] for b, start in enumerate(starts)])
        for name, cache in (("k", k), ("v", v))
    }
    close(OPS[OP].reference(*inputs_of(wide), **attributes)[0], y)


@few
@given(cases(), attributes, st.integers(0, 1))
def test_body_with_float16_caches_matches_the_reference(
    run_body: Any, case: Arrays, attributes: dict[str, Any], saturates: int
) -> None:
    case = {name: x.astype(np.float16) if "cache" in name else x for name, x in case.items()}
    given = attributes | {"saturates": saturates}
    same(run_body(OP, inputs_of(case), **given), OPS[OP].reference(*inputs_of(case), **given))


def test_body_keeps_large_keys_and_values_in_the_range_of_float16(run_body: Any) -> None:
    numbers = np.array([[[[7e4, -7e4, 65519, 3e38, -3e38, np.inf, -np.inf, 5]]]], np.float32)
    new, old = np.zeros_like(numbers), np.zeros((1, 1, 1, 8), np.float16)
    expected = np.array([65504, -65504, 65504, 65504, -65504, np.inf, -np.inf, 5], np.float16)
    given = {"scale": 1.0, "window": 0, "softcap": 0.0, "saturates": 1}
    for run in (lambda *inputs: run_body(OP, inputs, **given), lambda *inputs: OPS[OP].reference(*inputs, **given)):
        k_out = run(new, numbers, numbers, old, old, np.zeros(1, np.int64))[1]
        np.testing.assert_array_equal(k_out[0, 0, 0], expected)


@few
@given(cases(), attributes, st.sampled_from([0.3, 0.8]), st.integers(0, 99), st.booleans())
def test_body_with_trees_and_int8_caches_matches_the_reference(
    run_body: Any, case: Arrays, attributes: dict[str, Any], share: float, seed: int, scaled: bool
) -> None:
    batch, length = len(case["start"]), case["k"].shape[2]
    case |= {"ancestors": np.random.default_rng(seed).random(size=(batch, length, length)) < share}
    if scaled:
        case |= {name: codes_of(case[name]) for name in ("k_cache", "v_cache")}
    given = attributes | {"scaled": int(scaled)}
    same(run_body(OP, inputs_of(case), **given), OPS[OP].reference(*inputs_of(case), **given))


def test_a_column_of_a_tree_sees_its_ancestors_and_counts_its_window_along_them() -> None:
    """A cache of two positions; columns 1 and 2 are two drafts for one place, and 3 stands behind 2."""
    values = np.arange(1, 7, dtype=np.float32)
    ancestors = np.array([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]], bool)
    case: dict[str, Any] = {
        "q": np.zeros((1, 1, 4, 1)),
        "k": np.zeros((1, 1, 4, 1)),
        "v": values[2:].reshape(1, 1, 4, 1),
    }
    case |= {"k_cache": np.zeros((1, 1, 6, 1)), "v_cache": np.append(values[:2], np.zeros(4)).reshape(1, 1, 6, 1)}
    case = {name: x.astype(np.float32) for name, x in case.items()} | {"start": np.array([2]), "ancestors": ancestors}
    seen = {
        0: ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5, 6]),
        3: ([1, 2, 3], [2, 3, 4], [2, 3, 5], [3, 5, 6]),
    }
    for window, numbers in seen.items():
        y = OPS[OP].reference(*inputs_of(case), scale=1.0, window=window, softcap=0.0)[0]
        np.testing.assert_allclose(y.reshape(-1), [np.mean(each) for each in numbers], rtol=1e-6)


@few
@given(cases(), attributes)
def test_rows_do_not_influence_each_other(run_body: Any, case: Arrays, attributes: dict[str, Any]) -> None:
    together = run_body(OP, inputs_of(case), **attributes)
    for b in range(len(case["start"])):
        same([x[b : b + 1] for x in together], run_body(OP, inputs_of(alone(case, b)), **attributes))


@few
@given(cases(), attributes)
def test_unused_cache_content_changes_nothing(run_body: Any, case: Arrays, attributes: dict[str, Any]) -> None:
    """So rejected drafts need no clearing. (Finite junk only: 0 * NaN is NaN in every attention kernel.)"""
    clean = run_body(OP, inputs_of(case), **attributes)
    length = case["k"].shape[2]
    spoiled = case | {"k_cache": case["k_cache"].copy(), "v_cache": case["v_cache"].copy()}
    for b, start in enumerate(case["start"]):
        spoiled["k_cache"][b, :, start:] = 100 if case["q"].dtype == np.float16 else 1e15
        spoiled["v_cache"][b, :, start:] = 6e4
    y, k_out, _ = run_body(OP, inputs_of(spoiled), **attributes)
    np.testing.assert_array_equal(y, clean[0])
    np.testing.assert_array_equal(OPS[OP].reference(*inputs_of(spoiled), **attributes)[1], k_out)
    for b, start in enumerate(case["start"]):
        np.testing.assert_array_equal(k_out[b, :, : start + length], clean[1][b, :, : start + length])


@few
@given(cases(), attributes)
def test_only_the_new_positions_are_written(case: Arrays, attributes: dict[str, Any]) -> None:
    _, k_out, v_out = OPS[OP].reference(*inputs_of(case), **attributes)
    length = case["k"].shape[2]
    for new, cache, out in (("k", "k_cache", k_out), ("v", "v_cache", v_out)):
        for b, start in enumerate(case["start"]):
            np.testing.assert_array_equal(out[b, :, start : start + length], case[new][b])
            np.testing.assert_array_equal(out[b, :, :start], case[cache][b, :, :start])
            np.testing.assert_array_equal(out[b, :, start + length :], case[cache][b, :, start + length :])


def plain_attention(q: Any, k: Any, v: Any, sinks: Any, *, scale: float, window: int, softcap: float) -> Any:
    """Softmax attention over a whole sequence, without a cache: q [B, Hq, L, D] -> [B, L, Hq, D], in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, group, axis=1)) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    i, j = np.mgrid[:length, :length]
    scores[..., (j > i) | ((j <= i - window) if window else False)] = -np.inf
    if sinks is not None:
        column = np.broadcast_to(sinks.astype(np.float64)[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], axis=-1)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bqhd", p[..., :length], np.repeat(v, group, axis=1))


@few
@given(attributes, st.booleans(), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_a_sequence_fed_in_steps_equals_plain_attention(
    run_body: Any, attributes: dict[str, Any], has_sinks: bool, steps: list[int], seed: int
) -> None:
    """Every step also feeds one junk position, as a rejected draft would; the next step overwrites it."""
    rng = np.random.default_rng(seed)
    length = sum(steps)
    q, k, v = (rng.normal(size=(2, heads, length, 8)).astype(np.float32) for heads in (4, 2, 2))
    sinks = rng.normal(size=4).astype(np.float32) if has_sinks else None
    expected = plain_attention(q, k, v, sinks, **attributes)
    k_cache, v_cache = (rng.normal(size=(2, 2, length + 1, 8)).astype(np.float32) for _ in range(2))
    begin = 0
    for step in steps:
        here = slice(begin, begin + step)
        new = [np.concatenate([x[:, :, here], 50 * np.ones_like(x[:, :, :1])], axis=2) for x in (q, k, v)]
        inputs = [*new, k_cache, v_cache, np.array([begin, begin]), sinks]
        y, _, _ = OPS[OP].reference(*inputs, **attributes)
        close(y[:, :step], expected[:, here])
        y, k_cache, v_cache = run_body(OP, inputs, **attributes)
        close(y[:, :step], expected[:, here])
        begin += step


@pytest.mark.parametrize("start", [-1, 3])
def test_a_write_that_leaves_the_cache_is_refused(run_body: Any, start: int) -> None:
    new, cache = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 4, 4), np.float32)
    inputs = [new, new, new, cache, cache, np.array([start]), None]
    attributes = {"scale": 1.0, "window": 0, "softcap": 0.0}
    with pytest.raises(ValueError, match="do not fit in a cache of 4"):
        OPS[OP].reference(*inputs, **attributes)
    with pytest.raises(Exception, match="TensorScatter"):
        run_body(OP, inputs, **attributes)


def test_illegal_attributes_and_head_counts_are_named() -> None:
    with pytest.raises(BuildError) as caught:
        OPS[OP].check_attributes({"scale": float("nan"), "window": -1, "softcap": -2.0})
    assert all(name in caught.value.what for name in ("scale must be finite", "window must be", "softcap must be"))
    new, cache = (1, 2, 4, 8), (1, 2, 16, 8)
    with pytest.raises(BuildError, match="3 query heads cannot share 2 key heads"):
        OPS[OP].infer_shapes([(1, 3, 4, 8), new, new, cache, cache, (1,)])
    with pytest.raises(BuildError, match="4 new positions do not fit a cache of 2"):
        OPS[OP].infer_shapes([new, new, new, (1, 2, 2, 8), (1, 2, 2, 8), (1,)])


def test_one_cache_of_codes_alone_is_refused() -> None:
    with pytest.raises(BuildError, match="k_scale and v_scale must be set together"):
        OPS[OP].body(OPS[OP].check_attributes({"k_scale": 0.5}), frozenset())
    with pytest.raises(BuildError, match="v_cache must be float8e4m3fn, not float16"):
        OPS[OP].infer_dtypes(["float16"] * 3 + ["float8e4m3fn", "float16", "int64"])
