"""Answers as JSON, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.requests.results import TokenLogprob
from peagle.engines.serving.openai.chat_answer import ChatAnswer, _trimmed
from peagle.engines.serving.openai.options import ResponseOptions
from peagle.engines.serving.openai.rendering import CompletionAnswer
from peagle.engines.serving.rendering import ReportedTokens

TEXTS = {0: "<s>", 1: "ab", 2: "\ufffd", 3: "c", 4: "\ufffd", 5: " d"}
BYTES = {0: b"", 1: b"ab", 2: b"\xc3", 3: b"c", 4: b"\xa9", 5: b" d"}


def _tokens(text: str, *tokens: int, choice: int = 0) -> ReportedTokens:
    logprobs = tuple(TokenLogprob(token, -float(token), 1) for token in tokens)
    return ReportedTokens(choice, (1,), tokens, text, logprobs, (), None, None)


def test_stream_includes_logprobs_of_partial_characters() -> None:
    answer = ChatAnswer("m", TEXTS.__getitem__, BYTES.__getitem__, ResponseOptions())
    first, *others = answer.contents(_tokens("ab", 1))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["choices"][0]["delta"] for each in others] == [{"content": "ab"}]
    (quiet,) = answer.contents(_tokens("", 2))
    assert quiet["choices"][0]["delta"] == {}
    (told,) = quiet["choices"][0]["logprobs"]["content"]
    assert told == {"token": "\ufffd", "logprob": -2.0, "bytes": [0xC3], "top_logprobs": []}
    assert list(answer.contents(replace(_tokens("", 2), logprobs=()))) == []


@given(st.lists(st.tuples(st.text(" \na", max_size=3), st.booleans())))
def test_runs_of_a_trimmed_text_are_that_text(runs: list[tuple[str, bool]]) -> None:
    trimmed = _trimmed(replace(_tokens("".join(text for text, _ in runs)), runs=runs))
    assert "".join(text for text, _ in trimmed.runs) == trimmed.text == trimmed.text.strip()
    assert all(text for text, _ in trimmed.runs)


def _offsets(*reported: ReportedTokens) -> list[list[int]]:
    answer = CompletionAnswer("m", TEXTS.__getitem__, BYTES.__getitem__, ResponseOptions())
    pieces = [piece for tokens in reported for piece in answer.contents(tokens)]
    return [piece["choices"][0]["logprobs"]["text_offset"] for piece in pieces]


def test_streamed_offsets_count_per_choice() -> None:
    assert _offsets(_tokens("abc", 1, 3), _tokens("c", 3, choice=1), _tokens("ab", 1)) == [[0, 2], [0], [3]]


def test_offsets_count_a_character_of_several_tokens_once() -> None:
    assert _offsets(_tokens("ab", 1, 2), _tokens("\u00e9c", 4, 3)) == [[0, 2], [2, 3]]
    assert _offsets(_tokens("ab\ufffdcab", 1, 2, 3, 1)) == [[0, 2, 2, 4]], "an incomplete one is text too"


def test_offsets_count_no_special_token() -> None:
    assert _offsets(_tokens("abc", 1, 0, 3, 1)) == [[0, 2, 2, 3]]


@pytest.mark.parametrize(
    ("echo", "prompt", "offsets"),
    [
        ("ab", (0, 1), [0, 0, 2, 3]),
        ("<s>ab", (0, 1), [0, 3, 5, 6]),
        ("d d", (0, 5, 5), [0, 0, 1, 3, 4]),
        (" d d", (5, 5), [0, 2, 4, 5]),
        ("ab\ufffd", (1, 2), [0, 2, 3, 4]),
    ],
)
def test_offsets_of_an_answer_follow_its_echoed_prompt(echo: str, prompt: tuple[int, ...], offsets: list[int]) -> None:
    tokens = _tokens(f"{echo}cab", *prompt, 3, 1)
    assert _offsets(replace(tokens, prompt=prompt, token_ids=(3, 1), echo=echo)) == [offsets]
