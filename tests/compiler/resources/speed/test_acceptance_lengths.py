"""Interpolated acceptance lengths: exact at known points, increasing, and always possible."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.checkpoints.known_pairs import PAIRS
from peagle.compiler.resources.speed.acceptance_lengths import AcceptanceLengths


@st.composite
def _possible(draw: st.DrawFn) -> AcceptanceLengths:
    """Lengths of one to four numbers of drafts, made of rates between 0 and 1."""
    ks = sorted(draw(st.sets(st.integers(1, 32), min_size=1, max_size=4)))
    known, last, tokens = {}, 0, 1.0
    for k in ks:
        tokens += (k - last) * draw(st.floats(0, 1))
        known[k], last = tokens, k
    return AcceptanceLengths(known, "a test")


@given(_possible())
def test_known_lengths_are_reproduced(lengths: AcceptanceLengths) -> None:
    for k, tokens in lengths.known.items():
        assert lengths.tokens(k) == pytest.approx(tokens, abs=1e-6)


@settings(max_examples=40)
@given(_possible())
def test_more_drafts_yield_more_tokens_and_at_most_one_each(lengths: AcceptanceLengths) -> None:
    tokens = [lengths.tokens(k) for k in range(40)]
    assert tokens[0] == 1.0
    assert all(-1e-9 <= more - less <= 1 + 1e-9 for less, more in pairwise(tokens))


def test_a_single_length_falls_by_a_constant_factor() -> None:
    rate = 0.7
    lengths = AcceptanceLengths({5: 1 + sum(rate**i for i in range(1, 6))}, "a test")
    assert lengths.rates(7) == pytest.approx([rate**i for i in range(1, 8)])


def test_published_lengths_of_qwen3_coder_between_and_beyond() -> None:
    published = PAIRS["qwen3-coder-30b"].acceptance
    assert published is not None
    lengths = AcceptanceLengths(published.tokens, published.source)
    assert [round(lengths.tokens(k), 2) for k in (4, 10, 18)] == [4.30, 6.66, 7.51]
    assert lengths.tokens(10) < lengths.tokens(14) < lengths.tokens(18) < lengths.tokens(24) < 8.5


def test_every_published_length_is_possible() -> None:
    for pair in PAIRS.values():
        if pair.acceptance:
            known = [(0, 1.0), *pair.acceptance.tokens.items()]
            for (fewer, less), (k, tokens) in pairwise(known):
                assert fewer < k
                assert less <= tokens <= less + k - fewer
            assert pair.acceptance.source
