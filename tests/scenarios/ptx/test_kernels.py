"""The compiled CUDA kernels compared with the references, without a GPU: NVRTC's PTX in an interpreter.

The launch is that of the spec: 512 threads to a block, clusters of 8. Every run also looks for data races, memory that
nothing wrote, accesses out of bounds and barriers that some threads miss.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.plugins.graph_contract import MAX_DRAFTS
from peagle.plugins.kernels.sources import TARGETS, entries, kernel_of, kernel_ops
from tests.plugins import ptx
from tests.plugins.emission_cases import ACCEPT, batch_of, column, partings
from tests.plugins.ops.accept_tree.trees import partings as tree_partings
from tests.plugins.ops.accept_tree.trees import trees, with_any_ancestors
from tests.plugins.ops.test_close_up import moves
from tests.plugins.ops.test_grow_tree import growths
from tests.plugins.ops.test_numbers_at import tables
from tests.plugins.plugin_cases import (
    EVERY,
    POLICIES,
    Arrays,
    alone,
    inputs_of,
    own_tokens,
    reference,
    same_codes,
    same_numbers,
    windows,
    with_emitted,
    with_wild_lengths,
    writes,
)
from tests.plugins.ptx.compilers import NVCC, NVRTC, missing
from tests.plugins.ptx.floats import EX2_ULP, Approximation
from tests.plugins.routed_experts import BATCHES, DOWN, GATE_UP, batches, window
from tests.scenarios.ptx.cases import cases, steps_of

pytestmark = [
    pytest.mark.begins_first,
    pytest.mark.skipif(missing() is not None, reason=f"needs NVRTC: {missing()}"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the references compute with NaN and infinity on purpose
]

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)
SM = 100  # B200; the texts for the other generations differ little and run with the slow tests, some in test_mutants.py
SMS = [SM, pytest.param(90, marks=pytest.mark.slow)]

few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kernel(batch: Arrays, sm: int = SM, shift: int = 0) -> list[Any]:
    return ptx.run(ACCEPT, inputs_of(ACCEPT, batch), sm, shift=shift)


def every_kernel() -> Iterator[tuple[str, str]]:
    """Yield (op, dtype) of every kernel; the dtype is empty where one kernel serves all."""
    for op in kernel_ops():
        for entry in entries(op):
            yield op.name, entry.removeprefix(kernel_of(op).entry).lstrip("_")


def as_reference(name: str, batch: Arrays, sm: int, **attributes: int) -> None:
    same_numbers(ptx.run(name, inputs_of(name, batch), sm, **attributes), reference(name, batch, **attributes))


@pytest.mark.parametrize("sm", [pytest.param(sm, marks=[] if sm == SM else pytest.mark.slow) for sm in TARGETS])
def test_the_interpreter_knows_every_instruction_of_every_kernel(sm: int) -> None:
    for op in kernel_ops():
        for entry in entries(op):
            assert ptx.program(op.name, sm, entry).code


def passes_the_cases(op: str, dtype: str, sm: int, compiler: str) -> None:
    if (problem := missing(compiler)) is not None:
        pytest.skip(f"needs {compiler}: {problem}")
    for number in range(len(cases(op, dtype))):
        assert steps_of(op, dtype, sm, number, compiler)


def one_of_each_op() -> Iterator[Any]:
    """Yield (op, dtype) of one kernel of each op: for the widest dtype, whose vocabularies are the smallest.

    Slow are the two whose cases take longest, as ``AcceptTree`` and ``Mxfp4GateUp`` are made of the same headers, and
    the smallest kernels.
    """
    slow = ("AcceptPrefix", "Mxfp4Down", "NumbersAt", "PlaceholderDraft", "CloseUp")
    first = dict[str, str]()
    for op, dtype in every_kernel():
        first.setdefault(op, dtype)
    for op, dtype in first.items():
        yield pytest.param(op, dtype, marks=pytest.mark.slow if op in slow else [])


@pytest.mark.parametrize(("op", "dtype"), one_of_each_op())
def test_texts_of_the_other_compiler(op: str, dtype: str) -> None:
    """nvcc compiles ahead of time; its PTX differs from NVRTC's, which all other tests run, where a kernel is large."""
    passes_the_cases(op, dtype, SM, NVCC)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [NVCC, NVRTC])
