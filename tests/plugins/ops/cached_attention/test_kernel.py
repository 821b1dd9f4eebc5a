"""The CPU kernel of CachedAttention equals the reference, and a query's bits do not depend on other queries.

A column of a tree of drafts gets, bit for bit, what it would get if its path were all of the window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.cpu.sessions import paths_here
from tests.plugins.ops.cached_attention.running import Arrays, attend, case_of, kept, made, reference
from tests.plugins.same_bits import same_bits

few = settings(max_examples=16, deadline=None)


attribute_sets = st.fixed_dictionaries(
    {
        "scale": st.sampled_from([0.125, 1.0]),
        "window": st.sampled_from([0, 1, 5, 64, 100]),
        "softcap": st.sampled_from([0.0, 3.0]),
    }
)


@st.composite
def cases(draw: Any) -> Arrays:
    """Caches of up to three chunks, filled to a different length in every row, often to their end; of every type."""
    batch, key_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 8))
    columns, size = draw(st.sampled_from([*range(1, 10), 70])), draw(st.sampled_from([12, 16, 64, 80, 256]))
    length = columns + draw(st.integers(0, 140))
    most = length - columns
    starts = [draw(st.one_of(st.integers(0, most), st.sampled_from([0, most]))) for _ in range(batch)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = case_of(rng, batch, key_heads, group, columns, size, starts, length)
    if draw(st.booleans()):
        case["sinks"] = rng.normal(size=key_heads * group).astype(np.float32)
    if draw(st.booleans()):
        shares = rng.choice([0.1, 0.5, 0.9, 1.0], (batch, 1, 1))
        case["ancestors"] = rng.random(size=(batch, columns, columns)) < shares
    return kept(case, draw(st.sampled_from(["float32", "float16", "int8"])))


@few
@given(cases(), attribute_sets)
def test_kernel_matches_the_reference_with_the_same_bits_on_every_path(
    cpu_library: Path, case: Arrays, attributes: Arrays
) -> None:
    y, *caches = reference(case, attributes)
    best, *written = attend(cpu_library, case, attributes)
    np.testing.assert_allclose(best, y, rtol=3e-5, atol=3e-5)
    for ours, theirs in zip(written, caches, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for path in paths_here(cpu_library):
        same_bits(attend(cpu_library, case, attributes, path)[0], best)


@few
@given(
    st.integers(0, 2**32 - 1),
    attribute_sets,
    st.sampled_from([(8,), (2, 6), (5, 1, 2), (1,) * 8]),
    st.booleans(),
    st.sampled_from(["float32", "float16", "int8"]),
)
def test_column_is_independent_of_the_window_width(
    cpu_library: Path, seed: int, attributes: Arrays, widths: tuple[int, ...], has_sinks: bool, cache_type: str
) -> None:
    """Each window also writes junk after its end, like a rejected draft; the next window overwrites it."""
    rng = np.random.default_rng(seed)
    start = int(rng.integers(0, 190))
    whole = kept(case_of(rng, 1, 2, 3, 8, 64, [start], 200), cache_type)
    whole |= {"sinks": rng.normal(size=6).astype(np.float32)} if has_sinks else {}
    expected = attend(cpu_library, whole, attributes)[0]
    caches, at = {name: whole[name] for name in ("k_cache", "v_cache")}, 0
    for width in widths:
        junk = {name: np.full_like(whole[name][:, :, :1], np.nan) for name in "qkv"}
        here = {name: np.concatenate([whole[name][:, :, at : at + width], junk[name]], axis=2) for name in "qkv"}
        y, *written = attend(cpu_library, whole | here | caches | {"start": np.array([start + at])}, attributes)
        same_bits(y[:, :width], expected[:, at : at + width])
        caches, at = dict(zip(caches, written, strict=True)), at + width


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 8),
    st.sampled_from([(1, 3, 64), (2, 2, 128), (1, 8, 80), (2, 1, 12)]),
    st.integers(1400, 2300),
    st.sampled_from(["float32", "float16", "int8"]),
)
def test_window_over_a_long_cache_has_the_bits_of_single_columns(
    cpu_library: Path, seed: int, columns: int, heads: tuple[int, int, int], start: int, cache_type: str
) -> None:
    """On every path, for any number of queries of a key head, and for more chunks than are merged at once."""
    key_heads, group, size = heads
    rng = np.random.default_rng(seed)
    case = kept(case_of(rng, 1, key_heads, group, columns, size, [start], start + columns), cache_type)
    together, *caches = attend(cpu_library, case, {"scale": 0.3}, threads=2)
    for path in paths_here(cpu_library):
        same_bits(attend(cpu_library, case, {"scale": 0.3}, path)[0], together)
    for column in range(columns):
        alone = {name: case[name][:, :, column : column + 1] for name in "qkv"}
        alone |= {"start": case["start"] + column} | dict(zip(("k_cache", "v_cache"), caches, strict=True))
        same_bits(attend(cpu_library, alone, {"scale": 0.3})[0], together[:, column : column + 1])


@few
@given(cases(), attribute_sets)
def test_neighbours_and_threads_change_no_bit_of_a_row(cpu_library: Path, case: Arrays, attributes: Arrays) -> None:
    together = attend(cpu_library, case, attributes, threads=3)
    for b in range(len(case["start"])):
        alone = {name: array if name == "sinks" else array[b : b + 1] for name, array in case.items()}
        for ours, theirs in zip(attend(cpu_library, alone, attributes), together, strict=True):
            same_bits(ours, theirs[b : b + 1])


@few
@given(cases(), attribute_sets, st.sampled_from([np.nan, np.inf, 3e38]))
def test_content_past_a_query_is_ignored(cpu_library: Path, case: Arrays, attributes: Arrays, wild: float) -> None:
    """NaN in the cache or in a draft affects only its own column and those after it."""
    case = {name: array for name, array in case.items() if name != "ancestors"}
    columns = case["q"].shape[2]
    expected = attend(cpu_library, case, attributes)[0]
    spoiled = case | {name: case[name].copy() for name in ("q", "k", "v", "k_cache", "v_cache")}
    for b, start in enumerate(case["start"]):
        for name in ("k_cache", "v_cache"):
            huge = wild if case[name].dtype == np.float32 else np.inf
            spoiled[name][b, :, start:] = -128 if case[name].dtype == np.int8 else huge if wild == 3e38 else wild
    for name in "qkv":
        spoiled[name][:, :, columns // 2 + 1 :] = wild
    for path in paths_here(cpu_library):
        y = attend(cpu_library, spoiled, attributes, path)[0]
        same_bits(y[:, : columns // 2 + 1], expected[:, : columns // 2 + 1])


def test_new_numbers_round_to_float16_on_every_path(cpu_library: Path) -> None:
    """Numbers of every size, the middle of two neighbours, and what float16 has no room for."""
    every = np.arange(0, 2**16, 7, np.uint16).view(np.float16).astype(np.float32)
    every = every[np.isfinite(every)]
    middles = (every + np.nextafter(every.astype(np.float16), np.float16(np.inf)).astype(np.float32)) / 2
    wild = np.array([65519.996, 65520.0, 1e9, -1e9, 2.0**-25, 1.5 * 2.0**-25, -0.0, 1e-40], np.float32)
    numbers = np.concatenate([wild, every, middles, np.nextafter(middles, np.float32(0)), [np.inf, -np.inf, np.nan]])
    numbers = numbers.astype(np.float32)
    columns = len(numbers) // 12
    new = numbers[: columns * 12].reshape(1, 1, columns, 12)
    kept = np.zeros((1, 1, columns, 12), np.float16)
    start = np.zeros(1, np.int64)
    case = {"q": np.zeros_like(new), "k": new, "v": new, "k_cache": kept, "v_cache": kept, "start": start}
    with np.errstate(over="ignore"):
        expected = new.astype(np.float16)
    for path in paths_here(cpu_library):
        same_bits(attend(cpu_library, case, {"scale": 1.0}, path)[1], expected)


def test_keys_and_values_beyond_float16_are_clamped_on_every_path(cpu_library: Path) -> None:
    """The output stays finite where that of FP32 caches is; without the attribute, they become infinite."""
    case = case_of(np.random.default_rng(9), 1, 2, 3, 5, 64, [70], 80)
    for name, wild in (("k", 7e4), ("v", -3e38)):
        case[name][0, :, 1, 3] = wild
    assert np.isfinite(attend(cpu_library, case, {"scale": 0.1})[0]).all()
    half, attributes = kept(case, "float16"), {"scale": 0.1, "saturates": 1}
    assert not np.isfinite(attend(cpu_library, half, {"scale": 0.1})[0]).all()
    expected = reference(half, attributes)
    for path in paths_here(cpu_library):
        y, k_out, v_out = attend(cpu_library, half, attributes, path)
        np.testing.assert_allclose(y, expected[0], rtol=3e-5, atol=3e-2)
        assert (k_out[0, 0, 71, 3], v_out[0, 0, 71, 3]) == (65504, -65504)
        for ours, theirs in zip((k_out, v_out), expected[1:], strict=True):
            same_bits(ours, theirs)


def test_only_caches_of_float16_saturate(cpu_library: Path) -> None:
    case = case_of(np.random.default_rng(7), 1, 1, 1, 1, 16, [0], 2)
    with pytest.raises(Exception, match="saturates requires float16 caches"):
        attend(cpu_library, case, {"scale": 1.0, "saturates": 1})


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_match_the_reference(cpu_library: Path, wild: float) -> None:
    """In one position that is seen: of its key and of its value."""
    for name in ("k_cache", "v_cache"):
        case = case_of(np.random.default_rng(3), 1, 2, 2, 3, 64, [90], 100)
        case[name][0, 0, 7, 3] = wild
        expected = reference(case, {"scale": 1.0})[0]
        y = attend(cpu_library, case, {"scale": 1.0})[0]
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        np.testing.assert_allclose(y, expected, rtol=3e-5, atol=3e-5)


def test_scores_of_every_size_leave_shares_that_are_right(cpu_library: Path) -> None:
    """Differences beyond what an exponential can hold, whole chunks that count for nothing, and scores of -inf."""
    for scale in (1e-30, 1.0, 40.0, 1e4):
        case = case_of(np.random.default_rng(4), 1, 1, 2, 2, 16, [150], 152)
        expected = reference(case, {"scale": scale})[0]
        np.testing.assert_allclose(attend(cpu_library, case, {"scale": scale})[0], expected, rtol=3e-5, atol=3e-5)
    case["k_cache"][:, :, :70] = -np.sign(case["q"][:, :1, :1]) * 3e38  # the product is -inf for the first query
    y, expected = attend(cpu_library, case, {"scale": 1.0})[0], reference(case, {"scale": 1.0})[0]
    assert np.isfinite(expected[0, 0, 0]).all()
    np.testing.assert_allclose(y[0, 0, 0], expected[0, 0, 0], rtol=3e-5, atol=3e-5)


def test_aliased_caches_are_written_in_place(cpu_library: Path) -> None:
    import onnxruntime

    case = case_of(np.random.default_rng(5), 2, 2, 3, 4, 64, [0, 60], 64)
    expected = attend(cpu_library, case, {"scale": 1.0})
    binding = made(cpu_library, (), (("scale", 1.0),)).io_binding()
    for name, array in case.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y")
    for name in ("k", "v"):
        binding.bind_ortvalue_output(f"{name}_out", onnxruntime.OrtValue.ortvalue_from_numpy(case[f"{name}_cache"]))
    made(cpu_library, (), (("scale", 1.0),)).run_with_iobinding(binding)
    same_bits(binding.get_outputs()[0].numpy(), expected[0])
    for name, written in zip(("k_cache", "v_cache"), expected[1:], strict=True):
        same_bits(case[name], written)


CACHES = ("k_cache", "v_cache")
REFUSED: dict[str, tuple[Arrays, str]] = {
    "a start before the cache": ({"start": np.array([-1])}, "row 0: 2 positions from -1 do not fit in a cache of 8"),
    "a start at its end": ({"start": np.array([7])}, "row 0: 2 positions from 7 do not fit in a cache of 8"),
    "a huge start": ({"start": np.array([2**62])}, "do not fit in a cache of 8"),
    "a start too many": ({"start": np.array([1, 1])}, "start must have one number for each of the 1 rows"),
    "heads that cannot be shared": ({"q": np.zeros((1, 5, 2, 16))}, "5 query heads cannot share 2 key heads evenly"),
    "no heads": ({"k_cache": np.zeros((1, 0, 8, 16))}, "do not match"),
    "another width": ({"v": np.zeros((1, 2, 3, 16))}, "do not match queries of"),
    "another size": ({"v_cache": np.zeros((1, 2, 8, 12))}, "do not match queries of"),
    "too few dimensions": ({"k": np.zeros((2, 2, 16))}, "input 1 has 3 dimensions, not 4"),
    "sinks of other heads": ({"sinks": np.zeros(3)}, "sinks must have one number for each of the 4 heads"),
    "a tree of other columns": (
        {"ancestors": np.zeros((1, 2, 3), bool)},
        "each of the 1 rows, over 2 columns",
    ),
    "codes without their scales": (
        {name: np.zeros((1, 2, 8, 16), np.int8) for name in CACHES},
        "do not match queries of",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_misfit_inputs_are_rejected(cpu_library: Path, what: str) -> None:
    change, complaint = REFUSED[what]
    case = case_of(np.random.default_rng(6), 1, 2, 2, 2, 16, [0], 8) | change
    case = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in case.items()}
    with pytest.raises(Exception, match=complaint):
        attend(cpu_library, case, {"scale": 1.0})


def test_heads_of_more_numbers_than_the_kernel_has_room_for_are_refused(cpu_library: Path) -> None:
    case = case_of(np.random.default_rng(7), 1, 1, 1, 1, 513, [0], 2)
    with pytest.raises(Exception, match="heads have size 513, but must have size 1 to 512"):
        attend(cpu_library, case, {"scale": 1.0})


def test_caches_of_codes_are_refused_when_the_node_is_loaded(cpu_library: Path) -> None:
    with pytest.raises(Exception, match="the CPU kernel does not support caches of E4M3 codes"):
        made(cpu_library, (), (("scale", 1.0), ("k_scale", 0.5), ("v_scale", 0.5)))


def test_caches_of_int8_go_with_their_attribute(cpu_library: Path) -> None:
    case = case_of(np.random.default_rng(7), 1, 1, 1, 1, 16, [0], 2)
    wide = made(cpu_library, (), (("scale", 1.0), ("scaled", 1)))
    with pytest.raises(Exception, match="int8 caches require the attribute scaled"):
        wide.run(None, case)


def test_zero_rows_or_columns_give_nothing(cpu_library: Path) -> None:
    rng = np.random.default_rng(8)
    for batch, columns in ((0, 2), (2, 0)):
        case = case_of(rng, batch, 2, 2, columns, 16, [3] * batch, 8)
        y, k_out, _ = attend(cpu_library, case, {"scale": 1.0})
        assert y.shape == (batch, columns, 4, 16)
        np.testing.assert_array_equal(k_out, case["k_cache"])


def tree_of(rng: Any, columns: int) -> Any:
    """bool [S, S]: of a random tree, whose columns come after their parents."""
    sees = np.eye(columns, dtype=bool)
    for column in range(1, columns):
        parent = int(rng.integers(-1, column))  # -1: a root of its own
        if parent >= 0:
            sees[column] |= sees[parent]
    return sees


@few
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7, 24, 70]),
    st.sampled_from([12, 64]),
    st.sampled_from(["float32", "float16", "int8"]),
    st.fixed_dictionaries({"scale": st.just(0.125), "window": st.sampled_from([0, 3, 70]), "softcap": st.just(0.0)}),
)
def test_tree_column_has_the_bits_of_its_path_window(
    cpu_library: Path, seed: int, columns: int, size: int, cache_type: str, attributes: Arrays
) -> None:
    """Whatever is in the columns that it does not see, and on every path through the code."""
    rng = np.random.default_rng(seed)
    starts = [int(each) for each in rng.integers(0, 130, 2)]
    whole = kept(case_of(rng, 2, 2, 3, columns, size, starts, 200), cache_type)
    whole["ancestors"] = np.stack([tree_of(rng, columns) for _ in starts])
    together = attend(cpu_library, whole, attributes, threads=2)[0]
    for path in paths_here(cpu_library):
        same_bits(attend(cpu_library, whole, attributes, path)[0], together)
    for b in range(2):
        column = int(rng.integers(0, columns))
        seen = np.flatnonzero(whole["ancestors"][b, column])
        alone = {name: array[b : b + 1] for name, array in whole.items() if name != "ancestors"}
        along = alone | {name: alone[name][:, :, seen] for name in "qkv"}
        same_bits(attend(cpu_library, along, attributes)[0][:, -1], together[b : b + 1, column])
        wild = {name: whole[name].copy() for name in "qkv"}
        for array in wild.values():
            array[b][:, [each for each in range(columns) if each not in seen]] = np.nan
        same_bits(attend(cpu_library, whole | wild, attributes)[0][b, column], together[b, column])


@settings(max_examples=9, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 9, 70]),
    st.sampled_from(["float32", "float16", "int8"]),
    st.fixed_dictionaries({"scale": st.just(0.2), "window": st.sampled_from([0, 5, 70])}),
)
def test_chain_beside_trees_has_the_bits_of_a_plain_window(
    cpu_library: Path, seed: int, columns: int, cache_type: str, attributes: Arrays
) -> None:
    """Also at the end of its cache. Columns after its own do not affect a column."""
    rng = np.random.default_rng(seed)
    starts = [int(rng.integers(0, 150 - columns)), 150 - columns, int(rng.integers(0, 150 - columns))]
    case = kept(case_of(rng, 3, 2, 3, columns, 16, starts, 150), cache_type)
    plain = attend(cpu_library, case, attributes)
    chain = np.tri(columns, k=-1, dtype=bool)
    case["ancestors"] = np.stack([tree_of(rng, columns), chain, chain | (rng.random(chain.shape) < 0.5)])
    for path in paths_here(cpu_library):
        for ours, theirs in zip(attend(cpu_library, case, attributes, path, threads=2), plain, strict=True):
            same_bits(ours[1:], theirs[1:])


def test_window_without_ancestors_sees_only_itself(cpu_library: Path) -> None:
    case = case_of(np.random.default_rng(2), 1, 2, 2, 6, 64, [61], 100)
    plain, *caches = attend(cpu_library, case, {"scale": 0.2})
    y, *written = attend(cpu_library, case | {"ancestors": np.zeros((1, 6, 6), bool)}, {"scale": 0.2})
    same_bits(y[:, 0], plain[:, 0])
    assert not np.array_equal(y[:, 1], plain[:, 1])
    for ours, theirs in zip(written, caches, strict=True):
        same_bits(ours, theirs)
