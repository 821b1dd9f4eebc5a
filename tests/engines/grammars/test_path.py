"""Texts under a grammar: only allowed tokens, and the same text with any drafts and any neighbors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, RequestOutput, SamplingParams, StructuredOutputsParams
from peagle.engines.backends.onnxruntime import backend
from peagle.engines.grammars.compiled import Grammars
from peagle.plugins.errors import UsageError
from tests.models import VOCAB

pytest.importorskip("llguidance")

K = 4
SCHEMA = {
    "type": "object",
    "properties": {"ab": {"enum": ["xy", "xz"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ab", "n"],
    "additionalProperties": False,
}
CHOICES = ["yes", "yeast", 'no "and"', "no.", "n"]
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "free json": {"json": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3}},
    "regex": {"regex": r"(ab|a){2,5}c|[x-z]+!"},
    "choice": {"choice": CHOICES},
    "grammar": {"grammar": 'start: "(" inner ")"\ninner: start | /[a-c]/'},
    "json_object": {"json_object": True},
}
OPTIONS: dict[str, Any] = {
    "presence_penalty": st.sampled_from([-2.0, 0.5]),
    "repetition_penalty": st.sampled_from([0.7, 1.8]),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 3.0, 100.0]), max_size=4),
    "bad_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=2),
    "stop": st.sampled_from(["e", "y", '"n"', ")"]),
    "min_tokens": st.integers(0, 20),
    "logprobs": st.just(1),
    "temperature": st.just(0.9),
    "top_k": st.sampled_from([2, 5]),
    "top_p": st.sampled_from([0.8, 0.3]),
}


@st.composite
def policies(draw: st.DrawFn) -> SamplingParams:
    """A form or none, with some options."""
    chosen = draw(st.sets(st.sampled_from(sorted(OPTIONS)), max_size=4))
    drawn = {name: draw(OPTIONS[name]) for name in sorted(chosen)}
    form = draw(st.sampled_from([None, *FORMS.values()]))
    return SamplingParams(max_tokens=24, seed=draw(st.integers(0, 99)), structured_outputs=form, **drawn)


@pytest.fixture(scope="module", params=["rows together", "row by row", "eagle3"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The tiny engine, with all rows in one pass and with a pass for each, and one whose drafter makes many passes."""
    folder: Path = request.getfixturevalue("eagle3_folder" if request.param == "eagle3" else "tiny_folder")
    one_by_one = request.param == "row by row"
    with pytest.MonkeyPatch.context() as patch:
        if one_by_one:
            patch.setattr(backend, "supports_rows", lambda *_: False)
        made = Engine.load(folder, max_batch_size=3, threads=1)
    assert made._backend._lanes.takes_rows != one_by_one  # type: ignore[attr-defined]
    return made


def told(engine: Engine, prompt: list[int], params: SamplingParams, **drafts: Any) -> Any:
    """Everything that must not depend on drafts: text and tokens, or the error."""
    try:
        (output,) = engine.generate([prompt], params, **drafts)
    except UsageError as error:
        return error.what, error.why
    return output.token_ids, output.text, output.finish_reason, [each.token_id for each in output.logprobs]


def has_form(name: str, output: RequestOutput) -> bool:
    """Whether a text that has ended by itself is what was asked for."""
    if name == "regex":
        return re.fullmatch(r"(ab|a){2,5}c|[x-z]+!", output.text) is not None
    if name == "choice":
        return output.text in CHOICES
    if name == "grammar":
        return re.fullmatch(r"\(+[a-c]\)+", output.text) is not None and 2 * output.text.count("(") + 1 == len(
            output.text
        )
    value = json.loads(output.text)
    if name == "json":
        return list(value) == ["ab", "n"] and value["ab"] in ("xy", "xz") and value["n"] in range(100)
    return isinstance(value, dict if name == "json_object" else list)