@pytest.mark.parametrize("sm", TARGETS)
@pytest.mark.parametrize(("op", "dtype"), [*every_kernel()])
def test_texts_for_every_generation(op: str, dtype: str, sm: int, compiler: str) -> None:
    passes_the_cases(op, dtype, sm, compiler)


@pytest.mark.parametrize("sm", SMS)
@few
@given(case=tables())
def test_numbers_at(sm: int, case: tuple[Arrays, int]) -> None:
    as_reference("NumbersAt", case[0], sm, columns=case[1])


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=windows(), wild_seed=st.one_of(st.none(), st.integers(0, 2**32 - 1)))
def test_placeholder_draft(sm: int, batch: Arrays, wild_seed: int | None) -> None:
    batch = with_emitted(batch)
    if wild_seed is not None:
        batch = with_wild_lengths(batch, wild_seed)
    as_reference("PlaceholderDraft", batch, sm, mask_token_id=98)


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=trees(tolerances=LOSSY), dtype=st.sampled_from(DTYPES), seed=st.one_of(st.none(), st.integers(0, 99)))
def test_any_tree(sm: int, batch: Arrays, dtype: Any, seed: int | None) -> None:
    batch["logits"] = batch["logits"].astype(dtype)
    if seed is not None:
        batch = with_any_ancestors(with_wild_lengths(batch, seed), seed)
    tree_partings(batch, ptx.run("AcceptTree", inputs_of("AcceptTree", batch), sm))


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=growths())
def test_grow_tree(sm: int, batch: Arrays) -> None:
    as_reference("GrowTree", batch, sm)


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=moves())
def test_close_up(sm: int, batch: Arrays) -> None:
    as_reference("CloseUp", batch, sm)


@pytest.mark.parametrize("sm", SMS)
def test_more_columns_than_threads(sm: int) -> None:
    """The loops over the columns take turns."""
    rng = np.random.default_rng(0)
    start, window = np.array([0, 5]), np.array([300, 7], np.int32)
    batch: Arrays = {"input_ids": rng.integers(0, 99, (2, 300)), "start": start, "window_len": window}
    batch |= {"draft_len": np.array([200, 3], np.int32), "tokens": rng.integers(0, 99, (2, 220)).astype(np.int32)}
    batch |= {"num_tokens": np.array([150, 1], np.int32), "numbers": rng.random((2, 400), np.float32)}
    as_reference("PlaceholderDraft", batch, sm, mask_token_id=98)
    as_reference("NumbersAt", batch, sm, columns=220)


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=writes(DTYPES), shift=st.sampled_from([0, 0, 1, 3]))
def test_cache_write_fp8(sm: int, batch: Arrays, shift: int) -> None:
    ours = ptx.run("CacheWriteFp8", inputs_of("CacheWriteFp8", batch), sm, shift=shift)
    same_codes(ours, reference("CacheWriteFp8", batch))


@pytest.mark.parametrize("sm", SMS)
def test_cache_write_fp8_rounds_every_half_and_every_tie(sm: int) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(1, 16, 1, -1)
    codes = np.sort(EVERY.astype(np.float32)[np.isfinite(EVERY.astype(np.float32))])
    ties = ((codes[1:] + codes[:-1]) / 2).reshape(1, 1, 1, -1)
    for new, scale in ((halves, 0.37), (ties, 1.0), (codes.reshape(1, 1, 1, -1), 2.0**-20)):
        empty = np.zeros(new.shape, EVERY.dtype)
        batch = {"k_cache": empty, "v_cache": empty, "k": new, "v": new, "start": np.zeros(1, np.int64)}
        batch |= {"k_scale": np.array(scale, np.float32), "v_scale": np.array(1.0, np.float32)}
        same_codes(ptx.run("CacheWriteFp8", inputs_of("CacheWriteFp8", batch), sm), reference("CacheWriteFp8", batch))


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
@pytest.mark.parametrize("sm", SMS)
@few
@given(data=st.data())
def test_routed_experts(sm: int, op: str, data: st.DataObject) -> None:
    as_reference(op, data.draw(batches(op, DTYPES)), sm)


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
def test_a_token_s_experts_do_not_depend_on_the_window(op: str) -> None:
    """Alone, among others, and in another order: the same bits."""
    batch = BATCHES[op](np.random.default_rng(8), np.float16, tokens=9, count=3, columns=96)
    (whole,) = ptx.run(op, inputs_of(op, batch), SM)
    for some in ([0], [8], [3, 4], [8, 2, 5, 0, 7]):
        (part,) = ptx.run(op, inputs_of(op, window(batch, some)), SM)
        np.testing.assert_array_equal(part, whole[some])


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, marks=[] if dtype == np.float16 else pytest.mark.slow) for dtype in DTYPES]
)
def test_every_policy_over_a_vocabulary_of_odd_size(sm: int, dtype: Any) -> None:
    """Columns start off the 16-byte grid, and the blocks of the cluster share them."""
    batch = batch_of(1, sorted(POLICIES), vocab=1003, k=1, dtype=dtype)
    assert partings(batch, kernel(batch, sm, shift=1)) == 0


