"""The next window of a slot: its newest token, and the drafts that a smaller K keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.backends.onnxruntime.window import NextWindow
from peagle.engines.draft_methods.draft_tree import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents = [draw(st.integers(0, at)) for at in range(draw(st.integers(1, 8)))]
    return DraftTree(tuple(range(10, 10 + len(parents))), tuple(parents))


@given(st.lists(st.integers(0, 99), max_size=8), st.integers(0, 9))
def test_a_smaller_k_keeps_the_first_drafts_of_a_chain(drafts: list[int], k: int) -> None:
    window = NextWindow()
    window.fill(7, drafts, start=3)
    window.cut(k)
    assert (window.newest, window.drafts, window.start, window.tree) == (7, drafts[:k], 3, None)


@given(trees(), st.integers(0, 9))
def test_a_smaller_k_keeps_the_first_drafts_of_a_tree(tree: DraftTree, k: int) -> None:
    window = NextWindow(newest=7, start=3)
    window.put_tree(tree)
    window.cut(k)
    assert window.tree is not None
    assert window.drafts == window.tree.tokens == tree.tokens[:k]
    assert window.tree.parents == tree.parents[:k]


@given(trees())
def test_a_chain_replaces_a_tree(tree: DraftTree) -> None:
    window = NextWindow(newest=7, start=3)
    window.put_tree(tree)
    window.put_drafts([1, 2])
    assert (window.newest, window.drafts, window.start, window.tree) == (7, [1, 2], 3, None)