@settings(max_examples=12, deadline=None)
@given(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6), params=policies(), data=st.data())
def test_drafts_do_not_change_output(
    engine: Engine, prompt: list[int], params: SamplingParams, data: st.DataObject
) -> None:
    plain = told(engine, prompt, params, num_speculative_tokens=0)
    drafts = data.draw(st.sampled_from([{}, {"draft": "ngram"}, {"num_speculative_tokens": 2}]))
    assert told(engine, prompt, params, **drafts) == plain


def test_other_requests_do_not_change_output(engine: Engine) -> None:
    params = [
        SamplingParams(max_tokens=24, structured_outputs=form, temperature=0.9, seed=5) for form in FORMS.values()
    ]
    params += [SamplingParams(max_tokens=24, temperature=0.9, seed=5)]
    prompts = [[5 + at, 9, 2] for at in range(len(params))]
    for prompt, each, output in zip(prompts, params, engine.generate(prompts, params), strict=True):
        alone = told(engine, prompt, each, num_speculative_tokens=0)
        assert (output.token_ids, output.text, output.finish_reason) == alone[:3]


@pytest.mark.parametrize("name", FORMS)
def test_output_matches_the_grammar(tiny_engine: Engine, name: str) -> None:
    ended = 0
    for seed in range(6):
        params = SamplingParams(max_tokens=80, seed=seed, temperature=1.0, structured_outputs=FORMS[name])
        (output,) = tiny_engine.generate([[7, 3]], params)
        if output.finish_reason == "stop":
            ended += 1
            assert has_form(name, output), output.text
            assert output.token_ids[-1] in tiny_engine.tokenizer.eos_token_ids
    assert ended or name == "json_object"


def test_token_is_the_best_allowed_one(tiny_engine: Engine) -> None:
    params, prompt = SamplingParams(max_tokens=20, structured_outputs={"choice": CHOICES}), [5, 9, 9, 2]
    (output,) = tiny_engine.generate([prompt], params)
    logits = tiny_engine.target_logits([*prompt, *output.token_ids])
    (end,) = tiny_engine.tokenizer.eos_token_ids
    for at, token in enumerate(output.token_ids):
        text = "".join(tiny_engine.tokenizer.piece(i) for i in output.token_ids[:at])
        follows = {each[len(text)] for each in CHOICES if each.startswith(text) and len(each) > len(text)}
        may = [i for i in range(2, VOCAB) if tiny_engine.tokenizer.piece(i) in follows] + [end] * (text in CHOICES)
        assert token == max(may, key=lambda i: (logits[len(prompt) - 1 + at][i], -i))


def test_logprobs_are_unconstrained_target_logprobs(tiny_engine: Engine) -> None:
    prompt = [5, 9, 9, 2]
    params = SamplingParams(max_tokens=20, logprobs=1, structured_outputs={"choice": CHOICES})
    (output,) = tiny_engine.generate([prompt], params)
    logits = tiny_engine.target_logits([*prompt, *output.token_ids]).astype(np.float64)
    for at, (token, found) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        after = logits[len(prompt) - 1 + at]
        assert found.logprob == pytest.approx(after[token] - np.log(np.exp(after).sum()), abs=1e-4)


def test_complete_form_ends_before_min_tokens(tiny_engine: Engine) -> None:
    asked = {"regex": "ab?c{0,30}"}
    for least in (0, 2, 12):
        params = SamplingParams(max_tokens=40, min_tokens=least, logit_bias={0: 100.0}, structured_outputs=asked)
        (output,) = tiny_engine.generate([[5]], params)
        assert len(output.token_ids) == max(least, 1) + 1, "it goes on as long as it may"
    params = SamplingParams(max_tokens=40, min_tokens=9, structured_outputs={"regex": "abc"})
    (output,) = tiny_engine.generate([[5]], params)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("abc", "stop", 4)


