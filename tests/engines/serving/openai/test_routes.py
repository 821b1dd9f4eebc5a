"""OpenAI's own client, and Hugging Face's, against the server."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving import answering
from peagle.engines.serving.openai.rendering import Answer
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import model_name
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL

PROMPT = "def count_vowels(text):\n"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def _text(engine: Engine, max_tokens: int, **options: Any) -> str:
    return engine.generate([PROMPT], SamplingParams(max_tokens=max_tokens, **options))[0].text


def test_a_completion_is_the_engine_s_own_text(client: OpenAI, served_engine: Engine) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0)
    (output,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=24))
    assert answer.choices[0].text == output.text
    assert answer.choices[0].finish_reason == output.finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(output.prompt_token_ids)
    assert answer.usage.completion_tokens == len(output.token_ids)


def test_usage_includes_speculation_statistics(client: OpenAI, served_engine: Engine) -> None:
    """Completion tokens do not include drafts that the target accepted behind the end of a text."""
    behind = 0
    for max_tokens in (*range(1, 9), 32):
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=max_tokens, temperature=0, extra_body={"num_speculative_tokens": 3}
        )
        params = SamplingParams(max_tokens=max_tokens)
        output = served_engine.generate([PROMPT], params, num_speculative_tokens=3)[0]
        acceptance = output.acceptance
        assert answer.usage is not None
        assert answer.usage.model_extra is not None
        told = answer.usage.model_extra["speculation"]
        assert told["drafted_tokens"] == acceptance.drafted
        assert sum(told["accepted_per_position"]) == told["accepted_tokens"] == acceptance.accepted
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == sum(output.drafted) < answer.usage.completion_tokens
        assert details.rejected_prediction_tokens == acceptance.drafted - acceptance.accepted
        behind += acceptance.accepted - sum(output.drafted)
    assert acceptance.drafted
    assert behind


def test_a_prompt_of_token_ids_and_several_prompts(client: OpenAI, served_engine: Engine) -> None:
    ids = served_engine.tokenizer.encode(PROMPT)
    alone = client.completions.create(model=MODEL, prompt=ids, max_tokens=8, temperature=0)
    both = client.completions.create(model=MODEL, prompt=[ids, [ids[0], ids[1]]], max_tokens=8, temperature=0)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == alone.choices[0].text
    assert both.usage is not None
    assert both.usage.prompt_tokens == len(ids) + 2


def test_chat_uses_the_template(client: OpenAI, served_engine: Engine) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == served_engine.chat(MESSAGES, SamplingParams(max_tokens=16)).text


def test_a_stream_has_the_whole_text_in_pieces_and_the_usage_at_its_end(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=32, temperature=0)
    pieces = list(
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=32,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert pieces[0].choices[0].delta.role == "assistant"
    assert len(pieces) > 4
    texts = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "length"
    told, expected = pieces[-1].usage, whole.usage
    assert told is not None
    assert expected is not None
    assert (told.prompt_tokens, told.completion_tokens) == (expected.prompt_tokens, expected.completion_tokens)


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_stream_includes_usage_on_request(client: OpenAI, kind: str) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 12, "temperature": 0, "stream": True, "n": 2, "seed": 3}
    create: Any = client.completions.create
    if kind == "chat":
        create, fields = client.chat.completions.create, {**fields, "messages": MESSAGES}
    else:
        fields["prompt"] = PROMPT
    pieces = list(create(**fields, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert all(piece.usage is not None for piece in pieces)
    last = pieces[-1].usage
    written = {0: [0], 1: [0]}
    for piece in pieces[:-1]:
        assert piece.usage.total_tokens == piece.usage.prompt_tokens + piece.usage.completion_tokens
        assert piece.usage.prompt_tokens == last.prompt_tokens
        written[piece.choices[0].index].append(piece.usage.completion_tokens)
    assert all(counts == sorted(counts) for counts in written.values())
    assert sum(counts[-1] for counts in written.values()) == last.completion_tokens
    for options in ({"include_usage": True}, {"continuous_usage_stats": True}, {"include_usage": None}):
        pieces = list(create(**fields, stream_options=options))
        assert all(piece.usage is None for piece in pieces if piece.choices)
        says_null = {"usage" in piece.model_fields_set for piece in pieces if piece.choices}
        assert says_null == {bool(options.get("include_usage"))}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": PROMPT * 50}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT * 50}]}),
    ],
)
def test_a_stream_has_comments_while_nothing_is_written(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(Answer, "patience", 1e-4)
    body = {**fields, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    *told, usage, done = call(server, "POST", path, body)[2].decode().strip().split("\n\n")
    assert told[0] == ": waiting"
    chunks = [json.loads(each.removeprefix("data: ")) for each in told if each != ": waiting"]
    assert all(each["usage"] is None and len(each["choices"]) == 1 for each in chunks)
    assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == 4
    assert done == "data: [DONE]"


def test_a_stream_has_comments_while_a_call_is_written(calling_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens give no chunk until it is complete."""
    pytest.importorskip("llguidance")
    ticks = itertools.count(step=20.0)
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    text = 'I look.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 100,
        "stream": True,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "structured_outputs": {"grammar": f"start: {json.dumps(text)}"},
    }
    told = call(calling_server, "POST", "/v1/chat/completions", body)[2].decode().split("\n\n")
    (begin,) = [at for at, each in enumerate(told) if '"tool_calls":[' in each]
    said = max(at for at, each in enumerate(told[:begin]) if '"content":' in each)
    assert ": waiting" in told[said:begin]


