"""Drafts from the text: the index compared with a search, and its rounds with plain decoding."""

from __future__ import annotations

import doctest
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import lanes, prompt_row
from peagle.engines.draft_methods import ngram
from peagle.engines.draft_methods.ngram import NgramProposer
from peagle.plugins.errors import UsageError
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS

LOOP = [7, 8, 9] * 6
TEXTS = st.lists(st.integers(0, 3), max_size=40) | st.lists(st.integers(0, 30), max_size=60)


def searched(text: Sequence[int], k: int, longest: int, shortest: int) -> list[int]:
    """Return the expected result of an index, from a full search."""
    for size in range(longest, shortest - 1, -1):
        for begin in range(len(text) - 1, size - 1, -1):
            if text[begin - size : begin] == text[len(text) - size :]:
                grown = list(text)
                for _ in range(k):
                    grown.append(grown[begin + len(grown) - len(text)])
                return grown[len(text) :]
    return []


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.data())
def test_ngram_drafts_match_a_search(text: list[int], k: int, one: int, other: int, data: st.DataObject) -> None:
    """After every piece that the text grows by."""
    longest, shortest = max(one, other), min(one, other)
    proposer, end = NgramProposer(longest, shortest), 0
    while end < len(text):
        end = data.draw(st.integers(end + 1, len(text)))
        assert proposer.propose(text[:end], k) == searched(text[:end], k, longest, shortest)


def test_longest_and_newest_ngram_wins() -> None:
    assert NgramProposer().propose([1, 2, 3, 50, 2, 3, 60, 2, 3, 70, 1, 2, 3], 3) == [50, 2, 3]
    assert NgramProposer().propose([2, 3, 60, 2, 3, 70, 1, 2, 3], 2) == [70, 1]
    assert NgramProposer().propose([], 3) == []


def test_the_worked_example_is_true() -> None:
    assert doctest.testmod(ngram) == (0, 4)


def test_a_period_is_drafted_as_often_as_there_is_room() -> None:
    assert NgramProposer().propose([1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


@pytest.mark.parametrize("k", [None, 1, 3])
def test_text_is_plain_decoding_s(tiny_engine: Engine, k: int | None) -> None:
    prompts = [*PROMPTS, LOOP]
    params = [*MIXED, GREEDY]
    plain = tiny_engine.generate(prompts, params, draft="none")
    outputs = tiny_engine.generate(prompts, params, draft="ngram", num_speculative_tokens=k)
    assert [(o.token_ids, o.text, o.finish_reason) for o in outputs] == [
        (o.token_ids, o.text, o.finish_reason) for o in plain
    ]
    assert sum(o.acceptance.drafted for o in outputs) > 0


def test_stream_matches_generate(tiny_engine: Engine) -> None:
    (whole,) = tiny_engine.generate([LOOP], GREEDY, draft="ngram")
    stream = tiny_engine.stream(LOOP, GREEDY, draft="ngram")
    assert tuple(token for delta in stream for token in delta.token_ids) == whole.token_ids


def test_round_width_follows_its_drafts(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without drafts costs what one of plain decoding costs; no drafter runs."""
    widths: list[int] = []
    of_row, of_batch = prompt_row.PromptRow.verify, lanes.SessionLanes.verify

    def watched_row(row: prompt_row.PromptRow, columns: int, emitted: int) -> None:
        widths.append(columns)
        of_row(row, columns, emitted)

    def watched_batch(rows: lanes.SessionLanes, k: int) -> None:
        of_batch(rows, k)
        widths.append(rows._groups[0].shape[1])

    def refused(*_: object) -> None:
        raise AssertionError("a drafter ran")

    monkeypatch.setattr(prompt_row.PromptRow, "verify", watched_row)
    monkeypatch.setattr(lanes.SessionLanes, "verify", watched_batch)
    for kind in (prompt_row.PromptRow, lanes.SessionLanes):
        monkeypatch.setattr(kind, "draft", refused)
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.3, seed=5)  # repetitive and other text
    forgetful = Engine(tiny_engine.folder, tiny_engine.manifest, tiny_engine._backend, tiny_engine.tokenizer)
    (output,) = forgetful.generate([LOOP], params, draft="ngram")
    told = output.acceptance
    prompt, *rounds = widths
    assert (prompt, len(rounds)) == (len(LOOP), told.rounds + told.undrafted)
    assert rounds.count(1) == told.undrafted > 0
    assert sum(rounds) == told.undrafted + told.rounds + told.drafted
    assert told.rounds > 0


def test_every_round_is_counted(tiny_engine: Engine) -> None:
    for draft in ("ngram", "none"):
        (output,) = tiny_engine.generate([LOOP], GREEDY, draft=draft)
        told = output.acceptance
        assert len(output.token_ids) == 1 + told.rounds + told.undrafted + told.accepted
        assert sum(told.histogram.values()) == told.rounds
        assert 1 <= told.tokens_per_round <= told.acceptance_length
    assert (told.rounds, told.tokens_per_round) == (0, 1.0)


def test_a_text_in_a_loop_takes_few_rounds(tiny_engine: Engine) -> None:
    """As greedy text of a model that learned nothing soon is."""
    outputs = tiny_engine.generate(PROMPTS, SamplingParams(max_tokens=60, ignore_eos=True), draft="ngram")
    assert min(o.acceptance.tokens_per_round for o in outputs) > 2


@pytest.mark.parametrize("draft", ["ngrams", "", "drafter", 3, True, ["none"], b"none"])
def test_unknown_draft_method_is_rejected(tiny_engine: Engine, draft: object) -> None:
    for call in (tiny_engine.generate, tiny_engine.stream):
        with pytest.raises(UsageError, match="draft must be peagle, peagle-chain, ngram, none") as caught:
            call([[1]] if call == tiny_engine.generate else [1], draft=draft)  # type: ignore[operator]
        assert caught.value.fix


def test_none_with_drafts_is_a_contradiction(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="draft is none, but num_speculative_tokens is 2"):
        tiny_engine.generate([[1]], draft="none", num_speculative_tokens=2)
    plain = tiny_engine.generate([[1]], GREEDY, num_speculative_tokens=0)
    for draft in ("none", "ngram"):
        (output,) = tiny_engine.generate([[1]], GREEDY, draft=draft, num_speculative_tokens=0)
        assert (output.token_ids, output.acceptance.rounds) == (plain[0].token_ids, 0)


def test_no_more_drafts_are_looked_up_than_there_is_room_for(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="from 0 to"):
        tiny_engine.generate([[1]], draft="ngram", num_speculative_tokens=99)
    longest = [5, 6] * ((tiny_engine.max_seq_len - 2) // 2)
    plain, looked_up = (tiny_engine.generate([longest], GREEDY, draft=draft)[0] for draft in ("none", "ngram"))
    assert looked_up.token_ids == plain.token_ids
