"""PlaceholderDraft: the rows of one parallel drafting pass, and the window that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from tests.plugins.cpu.sessions import run_op
from tests.plugins.plugin_cases import (
    Arrays,
    alone,
    few,
    inputs_of,
    reference,
    windows,
    with_emitted,
    with_wild_lengths,
)

OP = "PlaceholderDraft"
MASK = 99
OUTPUTS = [output.name for output in OPS[OP].outputs]

emissions = windows().map(with_emitted)


def rows_of(run_body: Any, batch: Arrays) -> Arrays:
    """The outputs by name, after checking that body and reference agree to the letter."""
    outputs = reference(OP, batch, mask_token_id=MASK)
    for ours, theirs in zip(outputs, run_body(OP, inputs_of(OP, batch), mask_token_id=MASK), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return dict(zip(OUTPUTS, outputs, strict=True))


def window(ids: list[list[int]], tokens: list[list[int]], drafts: int, start: list[int]) -> Arrays:
    """Full windows of which the last ``drafts`` columns are drafts, and what was emitted for them."""
    rows = len(ids)
    return {
        "input_ids": np.array(ids),
        "start": np.array(start),
        "window_len": np.full(rows, len(ids[0]), np.int32),
        "draft_len": np.full(rows, drafts, np.int32),
        "tokens": np.array(tokens, np.int32),
        "num_tokens": np.array([sum(t >= 0 for t in row) for row in tokens], np.int32),
    }


def test_the_golden_vector_of_copy_and_expand(run_body: Any) -> None:
    """K = 3: requests abcd (one draft rejected, newest P) and wxyz (none rejected, newest Q) at positions 5 and 10.

    vLLM's ragged layout gives ids ``b c P M M 0 | x y z Q M M``, positions ``5 6 7 8 9 0 | 10..15``, masked rows
    {3, 4, 10, 11}, rejected row {5} and sampled rows {2, 3, 4, 9, 10, 11}. Ours is the same with a fixed width:
    - a and w are the newest committed tokens, so c0 = 0 and bcd, xyz are the drafts: draft_len 3 of window_len 4;
    - one rejected means num_tokens 3, [b, c, P]; none means [x, y, z, Q];
    - row 5, which vLLM blanks (id 0, position 0, no cache slot), is one more placeholder here: it stands past the last
      row that is read, and the next pass overwrites its cache slot;
    - position = start + row, and row r of request i is row 6 * i + r of the ragged layout.
    """
    a, b, c, d, w, x, y, z, P, Q, M = *range(1, 11), MASK
    out = rows_of(run_body, window([[a, b, c, d], [w, x, y, z]], [[b, c, P, -1], [x, y, z, Q]], 3, [5, 10]))
    assert out["row_ids"].tolist() == [[b, c, P, M, M, M], [x, y, z, Q, M, M]]
    assert np.flatnonzero(~out["row_is_real"]).tolist() == [3, 4, 5, 10, 11]
    assert (out["emit_rows"] + [[0], [6]]).ravel().tolist() == [2, 3, 4, 9, 10, 11]
    assert out["newest"].tolist() == [P, Q]
    assert out["next_start"].tolist() == [8, 14]
    assert out["next_window_len"].tolist() == [4, 4]
    assert out["next_draft_len"].tolist() == [3, 3]


def test_prefill_chunk_is_shifted_and_ends_in_the_known_token(run_body: Any) -> None:
    out = rows_of(run_body, window([[1, 2, 3, 4, 5]], [[6, -1, -1]], 0, [0]))
    assert out["row_ids"].tolist() == [[2, 3, 4, 5, 6, MASK]]
    assert out["emit_rows"].tolist() == [[4, 5]]
    assert out["next_start"].tolist() == [5]


def test_one_draft_needs_no_placeholder(run_body: Any) -> None:
    """K = 1 is an EAGLE-3 step: the only row that is read is real."""
    out = rows_of(run_body, window([[1, 2]], [[2, 3]], 1, [7]))
    assert out["row_ids"].tolist() == [[2, 3]]
    assert out["emit_rows"].tolist() == [[1]]
    out = rows_of(run_body, window([[1, 2]], [[3, -1]], 1, [7]))
    assert out["row_ids"].tolist() == [[3, MASK]]
    assert out["emit_rows"].tolist() == [[0]]


@pytest.mark.parametrize("idle", ["window_len", "num_tokens"])
def test_idle_row_is_all_placeholders_at_its_position(run_body: Any, idle: str) -> None:
    batch = window([[1, 2, 3]], [[2, 3, 4]], 2, [7])
    batch[idle][:] = 0
    out = rows_of(run_body, batch)
    assert out["row_ids"].tolist() == [[MASK] * 4]
    assert not out["row_is_real"].any()
    assert out["emit_rows"].tolist() == [[0, 0]]
    assert [out[name].tolist() for name in OUTPUTS[3:]] == [[0], [7], [0], [0]]


def test_lengths_beyond_the_tensors_are_clamped(run_body: Any) -> None:
    batch = window([[1, 2, 3]], [[2, 3, 4]], 2, [7])
    clean = rows_of(run_body, batch)
    for name in ("window_len", "draft_len", "num_tokens"):
        batch[name][:] = 1000
    for name, array in rows_of(run_body, batch).items():
        np.testing.assert_array_equal(array, clean[name])


@pytest.mark.parametrize("attributes", [{}, {"mask_token_id": -3}])
def test_the_mask_token_must_be_given(attributes: dict[str, int]) -> None:
    with pytest.raises(BuildError, match="mask_token_id must be 0 or more"):
        OPS[OP].check_attributes(attributes)


@few
@given(emissions)
def test_body_matches_the_reference(run_body: Any, batch: Arrays) -> None:
    rows_of(run_body, batch)


@few
@given(emissions, st.integers(0, 2**32 - 1))
def test_wild_lengths_are_clamped(run_body: Any, batch: Arrays, seed: int) -> None:
    rows_of(run_body, with_wild_lengths(batch, seed))


@few
@given(emissions)
def test_real_rows_hold_the_committed_text_one_token_ahead(batch: Arrays) -> None:
    """Slot c carries the token of position start + c + 1; placeholders follow; drafts start at the last real row."""
    out = dict(zip(OUTPUTS, reference(OP, batch, mask_token_id=MASK), strict=True))
    k = batch["tokens"].shape[1] - 1
    for b, n in enumerate(batch["num_tokens"]):
        fed = batch["input_ids"][b, : max(batch["window_len"][b] - batch["draft_len"][b], 0)]
        text = [*fed, *batch["tokens"][b, :n]]
        real = max(len(text) - 1, 0)
        assert out["row_ids"][b].tolist() == text[1:] + [MASK] * (out["row_ids"].shape[1] - real)
        assert out["row_is_real"][b].sum() == real
        assert out["next_start"][b] == batch["start"][b] + real
        if n:
            assert out["emit_rows"][b].tolist() == list(range(real - 1, real - 1 + k))
            assert out["newest"][b] == text[-1]
        assert (out["next_window_len"][b], out["next_draft_len"][b]) == ((k + 1, k) if n else (0, 0))


@few
@given(emissions, st.integers(1, 8))
def test_the_first_drafts_do_not_depend_on_how_many_are_drafted(batch: Arrays, fewer: int) -> None:
    """For the same state, the rows up to draft j are the same for every K >= j, so causal drafts nest."""
    k = batch["tokens"].shape[1] - 1
    assume(fewer < k and batch["draft_len"].max() <= fewer)
    many = dict(zip(OUTPUTS, reference(OP, batch, mask_token_id=MASK), strict=True))
    few_batch = batch | {"tokens": batch["tokens"][:, : fewer + 1]}
    few = dict(zip(OUTPUTS, reference(OP, few_batch, mask_token_id=MASK), strict=True))
    np.testing.assert_array_equal(few["emit_rows"], many["emit_rows"][:, :fewer])
    width = few["row_ids"].shape[1]
    for name in ("row_ids", "row_is_real"):
        np.testing.assert_array_equal(few[name], many[name][:, :width])
    for name in ("newest", "next_start"):
        np.testing.assert_array_equal(few[name], many[name])


@few
@given(emissions)
def test_rows_do_not_influence_each_other(run_body: Any, batch: Arrays) -> None:
    together = rows_of(run_body, batch)
    for b in range(len(batch["window_len"])):
        for name, array in rows_of(run_body, alone(batch, b)).items():
            np.testing.assert_array_equal(together[name][b : b + 1], array)


@few
@given(emissions, st.integers(-(2**62), 2**62))
def test_ids_beyond_the_window_and_tokens_beyond_the_count_are_ignored(
    run_body: Any, batch: Arrays, poison: int
) -> None:
    clean = rows_of(run_body, batch)
    spoiled = batch | {"input_ids": batch["input_ids"].copy(), "tokens": batch["tokens"].copy()}
    for b, (length, n) in enumerate(zip(batch["window_len"], batch["num_tokens"], strict=True)):
        spoiled["input_ids"][b, length:] = poison
        spoiled["tokens"][b, n:] = poison % 2**31
    for name, array in rows_of(run_body, spoiled).items():
        np.testing.assert_array_equal(clean[name], array)


@few
@given(emissions, st.one_of(st.none(), st.integers(0, 2**32 - 1)))
def test_the_cpu_kernel_gives_the_references_numbers(cpu_library: Path, batch: Arrays, wild_seed: int | None) -> None:
    if wild_seed is not None:
        batch = with_wild_lengths(batch, wild_seed)
    ours = run_op(cpu_library, OP, inputs_of(OP, batch), "portable", mask_token_id=MASK)
    for one, other in zip(ours, reference(OP, batch, mask_token_id=MASK), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_cpu_kernel_refuses_rows_that_do_not_fit(cpu_library: Path) -> None:
    batch = window([[1, 2, 3]] * 2, [[4, 5]] * 2, 1, [0, 0])
    for name in ("start", "tokens", "window_len"):
        inputs = inputs_of(OP, batch | {name: batch[name][:1]})
        with pytest.raises(Fail):
            run_op(cpu_library, OP, inputs, "portable", mask_token_id=MASK)