def test_too_long_prompt_has_its_error_code(client: OpenAI, served_engine: Engine) -> None:
    long = [5] * served_engine.max_seq_len
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=long, max_tokens=1)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    assert str(served_engine.max_seq_len) in str(refused.value)
    messages: Any = [{"role": "user", "content": PROMPT * 600}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=messages)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_answer_without_room_has_the_same_code(client: OpenAI, served_engine: Engine, field: str) -> None:
    room = served_engine.max_seq_len - len(served_engine.chat_prompt(MESSAGES)[1])
    ask: Any = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=f"at most {room}") as refused:
        ask(model=MODEL, messages=MESSAGES, **{field: room + 1})
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", field)
    assert ask(model=MODEL, messages=MESSAGES, stop=["e"], **{field: room}).choices


def test_streamed_completion_can_show_drafted_tokens(client: OpenAI) -> None:
    pieces = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=32,
        temperature=0,
        stream=True,
        extra_body={"return_drafted": True, "num_speculative_tokens": 3},
    )
    runs = [run for piece in pieces for run in (piece.choices[0].model_extra or {})["drafted"]]
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=32, temperature=0)
    assert "".join(text for text, _ in runs) == whole.choices[0].text
    assert {drafted for _, drafted in runs} == {True, False}


def test_stop_text_ends_the_answer(client: OpenAI, served_engine: Engine) -> None:
    stop = _text(served_engine, 24)[8:11]
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert stop not in answer.choices[0].text


def test_seed_is_reproducible_and_n_choices_differ(client: OpenAI) -> None:
    def ask(n: int) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=16, temperature=1.5, seed=7, n=n)
        return [choice.text for choice in answer.choices]

    three = ask(3)
    assert three == ask(3)
    assert three[:1] == ask(1)
    assert len(set(three)) == 3


def test_streamed_choices_carry_their_index(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1, seed=3, n=2)
    texts = ["", ""]
    for piece in client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=1, seed=3, n=2, stream=True
    ):
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_drafts_change_no_answer(client: OpenAI) -> None:
    answers = {
        client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=32, temperature=0.9, seed=11, extra_body=extra
        ).choices[0].text
        for extra in ({}, {"num_speculative_tokens": 0}, {"num_speculative_tokens": 1}, {"draft": "ngram"})
    }  # fmt: skip
    assert len(answers) == 1


