"""The tree of the most likely paths, and the columns of a window on each path."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.draft_methods.draft_tree import DraftTree, chain_ancestors


@st.composite
def candidates(draw: st.DrawFn) -> tuple[list[list[int]], list[list[float]]]:
    depth, count = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    ids = [draw(st.lists(st.integers(0, 99), min_size=count, max_size=count, unique=True)) for _ in range(depth)]
    numbers = st.lists(st.floats(-20, 0, allow_subnormal=False), min_size=count, max_size=count)
    return ids, [sorted(draw(numbers), reverse=True) for _ in range(depth)]


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens on the way to each node."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@given(candidates(), st.integers(1, 12))
def test_tree_contains_the_most_likely_paths(given_: tuple[list[list[int]], list[list[float]]], size: int) -> None:
    ids, scores = given_
    tree = DraftTree.grown(ids, scores, size)
    logs = {
        tuple(ids[d][place] for d, place in enumerate(places)): math.fsum(scores[d][p] for d, p in enumerate(places))
        for depth in range(1, len(ids) + 1)
        for places in itertools.product(range(len(ids[0])), repeat=depth)
    }
    mine = paths_of(tree)
    assert len(set(mine)) == len(mine) == min(size, len(logs))
    best = sorted(logs.values(), reverse=True)[: len(mine)]
    assert np.allclose(sorted((logs[path] for path in mine), reverse=True), best)


@given(candidates(), st.integers(1, 12), st.integers(0, 12))
def test_cut_anywhere_it_is_the_smaller_tree(
    given_: tuple[list[list[int]], list[list[float]]], size: int, smaller: int
) -> None:
    tree = DraftTree.grown(*given_, size)
    cut = tree.cut(smaller)
    assert all(parent < column for column, parent in enumerate(tree.parents, 1))
    assert cut == (DraftTree.grown(*given_, min(smaller, size)) if smaller else DraftTree((), ()))


@given(candidates(), st.integers(1, 12))
def test_column_sees_its_path_and_follows_it(given_: tuple[list[list[int]], list[list[float]]], size: int) -> None:
    tree = DraftTree.grown(*given_, size)
    seen = tree.ancestors()
    for column, path in enumerate(paths_of(tree), 1):
        on_it = np.flatnonzero(seen[column])
        assert on_it[0] == 0
        assert column not in on_it
        assert tuple(tree.tokens[each - 1] for each in (*on_it[1:], column)) == path
        assert tree.path(path) == [*on_it, column]
        assert tree.depths[column] == len(path) == seen[column].sum()


def test_a_chain_is_a_tree_in_which_each_sees_all_before_it() -> None:
    tree = DraftTree((5, 6, 7), (0, 1, 2))
    assert np.array_equal(tree.ancestors(), chain_ancestors(4))
    with pytest.raises(ValueError, match="read-only"):
        chain_ancestors(4)[0] = True
