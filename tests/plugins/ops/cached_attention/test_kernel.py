"""The CPU kernel of CachedAttention: the reference's numbers, and of a query the same bits in any company."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.ops import OPS
from tests.plugins.cpu.sessions import paths_here, session

OP = "CachedAttention"
NAMES = [operand.name for operand in OPS[OP].inputs]
Arrays = dict[str, Any]
few = settings(max_examples=25, deadline=None, derandomize=True)


@cache
def made(
    library: Path,
    has_sinks: bool,
    attributes: tuple[tuple[str, Any], ...],
    path: str = "",
    threads: int = 1,
    kept_as: str = "float32",
) -> Any:
    inputs = {name: kept_as if "cache" in name else "float32" for name in NAMES} | {"start": "int64"}
    given = inputs | ({} if has_sinks else {"sinks": None})
    outputs = {"y": "float32", "k_out": kept_as, "v_out": kept_as}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return session(library, one_node_model(OP, given, outputs, dict(attributes)), threads)


def attend(library: Path, case: Arrays, attributes: Arrays, path: str = "", threads: int = 1) -> list[Any]:
    """y, k_out, v_out of the kernel on one path, the best unless told."""
    kept_as = case["k_cache"].dtype.name
    made_once = made(library, "sinks" in case, tuple(attributes.items()), path, threads, kept_as)
    return list(made_once.run(None, case))


def reference(case: Arrays, attributes: Arrays) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return OPS[OP].reference(*(case.get(name) for name in NAMES), **OPS[OP].check_attributes(attributes))


def same_bits(ours: Any, theirs: Any) -> None:
    """Every bit but those of a NaN."""
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    there = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[there].view(f"i{ours.itemsize}"), theirs[there].view(f"i{ours.itemsize}"))


def case_of(
    rng: Any, batch: int, key_heads: int, group: int, columns: int, size: int, starts: list[int], length: int
) -> Arrays:
    new, kept = (batch, key_heads, columns, size), (batch, key_heads, length, size)
    shapes = {"q": (batch, key_heads * group, columns, size), "k": new, "v": new, "k_cache": kept, "v_cache": kept}
    case: Arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return case | {"start": np.array(starts, np.int64)}


attribute_sets = st.fixed_dictionaries(
    {
        "scale": st.sampled_from([0.125, 1.0]),
        "window": st.sampled_from([0, 1, 5, 64, 100]),
        "softcap": st.sampled_from([0.0, 3.0]),
    }
)


@st.composite
def cases(draw: Any) -> Arrays:
    """Caches of up to three chunks, filled to a different length in every row, often to their end; some of float16."""
    batch, key_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(1, 8))
    columns, size = draw(st.sampled_from([*range(1, 10), 70])), draw(st.sampled_from([12, 16, 64, 80, 256]))
    length = columns + draw(st.integers(0, 140))
    most = length - columns
    starts = [draw(st.one_of(st.integers(0, most), st.sampled_from([0, most]))) for _ in range(batch)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = case_of(rng, batch, key_heads, group, columns, size, starts, length)
    if draw(st.booleans()):
        case["sinks"] = rng.normal(size=key_heads * group).astype(np.float32)
    kept_as = draw(st.sampled_from([np.float32, np.float16]))
    return case | {name: case[name].astype(kept_as) for name in ("k_cache", "v_cache")}


@few
@given(cases(), attribute_sets)
def test_the_kernel_gives_the_numbers_of_the_reference_and_the_same_bits_on_every_path(
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
@given(st.integers(0, 2**32 - 1), attribute_sets, st.sampled_from([(8,), (2, 6), (5, 1, 2), (1,) * 8]), st.booleans())
def test_a_column_is_the_same_in_a_window_of_any_width(
    cpu_library: Path, seed: int, attributes: Arrays, widths: tuple[int, ...], has_sinks: bool
) -> None:
    """Each window also feeds junk behind, as a rejected draft would be; the next one overwrites it."""
    rng = np.random.default_rng(seed)
    start = int(rng.integers(0, 190))
    whole = case_of(rng, 1, 2, 3, 8, 64, [start], 200)
    whole |= {"sinks": rng.normal(size=6).astype(np.float32)} if has_sinks else {}
    expected = attend(cpu_library, whole, attributes)[0]
    caches, at = {name: whole[name] for name in ("k_cache", "v_cache")}, 0
    for width in widths:
        junk = {name: np.full_like(whole[name][:, :, :1], np.nan) for name in "qkv"}
        here = {name: np.concatenate([whole[name][:, :, at : at + width], junk[name]], axis=2) for name in "qkv"}
        y, *written = attend(cpu_library, whole | here | caches | {"start": np.array([start + at])}, attributes)
        same_bits(y[:, :width], expected[:, at : at + width])
        caches, at = dict(zip(caches, written, strict=True)), at + width


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
def test_what_lies_past_a_query_is_in_nothing_that_it_gives(
    cpu_library: Path, case: Arrays, attributes: Arrays, wild: float
) -> None:
    """Of the cache, and of the window: a draft that is no number spoils its own column and those behind it."""
    columns = case["q"].shape[2]
    expected = attend(cpu_library, case, attributes)[0]
    spoiled = case | {name: case[name].copy() for name in ("q", "k", "v", "k_cache", "v_cache")}
    for b, start in enumerate(case["start"]):
        for name in ("k_cache", "v_cache"):
            spoiled[name][b, :, start:] = np.inf if wild == 3e38 and case[name].dtype == np.float16 else wild
    for name in "qkv":
        spoiled[name][:, :, columns // 2 + 1 :] = wild
    for path in paths_here(cpu_library):
        y = attend(cpu_library, spoiled, attributes, path)[0]
        same_bits(y[:, : columns // 2 + 1], expected[:, : columns // 2 + 1])


def test_new_numbers_are_kept_as_the_nearest_of_float16_on_every_path(cpu_library: Path) -> None:
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


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_give_what_the_reference_gives(cpu_library: Path, wild: float) -> None:
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


def test_caches_are_written_in_place_where_one_buffer_is_bound_on_both_sides(cpu_library: Path) -> None:
    import onnxruntime

    case = case_of(np.random.default_rng(5), 2, 2, 3, 4, 64, [0, 60], 64)
    expected = attend(cpu_library, case, {"scale": 1.0})
    binding = made(cpu_library, False, (("scale", 1.0),)).io_binding()
    for name, array in case.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y")
    for name in ("k", "v"):
        binding.bind_ortvalue_output(f"{name}_out", onnxruntime.OrtValue.ortvalue_from_numpy(case[f"{name}_cache"]))
    made(cpu_library, False, (("scale", 1.0),)).run_with_iobinding(binding)
    same_bits(binding.get_outputs()[0].numpy(), expected[0])
    for name, written in zip(("k_cache", "v_cache"), expected[1:], strict=True):
        same_bits(case[name], written)


REFUSED: dict[str, tuple[Arrays, str]] = {
    "a start before the cache": ({"start": np.array([-1])}, "row 0: 2 positions from -1 leave a cache of 8"),
    "a start at its end": ({"start": np.array([7])}, "row 0: 2 positions from 7 leave a cache of 8"),
    "a huge start": ({"start": np.array([2**62])}, "leave a cache of 8"),
    "a start too many": ({"start": np.array([1, 1])}, "start does not have a number for each of 1 rows"),
    "heads that cannot be shared": ({"q": np.zeros((1, 5, 2, 16))}, "5 query heads cannot share 2 key heads evenly"),
    "no heads": ({"k_cache": np.zeros((1, 0, 8, 16))}, "do not fit"),
    "another width": ({"v": np.zeros((1, 2, 3, 16))}, "do not fit queries of"),
    "another size": ({"v_cache": np.zeros((1, 2, 8, 12))}, "do not fit queries of"),
    "too few dimensions": ({"k": np.zeros((2, 2, 16))}, "input 1 has 3 dimensions, not 4"),
    "sinks of other heads": ({"sinks": np.zeros(3)}, "there is no sink for each of 4 heads"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(cpu_library: Path, what: str) -> None:
    change, complaint = REFUSED[what]
    case = case_of(np.random.default_rng(6), 1, 2, 2, 2, 16, [0], 8) | change
    case = {name: array if name == "start" else array.astype(np.float32) for name, array in case.items()}
    with pytest.raises(Exception, match=complaint):
        attend(cpu_library, case, {"scale": 1.0})


def test_heads_of_more_numbers_than_the_kernel_has_room_for_are_refused(cpu_library: Path) -> None:
    case = case_of(np.random.default_rng(7), 1, 1, 1, 1, 513, [0], 2)
    with pytest.raises(Exception, match="a head has 513 numbers, not 1 to 512"):
        attend(cpu_library, case, {"scale": 1.0})


def test_caches_of_codes_are_refused_when_the_node_is_loaded(cpu_library: Path) -> None:
    with pytest.raises(Exception, match="caches of codes have no CPU kernel"):
        made(cpu_library, False, (("scale", 1.0), ("k_scale", 0.5), ("v_scale", 0.5)))


def test_no_rows_and_no_columns_give_nothing(cpu_library: Path) -> None:
    rng = np.random.default_rng(8)
    for batch, columns in ((0, 2), (2, 0)):
        case = case_of(rng, batch, 2, 2, columns, 16, [3] * batch, 8)
        y, k_out, _ = attend(cpu_library, case, {"scale": 1.0})
        assert y.shape == (batch, columns, 4, 16)
        np.testing.assert_array_equal(k_out, case["k_cache"])