def test_max_tokens_cut_a_form_as_any_text(tiny_engine: Engine) -> None:
    params = SamplingParams(max_tokens=5, structured_outputs={"json": SCHEMA})
    (output,) = tiny_engine.generate([[5]], params)
    assert (output.text, output.finish_reason) == ('{"ab"', "length")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"structured_outputs": {"regex": "ab\u00e9"}}, "no token of the vocabulary can follow"),
        ({"structured_outputs": {"regex": "abc"}, "bad_token_ids": [ord("c") - ord("!") + 2]}, "is banned"),
    ],
)
def test_a_text_that_cannot_go_on_fails_alone(tiny_engine: Engine, asked: dict[str, Any], why: str) -> None:
    plain = SamplingParams(max_tokens=20, ignore_eos=True)
    beside = tiny_engine.submit([5, 9], plain)
    failing = tiny_engine.submit([5, 9], SamplingParams(max_tokens=20, **asked))
    with pytest.raises(UsageError, match="structured_outputs: the text cannot be continued") as error:
        failing.result()
    assert why in error.value.why
    with pytest.raises(UsageError, match="cannot be continued"):
        list(failing)
    assert beside.result().token_ids == tiny_engine.generate([[5, 9]], plain)[0].token_ids
    assert tiny_engine.load_now.running == 0


@pytest.mark.parametrize("draft", [None, "ngram"])
def test_forced_tokens_are_drafted_and_counted_separately(tiny_engine: Engine, draft: str | None) -> None:
    asked = {"choice": ["abcdefghijklmnopqrs"]}
    for drawn in ({}, {"temperature": 1.0, "seed": 3}):
        params = SamplingParams(max_tokens=40, structured_outputs=asked, **drawn)
        (output,) = tiny_engine.generate([[5]], params, draft=draft)
        told = output.acceptance
        assert output.text == asked["choice"][0]
        assert told.grammar_drafted == told.grammar_accepted == told.accepted == told.drafted == 15
        assert told.rounds == 4, "the first token comes from the prompt, then 5, 5, 5 and the last 3 with the end"
        assert output.drafted == (False, *([True] * 4 + [False]) * 3, *[True] * 3, False)
        (plain,) = tiny_engine.generate([[5]], params, num_speculative_tokens=0)
        assert plain.token_ids == output.token_ids
        assert plain.acceptance.grammar_drafted == 0


def test_drafts_are_forced_tokens_plus_allowed_own_drafts(tiny_folder: Path) -> None:
    def ids(text: str) -> list[int]:
        return [ord(letter) - ord("!") + 2 for letter in text]

    asked = StructuredOutputsParams(regex="ab[cd]ef|ab[cd]x{2}z[0-9]")
    path = Grammars((tiny_folder / "tokenizer.json").read_text, frozenset({0}), VOCAB).path(asked, frozenset({0}))
    assert path is not None
    assert path.drafts(ids("q"), 4) == ids("ab")
    assert (path.drafted, path.refused) == (2, 1)
    path.verified(1)
    assert path.accepted == 1
    assert path.drafts(ids("qqdx"), 4) == ids("abdx")
    assert path.drafts(ids("qqdx"), 7) == ids("abdxxz")
    assert path.drafts(ids("abq"), 7) == ids("ab")
    assert path.drafts(ids("abc"), 1) == ids("a")
    assert path.drafts([*ids("abde"), 0], 6) == ids("abdef"), "an end needs no draft"
    assert path.drafts([1, 200_000], 4) == ids("ab")
    for token in ids("abcef"):
        assert path.allowed()[token]
        path.advance(token)
    assert path.drafts([0], 4) == []
    path.advance(0)
    assert path.drafts(ids("abc"), 4) == []


def test_too_complex_draft_search_does_not_end_the_text(tiny_engine: Engine) -> None:
    form = {"grammar": 'start: a{100000}\na: b{100000}\nb: "a"'}
    params = SamplingParams(max_tokens=12, structured_outputs=form)
    plain = told(tiny_engine, [5], params, num_speculative_tokens=0)
    assert plain == told(tiny_engine, [5], params) == told(tiny_engine, [5], params, draft="ngram")
