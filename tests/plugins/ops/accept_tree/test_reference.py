"""AcceptTree accepts the first child that equals the target's token; a chain is a prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.ops.accept_tree.trees import (
    OP,
    assert_straight,
    chains,
    family,
    paths,
    trees,
    with_any_ancestors,
    with_parents,
)
from tests.plugins.plugin_cases import Arrays, alone, few, reference, windows, with_wild_lengths

LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)


def greedy_tree(best: list[int], drafts: list[int], parents: list[int]) -> Arrays:
    """One greedy row of ten ids: a prompt of two, the newest token, and drafts that hang on ``parents``."""
    batch: Arrays = {
        "logits": np.eye(10, dtype=np.float32)[best][None],
        "input_ids": np.array([[1, 2, 3, *drafts, 9]]),
        "window_len": np.array([3 + len(drafts)], np.int32),
        "draft_len": np.array([len(drafts)], np.int32),
        "forced_next": np.array([-1]),
        "uniform": np.full((1, len(best)), 0.5, np.float32),
        "top_k": np.zeros(1, np.int32),
        "top_p": np.ones(1, np.float32),
    }
    batch = chains(batch | {name: np.zeros(1, np.float32) for name in ("temperature", "min_p", "tolerance")})
    with_parents(batch, 0, parents)
    return batch


def emitted(batch: Arrays) -> list[list[int]]:
    tokens, num_tokens, _ = reference(OP, batch)
    assert all((row[n:] == -1).all() for row, n in zip(tokens, num_tokens, strict=True))
    return [row[:n].tolist() for row, n in zip(tokens, num_tokens, strict=True)]


@pytest.mark.parametrize(
    ("best", "drafts", "parents", "expected"),
    [
        ([4, 5, 6, 7], [3, 4, 6], [0, 0, 2], [4, 6, 7]),  # the second child, and its child
        ([4, 5, 6, 7], [4, 8, 5], [0, 0, 1], [4, 5, 7]),  # a child that stands behind its uncle
        ([4, 5, 6, 7], [4, 4, 6], [0, 0, 2], [4, 5]),  # of two equal children the first, whatever the other's would be
        ([4, 5, 6, 7], [1, 2, 3], [0, 0, 0], [4]),
        ([4], [], [], [4]),
    ],
)
def test_row_follows_the_child_with_the_targets_token(
    best: list[int], drafts: list[int], parents: list[int], expected: list[int]
) -> None:
    assert emitted(greedy_tree(best, drafts, parents)) == [expected]


def test_tolerated_child_is_second_choice() -> None:
    batch = greedy_tree(best=[4, 5, 6, 7], drafts=[8, 7, 4], parents=[0, 0, 0])
    batch["logits"][0, 0] = [0, 0, 0, 0, 2, 0, 0, 1.9, 1.8, 0]
    batch["tolerance"][:] = 0.5
    assert emitted(batch) == [[4, 7]]
    batch["input_ids"][0, 5] = 1
    assert emitted(batch) == [[8, 5]], "the first that is tolerated, though the second is likelier"


def test_a_draft_that_names_no_draft_hangs_on_the_newest_token() -> None:
    batch = greedy_tree(best=[4, 5, 6, 7], drafts=[3, 4, 6], parents=[0, 1, 2])
    batch["ancestors"][0, 4] = False  # the second: not even the prompt
    assert emitted(batch) == [[4, 6, 7]]


@few
@given(windows(tolerances=LOSSY), st.integers(0, 2**32 - 1), st.booleans())
def test_a_chain_is_accepted_like_a_prefix(batch: Arrays, seed: int, wild: bool) -> None:
    batch = with_wild_lengths(batch, seed) if wild else batch
    *emission, path = reference(OP, chains(batch))
    assert_straight(batch, path, emission[1])
    for ours, theirs in zip(emission, reference("AcceptPrefix", batch), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@few
@given(trees())
def test_tree_emits_its_best_path_like_a_chain(batch: Arrays) -> None:
    tokens, num_tokens, path_of = reference(OP, batch)
    for b, n in enumerate(num_tokens):
        newest, parents = family(batch, b)
        if batch["window_len"][b] > 0 and batch["forced_next"][b] < 0:
            places = (path_of[b, :n] - newest).tolist()
            assert places[0] == 0
            assert [parents[place - 1] for place in places[1:]] == places[:-1]
            assert batch["input_ids"][b, path_of[b, 1:n]].tolist() == tokens[b, : n - 1].tolist()
        longest = 0
        for path in paths(parents):
            chain = {name: array.copy() for name, array in alone(batch, b).items()}
            columns = [0, *path]
            for name in ("logits", "uniform"):
                chain[name][0, : len(columns)] = batch[name][b, columns]
            chain["input_ids"][0, newest + 1 : newest + len(columns)] = batch["input_ids"][
                b, newest + np.array(path, int)
            ]
            chain["draft_len"][:] = len(path)
            chain["window_len"][:] = newest + len(columns)
            emission, count = reference("AcceptPrefix", chain)
            np.testing.assert_array_equal(emission[0, : count[0]], tokens[b, : count[0]])
            longest = max(longest, count[0])
        assert longest == n


@few
@given(trees(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_any_ancestors_give_drafts_one_token_then_padding(batch: Arrays, seed: int) -> None:
    batch = with_any_ancestors(batch, seed)
    tokens, num_tokens, path = reference(OP, batch)
    for b, n in enumerate(num_tokens):
        newest, parents = family(batch, b)
        assert (path[b] >= 0).tolist() == [True] * n + [False] * (len(path[b]) - n)
        assert n <= len(parents) + 1
        assert (tokens[b, n:] == -1).all()
        assert {*tokens[b, : max(n - 1, 0)].tolist()} <= {*batch["input_ids"][b, newest + 1 :].tolist()}
