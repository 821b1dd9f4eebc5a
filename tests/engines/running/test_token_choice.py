"""Penalties, biases, bans and logprobs: correct values, and the same text with any drafts and any neighbors."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import backend
from peagle.engines.running.token_choice import TokenChoice
from peagle.plugins.errors import UsageError
from tests.models import VOCAB

K = 4
IDS = st.integers(0, VOCAB - 1)
PROMPT = st.lists(st.integers(0, 4) | IDS, min_size=1, max_size=12)
CHANGES: dict[str, Any] = {
    "presence_penalty": st.sampled_from([-2.0, -0.3, 0.5, 2.0]),
    "frequency_penalty": st.sampled_from([-1.0, 0.2, 1.5]),
    "repetition_penalty": st.sampled_from([0.7, 1.3, 2.0]),
    "logit_bias": st.dictionaries(IDS, st.sampled_from([-100.0, -1.0, 3.0, 100.0]), max_size=4),
    "bad_token_ids": st.lists(IDS, max_size=5),
    "allowed_token_ids": st.none() | st.lists(IDS, min_size=8, max_size=40),
    "bad_words": st.lists(st.sampled_from(["a", "b c", "ab"]), max_size=2),
    "stop_token_ids": st.lists(IDS, max_size=5),
    "prompt_logprobs": st.none() | st.integers(0, 2),
    "min_tokens": st.integers(0, 8),
    "logprobs": st.integers(0, 3),
}
DRAWN = {
    "temperature": st.sampled_from([0.0, 0.9]), "top_k": st.sampled_from([0, 5]), "top_p": st.sampled_from([1.0, 0.8]),
    "min_p": st.sampled_from([0.0, 0.05]), "seed": st.integers(0, 99),
}  # fmt: skip


@st.composite
def policies(draw: st.DrawFn) -> SamplingParams:
    """Any of the options together, or none."""
    chosen = draw(st.sets(st.sampled_from(sorted(CHANGES)), max_size=4))
    drawn = {name: draw(CHANGES[name]) for name in chosen} | {name: draw(each) for name, each in DRAWN.items()}
    return SamplingParams(max_tokens=14, ignore_eos=draw(st.booleans()), **drawn)


@pytest.fixture(scope="module", params=["rows together", "row by row"])
def engine(request: pytest.FixtureRequest, tiny_folder: Path) -> Engine:
    """The tiny engine, with all rows in one pass and with a pass for each."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "row by row":
            patch.setattr(backend, "supports_rows", lambda *_: False)
        made = Engine.load(tiny_folder, max_batch_size=3, threads=1)
    assert made._backend._lanes.takes_rows == (request.param == "rows together")  # type: ignore[attr-defined]
    return made


def told(output: Any) -> Any:
    logprobs = [each.token_id for each in output.logprobs]
    return output.token_ids, output.text, output.finish_reason, output.stop_reason, logprobs


@settings(max_examples=15, deadline=None)
@given(prompts=st.lists(PROMPT, min_size=1, max_size=4), data=st.data())
def test_drafts_and_neighbours_do_not_change_output(
    engine: Engine, prompts: list[list[int]], data: st.DataObject
) -> None:
    params = [data.draw(policies()) for _ in prompts]
    together = engine.generate(prompts, params, draft=data.draw(st.sampled_from([None, "ngram"])))
    for prompt, each, output in zip(prompts, params, together, strict=True):
        (alone,) = engine.generate([prompt], each, num_speculative_tokens=0)
        assert told(output) == told(alone)
        for one, other in zip(output.logprobs, alone.logprobs, strict=True):
            assert (one.rank, [i for i, _ in one.top]) == (other.rank, [i for i, _ in other.top])
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def by_the_book(params: SamplingParams, prompt: list[int], text: tuple[int, ...], logits: Any, ends: Any) -> int:
    """The greedy token after ``text``, one id at a time, as vLLM's documentation has it."""
    scores = {}
    for token, score in enumerate(logits.tolist()):
        if token in params.bad_token_ids or (len(text) < params.min_tokens and token in ends):
            continue
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            continue
        value = score + dict(params.logit_bias).get(token, 0.0)
        if token in prompt or token in text:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * text.count(token) + params.presence_penalty * (token in text)
        scores[token] = value
    return max(scores, key=lambda token: (scores[token], -token))


@pytest.mark.filterwarnings("error")
def test_banned_token_stays_banned_under_small_penalties(engine: Engine) -> None:
    prompt, only = [5, 9, 9, 2], [3, 7]
    for temperature in (0.0, 0.9):
        params = SamplingParams(
            max_tokens=6, ignore_eos=True, repetition_penalty=1e-320, allowed_token_ids=only, temperature=temperature
        )
        (output,) = engine.generate([prompt], params)
        assert set(output.token_ids) <= set(only)


