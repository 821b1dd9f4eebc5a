"""Tokens forced by grammars are drafted besides K, and are not reported to the policies, which are told the texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.policy.adaptive import Adaptive
from peagle.engines.policy.drafts_per_round import ObservedRound, Policy, RoundAhead
from peagle.engines.policy.prior import measured
from tests.models import VOCAB

pytest.importorskip("llguidance")

KEYS = ["abcdefghijkl", "mnopqrstuvwxyz"]
FIXED_KEYS = {
    "type": "object",
    "properties": {key: {"enum": ["u", "v"]} for key in KEYS},
    "required": KEYS,
    "additionalProperties": False,
}
FORMS: list[dict[str, Any] | None] = [
    None,
    {"json": FIXED_KEYS, "disable_any_whitespace": True},
    {"json": FIXED_KEYS},
    {"regex": r"(ab|a){2,5}c|[x-z]+!"},
    {"choice": ["yes", "yeast", 'no "and"', "no.", "n"]},
    {"grammar": 'start: "(" inner ")"\ninner: start | /[a-c]/'},
]
LONG = {"choice": ["abcdefghijklmnopqrs"]}


class Spoken:
    """A policy that always returns ``k``, lets grammars use the available room, and records its calls."""

    def __init__(self, k: int, max_drafts: int) -> None:
        self.k, self.max_drafts, self.counts, self.seen = k, max_drafts, (k,), list[ObservedRound]()

    def choose(self, ahead: RoundAhead) -> int:
        return self.k

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return self.max_drafts

    def learn(self, seen: ObservedRound) -> None:
        self.seen.append(seen)


def with_policy(engine: Engine, policy: Policy, draft: str | None = None) -> Engine:
    return Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, draft=draft, policy=policy)


def room(engine: Engine) -> int:
    return engine.manifest.speculation.max_num_speculative_tokens


@settings(max_examples=8, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), min_size=1, max_size=4),
    forms=st.lists(st.sampled_from(FORMS), min_size=4, max_size=4),
    temperature=st.sampled_from([0.0, 0.9]),
    k=st.integers(0, 2),
    draft=st.sampled_from(["peagle-chain", "peagle", "ngram"]),
)
def test_forced_drafts_do_not_change_output(
    tiny_engine: Engine,
    prompts: list[list[int]],
    forms: list[dict[str, Any] | None],
    temperature: float,
    k: int,
    draft: str,
) -> None:
    params = [
        SamplingParams(max_tokens=60, temperature=temperature, seed=at, structured_outputs=forms[at])
        for at in range(len(prompts))
    ]
    plain = tiny_engine.generate(prompts, params, num_speculative_tokens=0)
    forced = with_policy(tiny_engine, Spoken(k, room(tiny_engine)), draft).generate(prompts, params)
    assert [(each.token_ids, each.text, each.finish_reason) for each in forced] == [
        (each.token_ids, each.text, each.finish_reason) for each in plain
    ]
    assert all(each.acceptance.grammar_drafted == 0 for each in plain), "who says 0 has plain decoding"


def test_policies_are_told_the_lengths_of_prompts(tiny_engine: Engine) -> None:
    policy = Spoken(1, room(tiny_engine))
    with_policy(tiny_engine, policy, "peagle-chain").generate([[5], [5, 6, 7]], SamplingParams(max_tokens=6))
    assert {row.prompt_tokens for seen in policy.seen for row in seen.ahead.rows} == {1, 3}


@pytest.mark.parametrize("draft", ["peagle-chain", "peagle", "ngram"])
def test_zero_draft_policy_gets_forced_drafts_free(tiny_engine: Engine, draft: str) -> None:
    """A round without drafts has as many columns as the form fills; and no pass of a drafter."""
    policy = Spoken(0, room(tiny_engine))
    engine = with_policy(tiny_engine, policy, draft)
    form = {"json": FIXED_KEYS, "disable_any_whitespace": True}
    for drawn in ({}, {"temperature": 1.0, "seed": 3}):
        params = SamplingParams(max_tokens=80, structured_outputs=form, **drawn)
        (output,) = engine.generate([[5]], params)
        assert list(json.loads(output.text)) == KEYS
        told = output.acceptance
        assert told.grammar_accepted == told.grammar_drafted == told.drafted > 0.7 * len(output.token_ids)
        assert told.rounds + told.undrafted < 0.4 * len(output.token_ids)
    assert {seen.k for seen in policy.seen} == {0}


def test_forced_drafts_do_not_inform_the_policy(tiny_engine: Engine) -> None:
    policy = Spoken(3, room(tiny_engine))
    params = SamplingParams(max_tokens=40, structured_outputs=LONG)
    (output,) = with_policy(tiny_engine, policy, "peagle-chain").generate([[5]], params)
    assert output.acceptance.accepted == output.acceptance.grammar_accepted > 12
    assert [outcome for seen in policy.seen for outcome in seen.outcomes if outcome[0]] == []
    assert max(seen.verified for seen in policy.seen) == room(tiny_engine), "nobody takes that for a round of three"


def test_rejections_by_a_form_count_against_the_drafter(tiny_engine: Engine) -> None:
    policy = Spoken(3, room(tiny_engine))
    params = SamplingParams(max_tokens=30, ignore_eos=False, structured_outputs={"regex": "[a-c]{40}"})
    (output,) = with_policy(tiny_engine, policy, "peagle-chain").generate([[5]], params)
    drafted = sum(drafted for seen in policy.seen for drafted, _ in seen.outcomes)
    assert output.acceptance.grammar_refused > 0
    assert drafted > output.acceptance.drafted, "of a draft that was never verified it is known that it was wrong"


def test_forced_drafts_continue_when_drafts_never_pay(tiny_engine: Engine) -> None:
    most = room(tiny_engine)
    prior = measured([1.0] * (most + 1), [1.0 + 0.4 * k for k in range(most + 1)], most)
    engine = with_policy(tiny_engine, Adaptive(0, most, prior, "peagle-chain"), "peagle-chain")
    (output,) = engine.generate([[5]], SamplingParams(max_tokens=40, structured_outputs=LONG))
    assert output.acceptance.grammar_accepted >= 15
    assert output.acceptance.rounds + output.acceptance.undrafted <= 5
