"""AcceptTree in standard ops equals the reference, for trees, chains and invalid ancestors."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.ops.accept_tree.trees import OP, assert_straight, chains, partings, trees, with_any_ancestors
from tests.plugins.plugin_cases import Arrays, few, inputs_of, windows, with_wild_lengths

LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)


@few
@given(trees(tolerances=LOSSY))
def test_body_matches_the_reference(run_body: Any, batch: Arrays) -> None:
    partings(batch, run_body(OP, inputs_of(OP, batch)))


@few
@given(trees(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_any_ancestors_and_wild_lengths(run_body: Any, batch: Arrays, seed: int) -> None:
    wild = with_any_ancestors(with_wild_lengths(batch, seed), seed)
    partings(wild, run_body(OP, inputs_of(OP, wild)))


@few
@given(windows(tolerances=LOSSY))
def test_a_chain_is_accepted_like_a_prefix(run_body: Any, batch: Arrays) -> None:
    batch = chains(batch)
    prefix = run_body("AcceptPrefix", inputs_of("AcceptPrefix", batch))
    *emission, path = run_body(OP, inputs_of(OP, batch))
    assert_straight(batch, path, prefix[1])
    for ours, theirs in zip(emission, prefix, strict=True):
        np.testing.assert_array_equal(ours, theirs)