@pytest.mark.parametrize(
    "asked",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 1.4, "presence_penalty": 0.6},
        {"logit_bias": {3: 100.0, 7: -100.0}, "frequency_penalty": 2.0},
        {"bad_token_ids": list(range(40, 90))},
        {"allowed_token_ids": [3, 7, 20, 41]},
        {"allowed_token_ids": [3, 7, 20, 41], "bad_token_ids": [3], "frequency_penalty": 1.0},
    ],
    ids=lambda asked: "-".join(asked),
)
def test_token_matches_the_formula(engine: Engine, asked: dict[str, Any]) -> None:
    params, prompt = SamplingParams(max_tokens=12, ignore_eos=True, **asked), [5, 9, 9, 2]
    (plain,) = engine.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))
    (output,) = engine.generate([prompt], params, num_speculative_tokens=K)
    logits = engine.target_logits([*prompt, *output.token_ids])
    for at, token in enumerate(output.token_ids):
        after = logits[len(prompt) - 1 + at]
        assert token == by_the_book(params, prompt, output.token_ids[:at], after, ends=())
    assert output.token_ids != plain.token_ids, "the option had nothing to do"


def _vocabulary_arrays(choice: TokenChoice) -> int:
    arrays = (each for each in vars(choice).values() if isinstance(each, np.ndarray))
    return sum(each.size >= VOCAB // 2 for each in arrays)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"logprobs": 0}, 0),
        ({"repetition_penalty": 1.3}, 1),
        ({"presence_penalty": 0.5, "logprobs": 0}, 1),
        ({"frequency_penalty": 0.5, "repetition_penalty": 1.3, "allowed_token_ids": [1, 2, 3]}, 3),
    ],
)
def test_only_running_requests_have_arrays_as_long_as_the_vocabulary(
    engine: Engine, asked: dict[str, Any], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with thousands of prompts holds all of their requests until it returns."""
    made, most = list[Any](), list[int]()
    begin, emit = TokenChoice.__init__, TokenChoice.emit

    def begun(me: TokenChoice, *args: Any) -> None:
        made.append(weakref.ref(me))
        begin(me, *args)

    def emitted(me: TokenChoice, *args: Any) -> Any:
        tokens = emit(me, *args)
        most.append(sum(_vocabulary_arrays(each) for ref in made if (each := ref()) is not None))
        return tokens

    monkeypatch.setattr(TokenChoice, "__init__", begun)
    monkeypatch.setattr(TokenChoice, "emit", emitted)
    outputs = engine.generate([[7, at] for at in range(12)], SamplingParams(max_tokens=4, ignore_eos=True, **asked))
    assert len(made) == 12
    assert max(most) == 3 * wanted  # as many as run at once
    assert all(len(each.logprobs) == (len(each.token_ids) if "logprobs" in asked else 0) for each in outputs)


def test_text_does_not_end_before_min_tokens(engine: Engine) -> None:
    (free,) = engine.generate([[5, 9]], SamplingParams(max_tokens=12, ignore_eos=True))
    (eos,) = engine.tokenizer.eos_token_ids
    bias = {eos: 100.0}
    for least in (0, 1, 5, 12):
        for k in (0, K):
            params = SamplingParams(max_tokens=12, min_tokens=least, logit_bias=bias)
            (output,) = engine.generate([[5, 9]], params, num_speculative_tokens=k)
            assert len(output.token_ids) == min(least + 1, 12)
            assert eos not in output.token_ids[:least]
    stop = free.text[:2]
    (output,) = engine.generate([[5, 9]], SamplingParams(max_tokens=12, min_tokens=12, ignore_eos=True, stop=stop))
    assert len(output.token_ids) == 12
    (output,) = engine.generate([[5, 9]], SamplingParams(max_tokens=12, ignore_eos=True, stop=stop))
    assert len(output.token_ids) < 12


def test_stop_ids_end_the_text_and_are_suppressed_before_min_tokens(engine: Engine) -> None:
    (eos,) = engine.tokenizer.eos_token_ids
    (free,) = engine.generate([[5, 9]], SamplingParams(max_tokens=12, ignore_eos=True))
    for k in (0, K):
        for ignores in (False, True):
            params = SamplingParams(max_tokens=12, ignore_eos=ignores, stop_token_ids=[free.token_ids[3], 999 % VOCAB])
            (output,) = engine.generate([[5, 9]], params, num_speculative_tokens=k)
            assert output.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[3]) + 1]
            assert (output.finish_reason, output.stop_reason) == ("stop", free.token_ids[3])
            assert free.text.startswith(output.text)
            likely = {eos: 100.0, 7: 99.0}
            params = SamplingParams(
                max_tokens=9, ignore_eos=ignores, min_tokens=4, stop_token_ids=[7], logit_bias=likely
            )
            (output,) = engine.generate([[5, 9]], params, num_speculative_tokens=k)
            assert not {eos, 7} & set(output.token_ids[:4]), "vLLM: neither before min_tokens, ignored or not"
            assert output.token_ids[4:] == ((eos,) * 5 if ignores else (eos,))


def test_bad_word_is_completed_only_as_last_resort(engine: Engine) -> None:
    word = engine.tokenizer.decode([40, 41])
    ids = engine.tokenizer.encode(word, adds_special=False)
    bias = dict.fromkeys(ids, 50.0)
    for k in (0, K):
        asked: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 3}
        free, banned = (
            engine.generate([[5]], SamplingParams(**asked, logit_bias=bias, bad_words=words), num_speculative_tokens=k)
            for words in ((), word)
        )
        assert word in free[0].text
        assert word not in banned[0].text
        assert set(ids[:-1]) & set(banned[0].token_ids), "its beginning is free"
    one = engine.tokenizer.decode([ids[0]])
    only = SamplingParams(max_tokens=5, ignore_eos=True, allowed_token_ids=ids[:1], bad_words=[one])
    assert engine.generate([[5]], only)[0].token_ids == (ids[0],) * 5


def test_agreeing_drafts_are_accepted(engine: Engine) -> None:
    params = SamplingParams(max_tokens=16, ignore_eos=True, logit_bias={7: 100.0}, logprobs=0)
    (output,) = engine.generate([[7, 7, 7]], params, draft="ngram")
    (plain,) = engine.generate([[7, 7, 7]], params, num_speculative_tokens=0)
    assert output.token_ids == plain.token_ids == (7,) * 16
    assert sum(output.drafted) > 8
    assert [one.logprob for one in output.logprobs] == pytest.approx([one.logprob for one in plain.logprobs], abs=1e-4)


@pytest.mark.parametrize("k", [0, K])
@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.9, "seed": 4}])
def test_logprobs_are_the_targets_and_change_nothing(engine: Engine, k: int, drawn: dict[str, Any]) -> None:
    prompt = [5, 9, 9, 2]
    params = SamplingParams(max_tokens=16, ignore_eos=True, logprobs=3, **drawn)
    plain = SamplingParams(max_tokens=16, ignore_eos=True, **drawn)
    (output,) = engine.generate([prompt], params, num_speculative_tokens=k)
    assert output.token_ids == engine.generate([prompt], plain, num_speculative_tokens=k)[0].token_ids
    logits = engine.target_logits([*prompt, *output.token_ids]).astype(np.float64)
    for at, (token, found) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        after = logits[len(prompt) - 1 + at]
        expected = after - np.log(np.exp(after - after.max()).sum()) - after.max()
        assert (found.token_id, found.rank) == (token, 1 + int((after > after[token]).sum()))
        assert found.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [i for i, _ in found.top] == np.argsort(-after, kind="stable")[:3].tolist()
        assert [p for _, p in found.top] == pytest.approx(np.sort(expected)[::-1][:3].tolist(), abs=1e-4)
    assert engine.generate([prompt], plain)[0].logprobs == ()


def test_neighbouring_request_is_unaffected(engine: Engine) -> None:
    plain = SamplingParams(max_tokens=10, ignore_eos=True)
    (alone,) = engine.generate([[5, 9]], plain)
    beside, _ = engine.generate([[5, 9], [3]], [plain, SamplingParams(max_tokens=10, logit_bias={3: 100.0})])
    assert beside.token_ids == alone.token_ids
    assert beside.acceptance == alone.acceptance


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": True}, "repetition_penalty"),
        ({"logit_bias": {3: 101}}, r"logit_bias\[3\]"),
        ({"logit_bias": {"3": 1}}, "a token id of logit_bias"),
        ({"logit_bias": {-1: 1}}, "a token id of logit_bias"),
        ({"logit_bias": [3]}, "logit_bias must be a dict"),
        ({"logit_bias": 3}, "logit_bias must be a dict"),
        ({"logit_bias": [(3, 1.0), (3, 2.0)]}, "each token id once"),
        ({"bad_token_ids": 3}, "bad_token_ids must be a list"),
        ({"bad_token_ids": [1.5]}, r"bad_token_ids\[0\]"),
        ({"stop_token_ids": "a"}, "stop_token_ids must be a list"),
        ({"stop_token_ids": [-1]}, r"stop_token_ids\[0\]"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": [True]}, r"allowed_token_ids\[0\]"),
        ({"bad_words": [" "]}, "bad_words must be"),
        ({"bad_words": [""]}, "bad_words must be"),
        ({"bad_words": "\ud800"}, "bad_words"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, which exceeds max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_contradictory_options_are_rejected_by_name(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SamplingParams(**asked)


def test_params_round_trip_through_their_fields() -> None:
    params = SamplingParams(
        logit_bias={7: 2, 3: -1}, bad_token_ids=[4], logprobs=0, bad_words="a", allowed_token_ids=[3], stop_token_ids=[]
    )
    assert params == SamplingParams(**vars(params))
    assert hash(params) == hash(SamplingParams(**vars(params)))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias: token id"),
        ({"bad_token_ids": [0, VOCAB]}, "bad_token_ids: token id"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids: token id"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids: token id"),
        ({"bad_token_ids": list(range(VOCAB))}, "bad_token_ids: every token is banned"),
        ({"bad_token_ids": [3, 4], "allowed_token_ids": [4]}, "every token is banned"),
    ],
)
def test_ids_that_the_vocabulary_has_not_are_refused(engine: Engine, asked: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        engine.generate([[1]], SamplingParams(**asked))