@pytest.mark.parametrize("sm", SMS)
@few
@given(batch=windows(tolerances=LOSSY), dtype=st.sampled_from(DTYPES), shift=st.sampled_from([0, 1, 3]))
def test_any_batch(sm: int, batch: Arrays, dtype: Any, shift: int) -> None:
    batch["logits"] = batch["logits"].astype(dtype)
    partings(batch, kernel(batch, sm, shift))


@few
@given(batch=windows(tolerances=LOSSY), seed=st.integers(0, 2**32 - 1))
def test_wild_lengths_and_ids(batch: Arrays, seed: int) -> None:
    wild = with_wild_lengths(batch, seed)
    rng = np.random.default_rng(seed)
    extremes = [np.iinfo(np.int64).min, -1, 2**31, np.iinfo(np.int64).max]
    wild["input_ids"] = np.where(rng.random(wild["input_ids"].shape) < 0.3, rng.choice(extremes), wild["input_ids"])
    wild["top_k"] = rng.choice([-(2**31), 0, 1, 2**31 - 1], len(wild["top_k"])).astype(np.int32)
    tokens, num_tokens = kernel(wild)
    wanted = reference(ACCEPT, wild)
    for b in np.flatnonzero(wild["temperature"] == 0):
        np.testing.assert_array_equal(tokens[b], wanted[0][b])
        assert num_tokens[b] == wanted[1][b]
    assert ((num_tokens >= 0) & (num_tokens <= tokens.shape[1])).all()


@pytest.mark.parametrize("sm", SMS)
def test_a_thread_reads_many_words(sm: int) -> None:
    """More words to a column than threads in the cluster, ties and zeros of both signs among them."""
    rng = np.random.default_rng(4)
    for dtype, vocab in ((np.float16, 70_001), (np.float32, 40_003)):
        logits = np.full(vocab, -1.0, dtype)
        logits[rng.choice(vocab, 40, replace=False)] = rng.choice([0.0, -0.0], 40)
        batch = column(logits)
        assert partings(batch, kernel(batch, sm)) == 0
    batch = batch_of(6, ["top-p"], vocab=40_003, k=1, dtype=np.float16)
    assert partings(batch, kernel(batch, sm)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 9])
