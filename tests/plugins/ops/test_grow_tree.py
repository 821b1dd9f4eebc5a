"""GrowTree: the most likely paths through a drafter's candidates, and the drafts that each draft does not see."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.draft_methods.draft_tree import DraftTree
from peagle.plugins.errors import BuildError
from peagle.plugins.graph_contract import DEEPEST
from peagle.plugins.ops import OPS
from tests.plugins.ops.accept_tree.trees import skipped_of
from tests.plugins.plugin_cases import Arrays, few, inputs_of, reference

OP = "GrowTree"


def candidates(seed: int, rows: int, columns: int, positions: int, places: int, *, ties: bool = False) -> Arrays:
    """Windows whose candidates are distinct at a position, most likely first."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(rng.exponential(2.0, (rows, positions, places))).astype(np.float32)
    return {
        "window_ids": rng.integers(0, 99, (rows, columns)),
        "candidate_ids": rng.permuted(np.tile(np.arange(2**33, 2**33 + 50), (rows, positions, 1)), axis=2)[
            ..., :places
        ],
        "candidate_scores": np.round(scores) if ties else scores,
    }


@st.composite
def growths(draw: Any) -> Arrays:
    """Any sizes, including so few candidates that a part of the window stays unchanged."""
    columns = draw(st.one_of(st.integers(1, 9), st.sampled_from([33, 64])))
    positions = draw(st.one_of(st.just(max(columns - 1, 1)), st.integers(1, 8)))
    places = draw(st.integers(1, 8))
    return candidates(
        draw(st.integers(0, 99)), draw(st.integers(1, 3)), columns, positions, places, ties=draw(st.booleans())
    )


def test_a_second_choice_may_be_likelier_than_a_long_chain() -> None:
    batch = candidates(0, 1, 5, 4, 2)
    batch["candidate_scores"][0] = [[-0.9, -1.0], [-0.2, -3.0], [-1.5, -9.0], [-0.1, -9.0]]
    ids, skipped = reference(OP, batch)
    named = batch["candidate_ids"][0]
    # Paths: -0.9 and -1.0 of the first position, then behind each of them the best of the second.
    assert ids[0, 1:].tolist() == [named[0, 0], named[0, 1], named[1, 0], named[1, 0]]
    assert ids[0, 0] == batch["window_ids"][0, 0]
    assert skipped[0].tolist() == [0, 0, 0b10, 0b100, 0b1010]


@few
@given(growths().filter(lambda batch: batch["window_ids"].shape[1] <= 9))
def test_the_drafts_are_the_most_likely_of_all_paths(batch: Arrays) -> None:
    """By listing every path of up to three positions."""
    batch = batch | {name: batch[name][:, :3] for name in ("candidate_ids", "candidate_scores")}
    _, positions, places = batch["candidate_ids"].shape
    size = batch["window_ids"].shape[1] - 1
    skipped = reference(OP, batch)[1]
    for b, scores in enumerate(batch["candidate_scores"].astype(np.float64)):
        depths = range(1, positions + 1)
        every = [
            sum(scores[d, c] for d, c in enumerate(path)) for n in depths for path in product(range(places), repeat=n)
        ]
        ids = reference(OP, batch)[0][b]
        named = [{int(id_): at for at, id_ in enumerate(position)} for position in batch["candidate_ids"][b]]
        sums = [0.0]
        for column in range(1, min(size, len(every)) + 1):
            parent = max(at for at in range(column) if not skipped[b, column] >> at & 1)
            depth = column - 1 - int(skipped[b, column]).bit_count()
            sums.append(sums[parent] + scores[depth, named[depth][int(ids[column])]])
        np.testing.assert_allclose(sorted(sums[1:]), sorted(every)[-len(sums[1:]) :] if sums[1:] else [], atol=1e-4)


@few
@given(growths().filter(lambda batch: batch["candidate_ids"].shape[2] > 1))
def test_trees_are_those_of_the_host_wherever_no_scores_tie(batch: Arrays) -> None:
    rng = np.random.default_rng(1)
    batch["candidate_scores"] = -np.sort(rng.exponential(2.0, batch["candidate_scores"].shape)).astype(np.float32)
    ids, skipped = reference(OP, batch)
    size = batch["window_ids"].shape[1] - 1
    for b in range(len(ids)):
        scores, named = (batch[name][b, :DEEPEST].tolist() for name in ("candidate_scores", "candidate_ids"))
        tree = DraftTree.grown(named, scores, size)
        drafts = len(tree.tokens)
        assert ids[b, 1 : drafts + 1].tolist() == [*tree.tokens]
        assert skipped[b, : drafts + 1].tolist() == skipped_of([*tree.parents])


@few
@given(growths())
def test_a_prefix_is_the_tree_for_fewer_drafts(batch: Arrays) -> None:
    whole = reference(OP, batch)
    fewer = reference(OP, batch | {"window_ids": batch["window_ids"][:, :4]})
    for some, every in zip(fewer, whole, strict=True):
        np.testing.assert_array_equal(some, every[:, :4])


def test_a_window_stays_as_it_is_where_no_candidate_is_left() -> None:
    batch = candidates(1, 2, 9, 2, 1)
    ids, skipped = reference(OP, batch)
    np.testing.assert_array_equal(ids[:, 3:], batch["window_ids"][:, 3:])
    assert not skipped.any()


@few
@given(growths(), st.booleans())
def test_body_matches_the_reference(run_body: Any, batch: Arrays, odd: bool) -> None:
    if odd:
        batch["candidate_scores"][0, 0, 0] = np.nan
        batch["candidate_scores"][-1, -1] = -np.inf
    for ours, theirs in zip(run_body(OP, inputs_of(OP, batch)), reference(OP, batch), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_more_drafts_than_a_number_has_bits_are_refused() -> None:
    with pytest.raises(BuildError, match="at most 64 columns, not 65"):
        OPS[OP].infer_shapes([(1, 65), (1, 64, 8), (1, 64, 8)])
