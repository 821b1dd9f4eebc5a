"""Choosing K: the fastest by median wins, and every K is measured under the same conditions."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from peagle.compiler.bundled.prompts import code_prompts, default_prompts, questions
from peagle.compiler.pipeline.choose_k import Decoded, choose_k, of_rounds
from peagle.engines import Engine
from peagle.engines.policy.sweep import MeasuredK

PROMPTS = ["a", "b"]


def took(seconds: float, tokens: int = 10) -> Decoded:
    """A prompt decoded without an accepted draft."""
    return Decoded(tokens, seconds, rounds=tokens, accepted=0)


def test_the_fastest_k_wins_and_the_table_is_whole() -> None:
    seconds = {0: 1.0, 1: 0.9, 2: 0.5, 3: 0.4, 4: 0.8}
    choice = choose_k(lambda _, k: took(seconds[k]), PROMPTS, 4)
    assert choice.k == 3
    assert choice.speedup == pytest.approx(2.5)
    assert [rate.k for rate in choice.rates] == [0, 1, 2, 3, 4]
    assert choice.rates[2].tokens_per_second == pytest.approx(20)


def test_tokens_and_cost_per_k_are_recorded_for_the_policy() -> None:
    """Costs by turn: the second prompt runs on a machine half as fast, for any K."""

    def decode(prompt: str, k: int) -> Decoded:
        pace, rounds = {"a": 0.1, "b": 0.2}[prompt], 12 // (k + 1)
        return Decoded(12, pace * rounds * (1 + 0.25 * k), rounds, 12 - rounds)

    measured = choose_k(decode, PROMPTS, 2).measured
    assert measured.tokens == (1.0, 2.0, 3.0)
    assert measured.costs == (1.0, 1.25, 1.5)


def test_plain_decoding_is_measured_but_never_chosen() -> None:
    choice = choose_k(lambda _, k: took(1.0 + k), PROMPTS, 3)
    assert choice.k == 1
    assert choice.speedup == pytest.approx(0.5)


def test_every_k_takes_its_turn_on_every_prompt() -> None:
    calls: list[tuple[str, int]] = []

    def decode(prompt: str, k: int) -> Decoded:
        calls.append((prompt, k))
        return took(1.0)

    choose_k(decode, PROMPTS, 3, sweeps=2)
    measured = calls[2:]
    assert Counter(measured) == {(prompt, k): 2 for prompt in PROMPTS for k in range(4)}
    firsts = {measured[i][1] for i in range(0, len(measured), 4)}
    assert firsts == {0, 1, 2, 3}


def test_one_slow_moment_does_not_decide() -> None:
    calls: Counter[int] = Counter()

    def decode(_: str, k: int) -> Decoded:
        calls[k] += 1
        return took(10.0 if k == 2 and calls[k] == 2 else {0: 1.0, 1: 0.6, 2: 0.5}[k])

    choice = choose_k(decode, PROMPTS, 2)
    assert choice.k == 2
    assert choice.rates[2].slowest == pytest.approx(1.0)


def test_it_stops_after_a_whole_sweep_when_time_is_up() -> None:
    calls: list[int] = []

    def decode(_: str, k: int) -> Decoded:
        calls.append(k)
        return took(1.0, 1)

    choice = choose_k(decode, PROMPTS, 3, seconds=0.0)
    assert len(calls) == 2 + 4
    assert len(choice.rates) == 4


def test_k_far_behind_after_two_turns_is_dropped() -> None:
    calls: Counter[int] = Counter()

    def decode(_: str, k: int) -> Decoded:
        calls[k] += 1
        return took({0: 1.0, 1: 0.52, 2: 0.5, 3: 0.7, 4: 2.0}[k])

    choice = choose_k(decode, PROMPTS, 4)
    assert choice.k == 2
    assert {rate.k: rate.turns for rate in choice.rates} == {0: 6, 1: 6, 2: 6, 3: 2, 4: 2}
    assert calls == {0: 7, 1: 6, 2: 6, 3: 2, 4: 3}  # the first and the last are also run once before
    assert len(choice.measured.costs) == 5


def test_dropped_k_never_wins() -> None:
    """The remaining measurements become slower, as the skipped ones would have."""
    turns: Counter[int] = Counter()

    def decode(_: str, k: int) -> Decoded:
        turns[k] += 1
        return took({0: 1.0, 1: 0.5, 2: 0.8}[k] * (4 if turns[1] > 2 else 1))

    choice = choose_k(decode, PROMPTS, 2)
    assert choice.rates[2].tokens_per_second > choice.rates[1].tokens_per_second
    assert choice.k == 1


@pytest.mark.parametrize(("seconds", "turns"), [(100.0, 6), (3.9, 2), (1.9, 2), (0.6, 1)])
def test_every_prompt_is_used_within_three_times_the_budget(seconds: float, turns: int) -> None:
    """A turn takes two seconds."""
    choice = choose_k(lambda _, k: took(1.0), PROMPTS, 1, seconds=seconds)
    assert {rate.turns for rate in choice.rates} == {turns}


def test_only_decoding_counts_as_time_spent() -> None:
    """Not what is set up for a K: here every call takes long, and decodes for no time at all."""
    choice = choose_k(lambda _, k: time.sleep(0.002) or took(1e-6), PROMPTS, 2, seconds=0.003)
    assert {rate.turns for rate in choice.rates} == {6}


@pytest.mark.parametrize(("of", "worth"), [(3, False), (2, False), (1, True)])
def test_plans_are_rebuilt_for_a_k_faster_by_a_margin(of: int, worth: bool) -> None:
    choice = choose_k(lambda _, k: took({0: 1.0, 1: 0.9, 2: 0.53, 3: 0.5}[k]), PROMPTS, 3)
    assert (choice.k, choice.should_rebuild(of)) == (3, worth)


def test_rounds_that_took_turns_within_answers_decide_by_their_paired_costs() -> None:
    """K = 2 was left out, and did not see the later rounds, when the machine was twice as slow."""
    plain, one = MeasuredK(1.0, 1.0, (1.0, 2.0, 2.0)), MeasuredK(1.5, 1.25, (1.25, 2.5, 2.5))
    choice = of_rounds({0: plain, 1: one, 2: MeasuredK(1.8, 2.4, (2.4,))})
    assert (choice.k, choice.near_fastest) == (1, {0, 1})
    assert choice.speedup == pytest.approx(1.2)
    assert choice.gain_over(2) == pytest.approx(1.6)
    assert [rate.turns for rate in choice.rates] == [3, 3, 1]
    assert all(rate.slowest <= rate.tokens_per_second <= rate.fastest for rate in choice.rates)


def test_bundled_prompts_are_those_of_verify() -> None:
    prompts = code_prompts()
    assert len(prompts) >= 20
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert code_prompts(3) == prompts[:3]
    assert len({question.id for question in questions()}) == 20


def test_chat_model_answers_questions_and_base_model_continues_text(demo_engine: Path, talking_engine: Path) -> None:
    plain, talking = Engine.load(demo_engine), Engine.load(talking_engine)
    assert default_prompts(plain, 2) == [plain.tokenizer.encode(prompt.text) for prompt in code_prompts(2)]
    every = [talking.chat_prompt([{"role": "user", "content": question.text}])[1] for question in questions()]
    assert default_prompts(talking) == default_prompts(talking, 99) == every
    few = [questions()[every.index(ids)].kind for ids in default_prompts(talking, 4)]
    assert few == ["code", "code", "prose", "prose"]


def test_template_without_questions_is_not_required(talking_engine: Path, tmp_path: Path) -> None:
    shutil.copytree(talking_engine, tmp_path / "engine")
    (tmp_path / "engine" / "chat_template.jinja").write_text("{{ raise_exception('a system message comes first') }}")
    engine = Engine.load(tmp_path / "engine", check="sizes")
    assert default_prompts(engine, 1) == [engine.tokenizer.encode(code_prompts(1)[0].text)]