def test_lowest_id_wins_any_tie(dtype: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    logits = np.full(size, -1, dtype)
    logits[rng.choice(size, min(3, size), replace=False)] = 2
    batch = column(logits)
    assert partings(batch, kernel(batch)) == 0


def _each_once(first: Iterable[Any], second: Iterable[Any]) -> Iterator[Any]:
    """Yield all pairs, of which only those where each value comes once run by default.

    ``test_kernels_on_cpu.py`` has all of them by default, with the emulator of the source.
    """
    for (i, one), (j, other) in itertools.product(enumerate(first), enumerate(second)):
        yield pytest.param(one, other, marks=[] if i == j else pytest.mark.slow)


@pytest.mark.parametrize(("dtype", "value"), _each_once(DTYPES, (np.nan, np.inf, -np.inf)))
def test_nan_logits(dtype: Any, value: float) -> None:
    """All policies and both forms in one launch: some NaN, and nothing else."""
    batch = batch_of(1, ["greedy", "plain", "all", "min-p of one", "top-p"] * 2, vocab=100, k=1, dtype=dtype)
    batch["draft_len"][:] = 0
    batch["logits"][:5, :, [40, 70]] = value
    batch["logits"][5:] = value
    wanted = reference(ACCEPT, batch)
    for ours, theirs in zip(kernel(batch), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("policy", ["greedy", pytest.param("plain", marks=pytest.mark.slow)])
def test_every_allowed_draft_is_looked_at(policy: str) -> None:
    batch = batch_of(8, [policy], vocab=40, k=MAX_DRAFTS, dtype=np.float32)
    batch["input_ids"][0, 2 : 2 + MAX_DRAFTS] = own_tokens(batch)[0, :-1]
    tokens, num_tokens = kernel(batch)
    assert num_tokens.tolist() == [MAX_DRAFTS + 1]
    np.testing.assert_array_equal(tokens, own_tokens(batch))


@pytest.mark.parametrize(("spread", "top_k"), _each_once((0.01, 100.0), (2, 499, 1)))
def test_floors_near_and_far(top_k: int, spread: float) -> None:
    """Values that crowd into one bin of the first histogram, of both signs, and values beyond the last bin."""
    batch = batch_of(top_k, ["plain"] * 4, vocab=500, k=1, dtype=np.float32, spread=spread)
    batch["top_k"][:], batch["top_p"][:] = top_k, [1e-6, 0.3, 0.9999, 1.0]
    assert partings(batch, kernel(batch)) == 0


@pytest.mark.parametrize("ulp", [pytest.param(-EX2_ULP, marks=pytest.mark.slow), EX2_ULP])
def test_the_last_bits_of_the_hardware_s_exponential_are_free(monkeypatch: pytest.MonkeyPatch, ulp: int) -> None:
    """``ex2.approx`` is bounded by its manual and not equated: at either bound, tokens part where rounding decides."""
    monkeypatch.setattr(Approximation, "ulp", ulp)
    batch = batch_of(1, ["top-p", "all", "min-p then top-p", "top-k then top-p"], vocab=1003, k=2, dtype=np.float16)
    partings(batch, kernel(batch))


def test_rows_do_not_influence_each_other() -> None:
    batch = batch_of(4, ["all", "greedy", "top-p"], vocab=100, k=1, dtype=np.float32)
    together = kernel(batch)
    for b in range(3):
        for whole, part in zip(together, kernel(alone(batch, b)), strict=True):
            np.testing.assert_array_equal(whole[b : b + 1], part)


@pytest.mark.slow
@pytest.mark.parametrize("sm", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_vocabularies_of_models(sm: int, dtype: Any) -> None:
    for vocab in (32_000, 151_936):
        batch = batch_of(vocab, ["greedy", "all", "top-p", "plain"], vocab=vocab, k=2, dtype=dtype)
        assert partings(batch, kernel(batch, sm, shift=1)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("sm", TARGETS)
@settings(few, max_examples=100)
@given(
    batch=windows(max_k=32, tolerances=LOSSY), dtype=st.sampled_from(DTYPES), seed=st.one_of(st.none(), st.integers(0))
)
def test_many_batches(sm: int, batch: Arrays, dtype: Any, seed: int | None) -> None:
    batch["logits"] = batch["logits"].astype(dtype)
    partings(batch, kernel(batch, sm))
    emitted = with_emitted(batch)
    as_reference("PlaceholderDraft", emitted if seed is None else with_wild_lengths(emitted, seed), sm, mask_token_id=7)


@pytest.mark.slow
@pytest.mark.parametrize("sm", TARGETS)
@settings(few, max_examples=100)
@given(case=tables(), batch=writes(DTYPES), shift=st.sampled_from([0, 1, 3]))
def test_many_tables_and_cache_writes(sm: int, case: tuple[Arrays, int], batch: Arrays, shift: int) -> None:
    as_reference("NumbersAt", case[0], sm, columns=case[1])
    ours = ptx.run("CacheWriteFp8", inputs_of("CacheWriteFp8", batch), sm, shift=shift)
    same_codes(ours, reference("CacheWriteFp8", batch))