def test_logprobs_are_the_engine_s_with_drafts_and_without(client: OpenAI, served_engine: Engine) -> None:
    (output,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=12, logprobs=3))
    for extra in ({}, {"num_speculative_tokens": 0}):
        chat = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=12,
            temperature=0,
            logprobs=True,
            top_logprobs=3,
            extra_body=extra,
        )
        told = chat.choices[0].logprobs
        assert told is not None
        assert told.content is not None
        assert [each.logprob for each in told.content] == pytest.approx(
            [each.logprob for each in output.logprobs], abs=1e-4
        )
        assert [len(each.top_logprobs) for each in told.content] == [3] * 12
        assert "".join(each.token for each in told.content) == chat.choices[0].message.content
    pieces = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=2, stream=True
    )
    streamed = [
        value
        for piece in pieces
        if piece.choices[0].logprobs
        for value in piece.choices[0].logprobs.token_logprobs or []
    ]
    assert streamed == pytest.approx([each.logprob for each in output.logprobs], abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": {"40": -100.0, "41": 5.0}},
        {"extra_body": {"repetition_penalty": 1.3}},
        {"extra_body": {"min_tokens": 20}},
    ],
)
def test_sampling_options_reach_the_engine_and_drafts_change_nothing(
    client: OpenAI, served_engine: Engine, options: dict[str, Any]
) -> None:
    own = {**options.get("extra_body", {}), **{name: value for name, value in options.items() if name != "extra_body"}}
    own["logit_bias"] = {int(token): amount for token, amount in own.get("logit_bias", {}).items()}
    (output,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=24, temperature=0.7, seed=5, **own))
    for k in (0, 3):
        extra = {**options.get("extra_body", {}), "num_speculative_tokens": k}
        asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0.7, "seed": 5, **options}
        answer = client.completions.create(**{**asked, "extra_body": extra})
        assert answer.choices[0].text == output.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"extra_body": {"stop_token_ids": [10**9]}}, "stop_token_ids"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids"),
        ({"extra_body": {"stop_token_ids": ["a"]}}, "stop_token_ids[0]"),
        ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids"),
        ({"extra_body": {"allowed_token_ids": [10**9]}}, "allowed_token_ids"),
        ({"extra_body": {"bad_words": [""]}}, "bad_words"),
        ({"extra_body": {"prompt_logprobs": 99}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 2, "extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs"),
        ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"n": 5}, "n"),
        ({"n": 0}, "n"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": "word " * 5000}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logprobs": 99}, "logprobs"),
        ({"extra_body": {"min_tokens": 999}}, "min_tokens"),
        ({"extra_body": {"truncate_prompt_tokens": -2}}, "truncate_prompt_tokens"),
        ({"extra_body": {"truncate_prompt_tokens": 10**6}}, "truncate_prompt_tokens"),
        ({"extra_body": {"priority": 1}}, "priority"),
        ({"best_of": 2}, "best_of"),
        ({"extra_body": {"num_speculative_tokens": 1000}}, "num_speculative_tokens"),
        ({"extra_body": {"draft": "medusa"}}, "draft"),
        ({"extra_body": {"acceptance_tolerance": 2}}, "acceptance_tolerance"),
        ({"extra_body": {"beams": 4}}, "beams"),
        ({"extra_body": {"stream_options": {"include_usage": True}}}, "stream_options"),
    ],
)
def test_unsupported_option_is_rejected_by_field(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": MODEL, "prompt": PROMPT, **fields})
    assert refused.value.param == param


def test_too_many_choices_are_counted_over_all_prompts(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"n is 3 with 2 prompts, which makes 6 choices, .* 1 to 4 per"):
        client.completions.create(model=MODEL, prompt=[PROMPT, PROMPT], n=3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_completion_tokens": -3}, "max_completion_tokens"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, "chat_template_kwargs"),
        (
            {"extra_body": {"continue_final_message": True, "add_generation_prompt": True}},
            "continue_final_message",
        ),
    ],
)
def test_a_chat_refuses_by_name_too(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
    assert (refused.value.param or "").split("[")[0] == param.split("[")[0]


def test_no_effect_fields_are_accepted(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, user="u", store=False, metadata={"a": "b"}, service_tier="auto"
    )
    assert answer.choices


def test_stop_ids_allowed_ids_and_bad_words_reach_the_engine(client: OpenAI, served_engine: Engine) -> None:
    free = served_engine.generate([PROMPT], SamplingParams(max_tokens=24))[0]
    word = next(text for text in free.text.split() if text.isalpha())
    options: list[dict[str, Any]] = [
        {"stop_token_ids": [free.token_ids[9]]},
        {"allowed_token_ids": list(free.token_ids)},
        {"bad_words": [word]},
    ]
    for extra in options:
        (own,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=24, **extra))
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, extra_body=extra)
        assert answer.choices[0].text == own.text
    stopped = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, extra_body={"stop_token_ids": [free.token_ids[9]]}
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert (stopped.choices[0].model_extra or {})["stop_reason"] == free.token_ids[9]
    assert free.text.startswith(stopped.choices[0].text)
    told = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stop=free.text[8:11])
    assert (told.choices[0].model_extra or {})["stop_reason"] == free.text[8:11]


