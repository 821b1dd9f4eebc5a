"""Bad words compared with their definition: the token that completes one is banned, after any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.running.bad_words import MAX_TOKENS, BadWords, require_possible
from peagle.plugins.errors import UsageError

IDS = st.integers(0, 3)


@given(words=st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=6), text=st.lists(IDS, max_size=12))
def test_bad_word_ids_complete_a_word(words: list[list[int]], text: list[int]) -> None:
    followed = BadWords(words)
    assert bool(followed) == bool(words)
    for end in range(len(text) + 1):
        expected = {token for token in range(4) for word in words if [*text[:end], token][-len(word) :] == word}
        assert set(followed.completing()) == expected
        if end < len(text):
            followed.add(text[end])


def test_too_many_tokens_and_tokens_that_the_model_does_not_have_are_refused() -> None:
    require_possible([[3] * MAX_TOKENS], 4)
    require_possible([], 4)
    with pytest.raises(UsageError, match="bad_words has 16385 tokens, but at most 16384 are allowed"):
        require_possible([[3] * MAX_TOKENS, [3]], 4)
    with pytest.raises(UsageError, match="bad_words: a word contains token id 4"):
        require_possible([[1, 2], [3, 4, 0]], 4)
