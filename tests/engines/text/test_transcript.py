"""The end of a text, and the part that may be shown before it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import SamplingParams
from peagle.engines.text.transcript import Transcript
from tests.tokenizer_files import sentence_pieces

EOS = 0
LETTERS = "?abcdef"


class Letters:
    """A tokenizer of one letter per id: what a transcript needs of one, and nothing else.

    ``held`` is what its stream returns only at the end.
    """

    def __init__(self, held: str = "") -> None:
        self.held = held

    def stream(self, *, after: int | None, shows_special: bool) -> Letters:
        del after, shows_special
        return self

    def push(self, token: int) -> str:
        return LETTERS[token]

    def end(self) -> str:
        return self.held


def _transcript(max_tokens: int = 100, ends: tuple[int, ...] = (EOS,), held: str = "", **params: object) -> Transcript:
    return Transcript(SamplingParams(**params), Letters(held), max_tokens, frozenset(ends))  # type: ignore[arg-type]


def test_an_end_of_sequence_id_stops_and_is_not_text() -> None:
    transcript = _transcript()
    transcript.extend([1, 2, EOS, 3])
    assert (transcript.text, transcript.token_ids, transcript.finish_reason) == ("ab", [1, 2, EOS], "stop")


def test_stop_reason_is_named_for_requested_stops() -> None:
    for tokens, ends, reason in (([1, EOS], (EOS,), None), ([1, 2, 3], (EOS, 3), 3), ([1, 4, 5], (), "de")):
        transcript = _transcript(ends=ends, stop_token_ids=[3], stop=["de"])
        transcript.extend(tokens)
        assert (transcript.finish_reason, transcript.stop_reason) == ("stop", reason)
        assert transcript.take().stop_reason == reason
    transcript = _transcript(max_tokens=1)
    transcript.extend([1])
    assert (transcript.finish_reason, transcript.stop_reason) == ("length", None)


def test_max_tokens_cuts_inside_a_round() -> None:
    transcript = _transcript(max_tokens=2)
    transcript.extend([1, 2, 3, 4])
    assert (transcript.text, transcript.finish_reason) == ("ab", "length")


def test_characters_that_the_stream_held_back_end_the_text() -> None:
    for tokens, text, reason in (([1, EOS], "a!", "stop"), ([1, 2, 3], "abc!", "length"), ([1, 2], "ab!", "abort")):
        transcript = _transcript(max_tokens=3, held="!")
        transcript.extend(tokens, accepted=1)
        transcript.abort()
        transcript.abort()
        delta = transcript.take()
        assert (delta.text, delta.finish_reason) == (text, reason)
        assert "".join(text for text, _ in delta.runs) == delta.text
    transcript = _transcript(held="!?", stop=["b!"])
    transcript.extend([1, 2, EOS])
    assert (transcript.text, transcript.finish_reason, transcript.stop_reason) == ("a", "stop", "b!")


def test_a_text_that_ends_before_its_first_token_has_no_text_of_the_prompt(tmp_path: Path) -> None:
    tokenizer = sentence_pieces(tmp_path, ("<s>", "\u2581", "\u2581Once", "<0xC3>"))
    for after in (None, 0, 1, 2, 3):
        transcript = Transcript(SamplingParams(), tokenizer, 100, frozenset({EOS}), after=after)
        transcript.abort()
        delta = transcript.take()
        assert (delta.text, delta.token_ids, delta.runs, delta.finish_reason) == ("", (), (), "abort")


def test_stop_string_across_rounds_ends_the_text() -> None:
    transcript = _transcript(stop=("cd",))
    transcript.extend([1, 2, 3])
    assert transcript.take().text == "ab"  # "c" may be the beginning of the stop string
    transcript.extend([4, 5])
    assert transcript.take().text == ""
    assert (transcript.text, transcript.finish_reason) == ("ab", "stop")


def test_the_earliest_of_two_stop_strings_wins() -> None:
    transcript = _transcript(stop=("de", "bc"))
    transcript.extend([1, 2, 3, 4, 5])
    assert transcript.text == "a"


def test_held_back_text_is_released() -> None:
    transcript = _transcript(stop=("cdx",), max_tokens=4)
    transcript.extend([1, 2, 3])
    first = transcript.take().text
    transcript.extend([5])
    assert first + transcript.take().text == "abce"


@given(
    rounds=st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=12),
    stop=st.lists(st.text("abc", min_size=1, max_size=3), max_size=2).map(tuple),
    max_tokens=st.integers(1, 20),
)
def test_streamed_pieces_add_up_to_the_text_however_the_rounds_fall(
    rounds: list[list[int]], stop: tuple[str, ...], max_tokens: int
) -> None:
    streamed, whole = _transcript(max_tokens, stop=stop), _transcript(max_tokens, stop=stop)
    pieces, tokens = "", []
    for tokens_of_round in rounds:
        streamed.extend(tokens_of_round)
        delta = streamed.take()
        pieces += delta.text
        tokens += delta.token_ids
        assert streamed.text.startswith(pieces)
    whole.extend([t for tokens_of_round in rounds for t in tokens_of_round])
    assert (streamed.text, streamed.token_ids, streamed.finish_reason) == (
        whole.text, whole.token_ids, whole.finish_reason,
    )  # fmt: skip
    assert tokens == whole.token_ids
    if whole.finish_reason:
        assert pieces == whole.text
    assert not any(s in whole.text for s in stop)


@settings(deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), max_size=8),
    stop=st.lists(st.text("abcdef", min_size=1, max_size=3), max_size=2).map(tuple),
)
def test_draft_runs_partition_the_text(rounds: list[list[int]], stop: tuple[str, ...]) -> None:
    """All tokens of a round except the last are accepted drafts, as a scheduler reports them."""
    transcript, shown, drafted = _transcript(stop=stop), [], []
    for tokens in rounds:
        transcript.extend(tokens, accepted=len(tokens) - 1)
        delta = transcript.take()
        assert "".join(text for text, _ in delta.runs) == delta.text
        assert all(text for text, _ in delta.runs)
        assert all(one[1] != other[1] for one, other in pairwise(delta.runs))
        shown += [(letter, is_draft) for text, is_draft in delta.runs for letter in text]
        drafted += delta.drafted
    assert drafted == transcript.drafted
    letters = [LETTERS[token] for token in transcript.token_ids]
    assert shown == list(zip(letters, drafted, strict=True))[: len(shown)]


def test_a_stop_that_is_included_is_the_end_of_the_text() -> None:
    for tokens, ends, text in (
        ([1, 2, 3, 4, 5], (EOS,), "abcd"),
        ([1, 2, 3], (EOS, 3), "abc"),
        ([1, EOS], (EOS,), "a?"),
    ):
        transcript = _transcript(ends=ends, stop=["cd", "zz"], include_stop_str_in_output=True)
        transcript.extend(tokens, accepted=2)
        assert (transcript.text, transcript.finish_reason) == (text, "stop")
        delta = transcript.take()
        assert delta.text == "".join(run for run, _ in delta.runs) == text


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.text("abc", min_size=1, max_size=3))
def test_an_included_stop_string_is_never_withdrawn(tokens: list[int], stop: str) -> None:
    without, included = _transcript(stop=stop), _transcript(stop=stop, include_stop_str_in_output=True)
    shown = ""
    for token in tokens:
        without.extend([token])
        included.extend([token])
        shown += included.take().text
    assert shown == included.text == without.text + (stop if without.stop_reason else "")
    assert included.token_ids == without.token_ids