@pytest.mark.parametrize("most", [0, 1, 5])
def test_a_prompt_is_scored_the_way_evaluation_harnesses_do(client: OpenAI, served_engine: Engine, most: int) -> None:
    """``lm_eval``'s local-completions: ids as input, echo, and the sum of logprobs after a context."""
    texts = [PROMPT, "import os\nimport sys\n"]
    prompts = [served_engine.tokenizer.encode(text) for text in texts]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=most, temperature=0, logprobs=1, echo=True, seed=1
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2 * most
    params = SamplingParams(max_tokens=max(most, 1), logprobs=1, prompt_logprobs=1)
    for choice, ids, text, own in zip(
        answer.choices, prompts, texts, served_engine.generate(prompts, params), strict=True
    ):
        assert choice.text == text + (own.text if most else "")
        told = choice.logprobs
        assert told is not None
        assert told.tokens is not None
        assert told.token_logprobs is not None
        assert told.top_logprobs is not None
        assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(ids) + most
        assert "".join(told.tokens) == choice.text
        assert told.text_offset == [len("".join(told.tokens[:at])) for at in range(len(told.tokens))]
        assert (told.token_logprobs[0], told.top_logprobs[0]) == (None, None)
        expected = [each.logprob for each in (*own.prompt_logprobs[1:], *own.logprobs) if each is not None]
        assert told.token_logprobs[1:] == pytest.approx(expected[: len(ids) + most - 1], abs=1e-4)
        for token, value, likely in list(zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True))[1:]:
            assert likely[token] == value
            assert max(likely.values()) >= value


def test_echo_is_streamed_first_without_logprobs(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": [PROMPT, "import os"], "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**asked, echo=True, n=2)
    assert all(choice.logprobs is None for choice in whole.choices)
    bare = client.completions.create(**asked, n=2)
    texts = [PROMPT, PROMPT, "import os", "import os"]
    assert [c.text for c in whole.choices] == [text + c.text for text, c in zip(texts, bare.choices, strict=True)]
    for logprobs in (None, 2):
        pieces = list(client.completions.create(**asked, echo=True, stream=True, logprobs=logprobs))
        whole = client.completions.create(**asked, echo=True, logprobs=logprobs)
        for index, choice in enumerate(whole.choices):
            mine = [piece.choices[0] for piece in pieces if piece.choices[0].index == index]
            assert "".join(each.text for each in mine) == choice.text
            if logprobs:
                assert choice.logprobs is not None
                offsets = [at for each in mine if each.logprobs for at in each.logprobs.text_offset or []]
                assert offsets == choice.logprobs.text_offset
    answer = client.completions.create(**asked, echo=True, extra_body={"return_drafted": True})
    runs = (answer.choices[0].model_extra or {})["drafted"]
    assert runs[0] == [PROMPT, False]
    assert "".join(text for text, _ in runs) == answer.choices[0].text


