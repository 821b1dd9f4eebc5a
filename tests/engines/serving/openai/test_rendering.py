"""Answers as JSON, without a server."""

from __future__ import annotations

from peagle.engines import SamplingParams
from peagle.engines.requests.results import Delta, TokenLogprob
from peagle.engines.serving.openai.chat_answer import ChatAnswer
from peagle.engines.serving.openai.options import Asked
from peagle.engines.serving.openai.rendering import CompletionAnswer

ASKED = Asked(SamplingParams(), 1, False, False, False, None, None)
TEXTS = {1: "ab", 2: "\ufffd", 3: "c"}


def _delta(text: str, *tokens: int) -> Delta:
    return Delta(text, tokens, None, logprobs=tuple(TokenLogprob(token, -float(token), 1) for token in tokens))


def test_a_stream_tells_the_logprobs_of_tokens_that_are_no_whole_character_yet() -> None:
    answer = ChatAnswer("m", TEXTS.__getitem__, ASKED)
    first, *others = answer.pieces(0, _delta("ab", 1))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [each["choices"][0]["delta"] for each in others] == [{"content": "ab"}]
    (quiet,) = answer.pieces(0, _delta("", 2))
    assert quiet["choices"][0]["delta"] == {}
    assert [each["logprob"] for each in quiet["choices"][0]["logprobs"]["content"]] == [-2.0]
    assert list(answer.pieces(0, Delta("", (2,), None))) == []


def test_offsets_of_a_streamed_completion_count_from_where_it_began_choice_by_choice() -> None:
    answer = CompletionAnswer("m", TEXTS.__getitem__, ASKED)
    found = [
        piece["choices"][0]["logprobs"]["text_offset"]
        for index, delta in ((0, _delta("abc", 1, 3)), (1, _delta("c", 3)), (0, _delta("ab", 1)))
        for piece in answer.pieces(index, delta)
    ]
    assert found == [[0, 2], [0], [3]]
