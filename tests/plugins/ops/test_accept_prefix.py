"""AcceptPrefix: which tokens a verify pass emits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.plugin_cases import (
    Arrays,
    alone,
    assert_same_emission,
    could_draw,
    few,
    inputs_of,
    own_tokens,
    reference,
    windows,
    with_wild_lengths,
)

OP = "AcceptPrefix"
LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)


def greedy_window(best: list[int], drafts: list[int], *, prompt: tuple[int, ...] = (), width: int = 0) -> Arrays:
    """One greedy row whose logits favour ``best``; the window is the prompt, a newest token, then the drafts."""
    vocab, columns = 10, len(best)
    window = [*prompt, 0, *drafts]
    ids = np.full((1, max(width, len(window), columns)), 9)
    ids[0, : len(window)] = window
    return {
        "logits": np.eye(vocab, dtype=np.float32)[best][None],
        "input_ids": ids,
        "window_len": np.array([len(window)], np.int32),
        "draft_len": np.array([len(drafts)], np.int32),
        "forced_next": np.array([-1]),
        "uniform": np.full((1, columns), 0.5, np.float32),
        "temperature": np.zeros(1, np.float32),
        "top_k": np.zeros(1, np.int32),
        "top_p": np.ones(1, np.float32),
        "min_p": np.zeros(1, np.float32),
        "tolerance": np.zeros(1, np.float32),
    }


def emitted(run_body: Any, batch: Arrays) -> list[list[int]]:
    """The valid tokens of every row, after checking that body and reference agree to the letter."""
    tokens, num_tokens = reference(OP, batch)
    for ours, theirs in zip((tokens, num_tokens), run_body(OP, inputs_of(OP, batch)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return [list(row[:n]) for row, n in zip(tokens, num_tokens, strict=True)]


def test_all_drafts_accepted_earn_the_bonus_token(run_body: Any) -> None:
    assert emitted(run_body, greedy_window(best=[4, 5, 6, 7], drafts=[4, 5, 6])) == [[4, 5, 6, 7]]


def test_first_mismatch_emits_the_target_token_and_ends_the_row(run_body: Any) -> None:
    assert emitted(run_body, greedy_window(best=[4, 5, 6, 7], drafts=[4, 8, 6])) == [[4, 5]]
    assert emitted(run_body, greedy_window(best=[4, 5, 6, 7], drafts=[8, 5, 6])) == [[4]]


def test_row_can_have_fewer_drafts_than_columns(run_body: Any) -> None:
    assert emitted(run_body, greedy_window(best=[4, 5, 6, 7], drafts=[4])) == [[4, 5]]
    assert emitted(run_body, greedy_window(best=[4, 5, 6, 7], drafts=[])) == [[4]]


def test_drafts_are_the_last_valid_columns(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5, 6], drafts=[4, 5], prompt=(1, 2, 3), width=9)
    assert emitted(run_body, batch) == [[4, 5, 6]]


def test_a_row_without_columns_for_drafts_is_decoded_plainly(run_body: Any) -> None:
    assert emitted(run_body, greedy_window(best=[4], drafts=[])) == [[4]]


def test_the_lowest_id_wins_a_tie(run_body: Any) -> None:
    batch = greedy_window(best=[4], drafts=[])
    batch["logits"][0, 0, [3, 4, 7]] = 1
    assert emitted(run_body, batch) == [[3]]


def test_forced_token_replaces_the_targets(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5], drafts=[], prompt=(1, 2))
    batch["forced_next"][:] = 8
    assert emitted(run_body, batch) == [[8]]
    batch = greedy_window(best=[4, 5], drafts=[8])
    batch["forced_next"][:] = 8
    assert emitted(run_body, batch) == [[8]], "and ends the row, even before a draft that agrees"


def test_idle_row_emits_nothing(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5], drafts=[4])
    batch["window_len"][:] = 0
    batch["forced_next"][:] = 3
    batch["draft_len"][:] = 77
    batch["logits"][:] = np.nan
    batch["temperature"][:] = np.nan
    assert emitted(run_body, batch) == [[]]


def test_lengths_beyond_the_tensors_are_clamped(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5, 6], drafts=[4, 5])
    batch["window_len"][:] = 1000
    batch["draft_len"][:] = 1000
    assert emitted(run_body, batch) == [[4, 5, 6]]


@pytest.mark.parametrize(("tolerance", "kept"), [(0.0, 1), (0.5, 1), (0.7, 2), (1.0, 2)])
def test_tolerance_accepts_a_draft_of_nearly_the_highest_probability(
    run_body: Any, tolerance: float, kept: int
) -> None:
    batch = greedy_window(best=[4, 5], drafts=[8])  # p(8) = exp(-1) * p(4) = 0.37 p(4)
    batch["tolerance"][:] = tolerance
    assert emitted(run_body, batch) == [[8, 5] if kept == 2 else [4]]


def test_tolerance_never_accepts_forbidden_tokens_or_invalid_ids(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5], drafts=[8])
    batch["tolerance"][:] = 1
    batch["logits"][0, 0, 8] = -np.inf
    assert emitted(run_body, batch) == [[4]]
    batch["input_ids"][0, 1] = 10  # clamped to 9, a legal id, it would pass
    assert emitted(run_body, batch) == [[4]]


def test_float32_logits_are_not_rounded(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5], drafts=[7])
    batch["logits"][0, 0, [3, 7]] = 1000, 1000.0001
    assert emitted(run_body, batch) == [[7, 5]]


def test_bfloat16_logits_decide_like_others(run_body: Any) -> None:
    batch = greedy_window(best=[4, 5, 6], drafts=[4, 5])
    batch["logits"] = batch["logits"].astype(ml_dtypes.bfloat16)
    assert emitted(run_body, batch) == [[4, 5, 6]]


@few
@given(windows(tolerances=LOSSY))
def test_body_matches_the_reference(run_body: Any, batch: Arrays) -> None:
    assert_same_emission(batch, run_body(OP, inputs_of(OP, batch)), reference(OP, batch))


@few
@given(windows(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_wild_lengths_are_clamped(run_body: Any, batch: Arrays, seed: int) -> None:
    wild = with_wild_lengths(batch, seed)
    assert_same_emission(wild, run_body(OP, inputs_of(OP, wild)), reference(OP, wild))


@few
@given(windows(tolerances=LOSSY))
def test_every_row_is_accepted_drafts_one_token_then_padding(batch: Arrays) -> None:
    tokens, num_tokens = reference(OP, batch)
    y = own_tokens(batch)
    for b, n in enumerate(num_tokens):
        window, drafts = batch["window_len"][b], batch["draft_len"][b]
        assert n == 0 if window == 0 else 1 <= n <= drafts + 1
        assert (tokens[b, n:] == -1).all()
        if n:
            accepted = n - 1
            np.testing.assert_array_equal(tokens[b, :accepted], batch["input_ids"][b, window - drafts :][:accepted])
            forced = batch["forced_next"][b]
            assert tokens[b, accepted] == (forced if forced >= 0 else y[b, accepted])


@few
@given(windows())
def test_a_lossless_row_is_a_prefix_of_the_targets_own_tokens(run_body: Any, batch: Arrays) -> None:
    """Same uniform, same logits: same token, for any drafts, which only decide how far a row goes."""
    y = own_tokens(batch)
    tokens, num_tokens = run_body(OP, inputs_of(OP, batch))
    for b, n in enumerate(num_tokens):
        if batch["forced_next"][b] < 0:
            for j in range(n):
                assert tokens[b, j] == y[b, j] or could_draw(batch, b, j, tokens[b, j])


@few
@given(windows(tolerances=LOSSY))
def test_rows_do_not_influence_each_other(run_body: Any, batch: Arrays) -> None:
    together = run_body(OP, inputs_of(OP, batch))
    for b in range(len(batch["window_len"])):
        apart = run_body(OP, inputs_of(OP, alone(batch, b)))
        for whole, part in zip(together, apart, strict=True):
            np.testing.assert_array_equal(whole[b : b + 1], part)


@few
@given(windows(tolerances=LOSSY), st.sampled_from([np.nan, np.inf, -np.inf, 6e4]))
def test_content_beyond_the_drafts_changes_nothing(run_body: Any, batch: Arrays, poison: float) -> None:
    clean = run_body(OP, inputs_of(OP, batch))
    spoiled = {name: array.copy() for name, array in batch.items()}
    for b, (window, drafts) in enumerate(zip(batch["window_len"], batch["draft_len"], strict=True)):
        unused = 0 if window == 0 or batch["forced_next"][b] >= 0 else drafts + 1
        spoiled["logits"][b, unused:] = poison
        spoiled["uniform"][b, unused:] = poison
        spoiled["input_ids"][b, window:] = np.iinfo(np.int64).min
    for before, after in zip(clean, run_body(OP, inputs_of(OP, spoiled)), strict=True):
        np.testing.assert_array_equal(before, after)
    for before, after in zip(reference(OP, batch), reference(OP, spoiled), strict=True):
        np.testing.assert_array_equal(before, after)


def test_drafts_from_a_smaller_vocabulary_are_just_ids(run_body: Any) -> None:
    """A drafter that knows 4 of 10 ids (d2t adds 1, 2, 2, 5 to its own 0..3) is accepted where the target agrees."""
    d2t = np.array([1, 2, 2, 5])
    drafts = [int(i + d2t[i]) for i in (0, 3, 2)]
    assert drafts == [1, 8, 4]
    assert emitted(run_body, greedy_window(best=[1, 8, 4, 0], drafts=drafts)) == [[1, 8, 4, 0]]
    assert emitted(run_body, greedy_window(best=[1, 6, 4, 0], drafts=drafts)) == [[1, 6]]  # 6: no draft could say so


def test_a_greedy_batch_pays_for_one_arg_max_only(body_model: Any) -> None:
    """Whatever walks the vocabulary to sample or sort stands inside the If, which a greedy batch does not enter."""
    dtypes = ("float32", "int64", "int32", "int32", "int64", *["float32"] * 2, "int32", *["float32"] * 3)
    function = body_model(OP, dtypes, ()).functions[0]
    outside = [node.op_type for node in function.node]
    assert (outside.count("ArgMax"), outside.count("If")) == (1, 2)
    assert not {"Exp", "CumSum", "TopK"} & set(outside)
    sampled = next(a.g for node in function.node if node.op_type == "If" for a in node.attribute if "then" in a.name)
    inside = [node.op_type for node in sampled.node]
    assert {"Gather", "MatMul"} <= set(inside), "the hash of the random numbers"
    assert "TopK" not in inside, "the sort stands behind a second If"