def test_text_offsets_are_places_in_the_text(client: OpenAI) -> None:
    text = "na\u00efve \U0001f642\U0001f642 caf\u00e9!"
    form = {"structured_outputs": {"choice": [text]}}
    asked: Any = {"model": MODEL, "prompt": text, "max_tokens": 60, "logprobs": 0, "extra_body": form}
    for echo, expected in ((False, text), (True, text * 2)):
        (choice,) = client.completions.create(**asked, echo=echo).choices
        assert choice.logprobs is not None
        assert choice.text == expected
        offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
        whole = [(at, token) for at, token in zip(offsets, tokens, strict=True) if "\ufffd" not in token]
        assert len(whole) < len(tokens), "some characters are split"
        assert all(expected[at:].startswith(token) or at == len(expected) for at, token in whole)
        assert sum(expected[at] == "\U0001f642" for at in set(offsets) if at < len(expected)) == (4 if echo else 2)


def test_prompt_logprobs_match_vllm_format(client: OpenAI, served_engine: Engine) -> None:
    extra = {"prompt_logprobs": 2}
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, extra_body=extra)
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, extra_body=extra)
    (own,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=1, prompt_logprobs=2))
    for told in (
        (completion.choices[0].model_extra or {})["prompt_logprobs"],
        (chat.model_extra or {})["prompt_logprobs"],
    ):
        assert told[0] is None
        for found, each in zip(told[1:], own.prompt_logprobs[1:], strict=True):
            assert each is not None
            assert set(found) == {str(each.token_id), *(str(token) for token, _ in each.top)}
            mine = found[str(each.token_id)]
            assert mine["decoded_token"] == served_engine.tokenizer.piece(each.token_id)
            assert (mine["rank"], mine["logprob"]) == (each.rank, pytest.approx(each.logprob, abs=1e-4))


def test_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-4", prompt=PROMPT)
    assert refused.value.code == "model_not_found"
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_models_have_the_fields_of_vllm_s(server: Server, served_engine: Engine) -> None:
    (listed,) = json.loads(call(server, "GET", "/v1/models")[2])["data"]
    assert set(listed) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert (listed["root"], listed["parent"]) == (model_name(served_engine.manifest, served_engine.folder), None)


def test_media_in_results_of_tools_are_omitted(server: Server) -> None:
    def counted(role: str, part: dict[str, Any]) -> tuple[int, Any]:
        messages = [*MESSAGES, {"role": role, "content": [part], "tool_call_id": "a"}]
        status, _, content = call(server, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        return status, json.loads(content).get("usage", {}).get("prompt_tokens")

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "[image omitted: this model reads only text]"}
    assert counted("tool", image) == counted("tool", text)
    assert counted("tool", text)[0] == 200
    assert counted("user", image)[0] == 400


def test_hugging_face_s_client_chats_and_streams(server: Server, client: OpenAI) -> None:
    hugging = InferenceClient(base_url=f"{server.url}/v1")
    own = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12, temperature=0)
    whole = hugging.chat_completion(MESSAGES, model=MODEL, max_tokens=12, temperature=0)
    assert whole.choices[0].message.content == own.choices[0].message.content
    stream = hugging.chat_completion(MESSAGES, model=MODEL, max_tokens=12, temperature=0, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in stream) == own.choices[0].message.content


