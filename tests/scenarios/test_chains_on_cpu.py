"""The CPU kernel of AcceptTree on chains emits AcceptPrefix's tokens, the same for all instruction sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tests.plugins.cpu.sessions import paths_here, run_op
from tests.plugins.emission_cases import ACCEPT, batch_of, column, could_emit, partings
from tests.plugins.ops.accept_tree.trees import OP, assert_straight, chains
from tests.plugins.plugin_cases import (
    POLICIES,
    Arrays,
    alone,
    inputs_of,
    own_tokens,
    reference,
    windows,
    with_wild_lengths,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference computes with NaN on purpose

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)
SAMPLED = sorted(set(POLICIES) - {"greedy", "greedy with idle filters"})

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kernel(library: Path, batch: Arrays) -> list[Any]:
    """What the kernel emits: every path with one thread, the last one with three as well, all the same."""
    inputs = inputs_of(OP, chains(batch))
    paths = paths_here(library)
    every = [run_op(library, OP, inputs, path) for path in paths]
    every.append(run_op(library, OP, inputs, paths[-1], threads=3))
    for other in every[1:]:
        for one, two in zip(every[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    *emission, path = every[0]
    assert_straight(batch, path, emission[1])
    return emission


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ties", [False, True])
def test_every_policy_over_a_vocabulary_of_odd_size(cpu_library: Path, dtype: Any, ties: bool) -> None:
    batch = batch_of(0, sorted(POLICIES), vocab=1003, k=2, dtype=dtype, ties=ties)
    assert partings(batch, kernel(cpu_library, batch)) == 0


@few
@given(windows(tolerances=LOSSY))
def test_any_batch(cpu_library: Path, batch: Arrays) -> None:
    partings(batch, kernel(cpu_library, batch))


@few
@given(windows(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_wild_lengths_and_ids(cpu_library: Path, batch: Arrays, seed: int) -> None:
    wild = with_wild_lengths(batch, seed)
    rng = np.random.default_rng(seed)
    extremes = [np.iinfo(np.int64).min, -1, 2**31, np.iinfo(np.int64).max]
    wild["input_ids"] = np.where(rng.random(wild["input_ids"].shape) < 0.3, rng.choice(extremes), wild["input_ids"])
    wild["top_k"] = rng.choice([-(2**31), 0, 1, 2**31 - 1], len(wild["top_k"])).astype(np.int32)
    partings(wild, kernel(cpu_library, wild))


@few
@given(windows(tolerances=LOSSY), st.sampled_from([np.nan, np.inf, -np.inf, 6e4]))
def test_content_beyond_the_drafts_changes_nothing(cpu_library: Path, batch: Arrays, poison: float) -> None:
    spoiled = {name: array.copy() for name, array in batch.items()}
    for b, (window, drafts) in enumerate(zip(batch["window_len"], batch["draft_len"], strict=True)):
        unused = 0 if window == 0 or batch["forced_next"][b] >= 0 else drafts + 1
        spoiled["logits"][b, unused:] = poison
        spoiled["uniform"][b, unused:] = poison
        spoiled["input_ids"][b, window:] = np.iinfo(np.int64).min
    for before, after in zip(kernel(cpu_library, batch), kernel(cpu_library, spoiled), strict=True):
        np.testing.assert_array_equal(before, after)


def test_token_depends_only_on_its_column(cpu_library: Path) -> None:
    """Neither on other rows, nor on other columns and how many there are."""
    batch = batch_of(4, [*SAMPLED, "greedy"], vocab=2049, k=2, dtype=np.float32)
    whole = own_tokens(batch)
    batch["input_ids"][:, 2:4] = whole[:, :2]
    tokens, num_tokens = kernel(cpu_library, batch)
    for b in range(len(tokens)):
        one = alone(batch, b)
        for together, apart in zip((tokens, num_tokens), kernel(cpu_library, one), strict=True):
            np.testing.assert_array_equal(together[b : b + 1], apart)
        for j in range(int(num_tokens[b])):
            plain = one | {name: one[name][:, j : j + 1] for name in ("logits", "uniform")}
            plain |= {"window_len": np.ones(1, np.int32), "draft_len": np.zeros(1, np.int32)}
            assert kernel(cpu_library, plain)[0].tolist() == [[tokens[b, j]]]


def only_token(library: Path, batch: Arrays) -> int:
    tokens, num_tokens = kernel(library, batch)
    assert num_tokens.tolist() == [1]
    np.testing.assert_array_equal(tokens, reference(ACCEPT, batch)[0])
    return int(tokens[0, 0])


@pytest.mark.parametrize("size", [1, 2, 9, 700])
def test_lowest_id_wins_any_tie(cpu_library: Path, size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(8):
        logits = np.full(size, -1, np.float32)
        ids = rng.choice(size, min(3, size), replace=False)
        logits[ids] = 2
        assert only_token(cpu_library, column(logits)) == ids.min()
    assert only_token(cpu_library, column(np.full(size, 0.5, np.float32))) == 0


@pytest.mark.parametrize("policy", ["greedy", "plain", "all", "min-p of one", "top-p", "top-k"])
def test_nan_logits(cpu_library: Path, policy: str) -> None:
    """As NumPy has it: the first NaN is the largest; without a largest finite logit, a draw is id 0."""
    plain = np.random.default_rng(1).normal(size=1100).astype(np.float32)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        for heat in () if policy == "greedy" else (0.5, np.inf):
            logits = plain.copy()
            logits[[540, 1070]] = value
            only_token(cpu_library, column(logits, policy, temperature=heat))
            only_token(cpu_library, column(np.full(100, value, np.float32), policy, temperature=heat))
    logits = plain.copy()
    logits[3], logits[1090] = np.inf, np.nan
    assert only_token(cpu_library, column(logits, policy)) == (1090 if policy == "greedy" else 0)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "tolerance", "uniform"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-45, 3e38])
def test_nan_policies(cpu_library: Path, name: str, value: float) -> None:
    logits = np.random.default_rng(3).normal(size=300).astype(np.float32)
    if not (name == "uniform" and np.isnan(value)):  # what becomes of NaN as an integer, NumPy does not say
        only_token(cpu_library, column(logits, "all", **{name: value}))


def test_infinite_quotient_wins(cpu_library: Path) -> None:
    logits = np.array([1, 3e37, 2e38, 3e38], np.float32)
    assert only_token(cpu_library, column(logits, "min-p", temperature=0.01)) == 1


def test_both_zeros_are_one_number(cpu_library: Path) -> None:
    logits = np.full(3000, -1.0, np.float32)
    logits[:8] = -0.0
    logits[512:520] = logits[1024:1032] = 0.0
    assert only_token(cpu_library, column(logits)) == 0


def test_a_large_crowd_of_unlikely_tokens_has_its_chance(cpu_library: Path) -> None:
    """150,000 tokens of e^-13 each together weigh a third of the best one; far noise must be looked at."""
    logits = np.full(150_000, -13.0, np.float32)
    logits[77] = 0
    drawn = {only_token(cpu_library, column(logits, "plain", uniform=number / 8)) for number in range(8)}
    assert 77 in drawn
    assert len(drawn) > 1


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_extreme_temperatures_and_numbers(cpu_library: Path, temperature: float, uniform: float) -> None:
    rng = np.random.default_rng(2)
    for policy in ("plain", "top-k", "top-p", "all"):
        logits = (rng.normal(size=1500) * 10).astype(np.float32)
        batch = column(logits, policy, temperature=temperature, uniform=uniform)
        assert partings(batch, kernel(cpu_library, batch)) == 0


@pytest.mark.parametrize("top_k", [1, 2, 17, 50, 499, 500, 501])
@pytest.mark.parametrize("spread", [0.01, 100.0])
def test_floors_near_and_far(cpu_library: Path, top_k: int, spread: float) -> None:
    shares = [1e-6, 0.3, 0.9999, 1.0]
    batch = batch_of(top_k, ["plain"] * 4, vocab=500, k=1, dtype=np.float32, spread=spread)
    batch["top_k"][:], batch["top_p"][:] = top_k, shares
    assert partings(batch, kernel(cpu_library, batch)) == 0


def test_the_largest_vocabulary_is_refused_past_its_end(cpu_library: Path) -> None:
    batch = batch_of(1, ["greedy"], vocab=8, k=1, dtype=np.float32)
    batch["logits"] = np.zeros((1, 2, (1 << 19) + 1), np.float32)
    with pytest.raises(Fail, match="1 to 524288 numbers"):
        kernel(cpu_library, batch)


def test_rows_that_do_not_fit_are_refused(cpu_library: Path) -> None:
    batch = batch_of(1, ["greedy"] * 2, vocab=8, k=1, dtype=np.float32)
    for name in ("uniform", "input_ids", "temperature", "forced_next"):
        with pytest.raises(Fail):
            kernel(cpu_library, batch | {name: batch[name][:1]})


def test_draws_are_the_references_over_many_random_numbers(cpu_library: Path) -> None:
    """A thousand columns of logits as models have them; where a token differs, rounding decides (and it never did)."""
    rng = np.random.default_rng(12)
    logits = np.sort(rng.gumbel(size=(40, 2000)) * 2.5).astype(np.float32)
    batch = batch_of(1, [SAMPLED[i % len(SAMPLED)] for i in range(40)], vocab=2000, k=24, dtype=np.float32)
    batch["logits"] = np.repeat(rng.permuted(logits, axis=1)[:, None], 25, 1)
    batch["input_ids"][:, 2:26] = own_tokens(batch)[:, :24]
    assert partings(batch, kernel(cpu_library, batch)) == 0
    assert (kernel(cpu_library, batch)[1] == 25).all()


def test_the_check_lets_no_other_token_through(cpu_library: Path) -> None:
    batch = batch_of(1, SAMPLED, vocab=300, k=1, dtype=np.float32)
    tokens, num_tokens = kernel(cpu_library, batch)
    assert could_emit(batch, 0, 0) == {int(tokens[0, 0])}
    with pytest.raises(AssertionError):
        partings(batch, [(tokens + 1) % 300, num_tokens])