def test_token_ids_are_those_of_the_engine_whole_and_streamed(client: OpenAI, served_engine: Engine) -> None:
    (output,) = served_engine.generate([PROMPT], SamplingParams(max_tokens=20))
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "n": 2, "seed": 1}
    asked["extra_body"] = {"return_token_ids": True}
    for choice in client.completions.create(**asked).choices:
        told = choice.model_extra or {}
        assert tuple(told["prompt_token_ids"]) == output.prompt_token_ids
        assert tuple(told["token_ids"]) == output.token_ids
    streamed: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for piece in client.completions.create(**asked, stream=True):
        streamed[piece.choices[0].index].append(piece.choices[0].model_extra or {})
    for first, *others in streamed.values():
        assert tuple(first["prompt_token_ids"]) == output.prompt_token_ids
        assert all("prompt_token_ids" not in each for each in others)
        assert tuple(token for each in (first, *others) for token in each["token_ids"]) == output.token_ids
    del asked["extra_body"]
    plain = client.completions.create(**asked).choices[0].model_extra or {}
    assert not {"token_ids", "prompt_token_ids"} & plain.keys()


def test_token_ids_of_a_chat(client: OpenAI, served_engine: Engine) -> None:
    output = served_engine.chat(MESSAGES, SamplingParams(max_tokens=20))
    asked: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    asked["extra_body"] = {"return_token_ids": True}
    whole = client.chat.completions.create(**asked)
    assert tuple((whole.model_extra or {})["prompt_token_ids"]) == output.prompt_token_ids
    assert tuple((whole.choices[0].model_extra or {})["token_ids"]) == output.token_ids
    first, *others = client.chat.completions.create(**asked, stream=True)
    assert tuple((first.model_extra or {})["prompt_token_ids"]) == output.prompt_token_ids
    assert all("prompt_token_ids" not in (each.model_extra or {}) for each in others)
    told = [(each.choices[0].model_extra or {})["token_ids"] for each in others]
    assert tuple(token for each in told for token in each) == output.token_ids


def test_an_included_stop_string_ends_the_text(client: OpenAI, served_engine: Engine) -> None:
    free = served_engine.generate([PROMPT], SamplingParams(max_tokens=24))[0].text
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stop": free[8:11]}
    asked["extra_body"] = {"include_stop_str_in_output": True}
    choice = client.completions.create(**asked).choices[0]
    assert choice.text == free[: free.index(free[8:11]) + 3]
    assert choice.finish_reason == "stop"
    assert "".join(each.choices[0].text for each in client.completions.create(**asked, stream=True)) == choice.text


def test_a_truncated_prompt_keeps_its_end(client: OpenAI, short_server: Server, short_engine: Engine) -> None:
    client = client.with_options(base_url=f"{short_server.url}/v1")
    ids = short_engine.tokenizer.encode(PROMPT * 40)
    room = short_engine.max_seq_len
    assert len(ids) > room
    for asked, kept in ((5, 5), (-1, room - 8)):
        (output,) = short_engine.generate([ids[-kept:]], SamplingParams(max_tokens=8))
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT * 40, max_tokens=8, temperature=0, echo=asked == 5,
            extra_body={"truncate_prompt_tokens": asked, "return_token_ids": True},
        )  # fmt: skip
        assert (answer.choices[0].model_extra or {})["prompt_token_ids"] == ids[-kept:]
        echoed = short_engine.tokenizer.decode(ids[-kept:]) if asked == 5 else ""
        assert answer.choices[0].text == echoed + output.text
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": PROMPT * 40}], max_tokens=8,
        extra_body={"truncate_prompt_tokens": -1},
    )  # fmt: skip
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == room - 8


def test_an_answer_can_follow_a_message_of_the_assistant(client: OpenAI, served_engine: Engine) -> None:
    """As in OpenAI's API: agents hand a conversation over to another model after any message."""
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "    count = "}]
    output = served_engine.chat(messages, SamplingParams(max_tokens=8), add_generation_prompt=True)
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == output.text


def test_a_chat_continues_its_last_message(client: OpenAI, served_engine: Engine) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "    count = "}]
    output = served_engine.chat(messages, SamplingParams(max_tokens=8), continue_final_message=True)
    extra = {"continue_final_message": True, "return_token_ids": True}
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=8, temperature=0, extra_body=extra
    )
    assert tuple((answer.model_extra or {})["prompt_token_ids"]) == output.prompt_token_ids
    assert answer.choices[0].message.content == output.text
