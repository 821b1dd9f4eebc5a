"""Structured outputs over HTTP, requested by OpenAI's and Hugging Face's clients, and with vLLM's fields."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient
from openai import OpenAI
from pydantic import BaseModel

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.openai.bodies import CompletionBody, body_of
from peagle.engines.serving.openai.options import generation_of
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.structured_outputs_config import FormDefaults
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

pytest.importorskip("llguidance")

MESSAGES: Any = [{"role": "user", "content": "def count_vowels(text):\n"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["vowels", "letters"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
BY_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "counted", "schema": SCHEMA, "strict": True}}


def _schema(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


class Counted(BaseModel):
    """The class that the official client converts to a schema, and the answer to."""

    flag: bool
    count: int


def _ask(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, **{"max_tokens": 200, "temperature": 0, **fields}
    )


def test_answer_matches_the_requested_schema(client: OpenAI, served_engine: Engine) -> None:
    answer = _ask(client, response_format=BY_SCHEMA, extra_body={"num_speculative_tokens": 4})
    params = SamplingParams(max_tokens=200, structured_outputs={"json": SCHEMA})
    own = served_engine.chat(MESSAGES, params, num_speculative_tokens=0)
    assert answer.choices[0].message.content == own.text
    assert (answer.choices[0].finish_reason, own.finish_reason) == ("stop", "stop")
    assert list(json.loads(own.text)) == ["name", "count"]
    told = answer.usage.model_extra["speculation"]
    assert 0 < told["grammar_accepted_tokens"] <= told["grammar_drafted_tokens"] <= told["drafted_tokens"]


def test_streamed_schema_answer_matches(client: OpenAI) -> None:
    whole = _ask(client, response_format=BY_SCHEMA, temperature=1, seed=5)
    pieces = list(_ask(client, response_format=BY_SCHEMA, temperature=1, seed=5, stream=True))
    texts = [piece.choices[0].delta.content or "" for piece in pieces]
    assert "".join(texts) == whole.choices[0].message.content
    assert json.loads("".join(texts))["name"] in ("vowels", "letters")


def test_client_parses_answers_into_its_types(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Counted, max_tokens=200, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Counted)


@pytest.mark.parametrize("name", ["schema", "value"])
def test_a_json_object_may_have_a_schema(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    raw = json.dumps({"prompt": "a", "response_format": {"type": "json_object", name: schema}}).encode()
    params = generation_of(body_of(raw, CompletionBody), 100, ServerSettings("m")).params
    assert params.structured_outputs is not None
    assert params.structured_outputs.json == json.dumps(schema)


def test_any_json_object_can_be_requested(client: OpenAI) -> None:
    answer = _ask(client, response_format={"type": "json_object"}, n=2, seed=3, temperature=1)
    for choice in answer.choices:
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    assert (
        _ask(client, response_format={"type": "text"}, max_tokens=24).choices[0].message.content
        == _ask(client, max_tokens=24).choices[0].message.content
    )


def test_hugging_face_client_requests_a_schema(server: Server) -> None:
    client = InferenceClient(base_url=server.url, api_key="none")
    answer = client.chat_completion(MESSAGES, model=MODEL, response_format=BY_SCHEMA, max_tokens=200, temperature=0)
    assert json.loads(answer.choices[0].message.content or "")["name"] in ("vowels", "letters")
    pieces = client.chat_completion(
        MESSAGES, model=MODEL, response_format=BY_SCHEMA, max_tokens=200, temperature=0, stream=True
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == answer.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"structured_outputs": {"regex": "[a-c]{2}=[0-9]{2}"}}, "[a-c]{2}=[0-9]{2}"),
        ({"guided_regex": "[a-c]{2}=[0-9]{2}"}, "[a-c]{2}=[0-9]{2}"),
        ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
        ({"guided_choice": ["one", "two"]}, "one|two"),
        ({"guided_grammar": 'start: "(" /[0-9]/ ")"'}, r"\([0-9]\)"),
        ({"guided_json": {"const": "x"}}, '"x"'),
        ({"guided_json": '{"const": "x"}'}, '"x"'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}}}, "7"),
    ],
)
def test_completions_take_vllm_s_fields_too(client: OpenAI, fields: Any, form: str) -> None:
    answer = client.completions.create(model=MODEL, prompt="def f", max_tokens=24, temperature=0, extra_body=fields)
    assert answer.choices[0].finish_reason == "stop"
    assert re.fullmatch(form, answer.choices[0].text)


OPEN = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}


@pytest.mark.parametrize("seed", range(4))
def test_undeclared_keys_are_forbidden_by_default(client: OpenAI, seed: int) -> None:
    answer = _ask(client, response_format=_schema(OPEN), temperature=1.5, seed=seed, max_tokens=60)
    assert answer.choices[0].finish_reason == "stop"
    assert list(json.loads(answer.choices[0].message.content)) == ["a"]


def test_additional_keys_can_be_allowed_by_schema_request_or_server(client: OpenAI, served_engine: Engine) -> None:
    forms: list[Any] = [
        {"json": {**OPEN, "additionalProperties": {"enum": [1]}}},
        {"json": OPEN, "disable_additional_properties": False},
    ]
    standard = ServerSettings(MODEL, structured_outputs=FormDefaults(disable_additional_properties=False))
    server = Server(served_engine, standard, port=0)
    server.start()
    try:
        for form, url in (
            (forms[0], client.base_url),
            (forms[1], client.base_url),
            ({"json": OPEN}, server.url + "/v1"),
        ):
            with OpenAI(base_url=url, api_key="none", max_retries=0) as asking:
                assert any(_has_other_keys(asking, form, seed) for seed in range(6))
    finally:
        server.stop(immediately=True)
        assert server.wait(10)


def _has_other_keys(client: OpenAI, form: Any, seed: int) -> bool:
    fields = {"structured_outputs": form}
    answer = _ask(client, temperature=1.5, seed=seed, max_tokens=40, extra_body=fields)
    return bool(set(re.findall(r'"(\w+)":', answer.choices[0].message.content)) - {"a"})


def _nested(count: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(count):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"response_format": _schema(_nested(80))}, "nested more than 120 levels deep"),
        ({"guided_json": _nested(80)}, "guided_json is nested more than 120 levels deep"),
        ({"structured_outputs": {"json": json.dumps(_nested(80))}}, "nested more than 120 levels deep"),
        ({"guided_json": {"enum": ["a" * 192_000]}}, "at most 65536 are allowed"),
        ({"guided_regex": "a" * 9000}, "at most 8192 are allowed"),
    ],
)
def test_form_beyond_a_limit_is_rejected_with_the_limit(served_engine: Engine, fields: Any, limit: str) -> None:
    server = Server(served_engine, ServerSettings(MODEL), port=0)
    server.start()
    try:
        body = {"prompt": "a", "max_tokens": 60, **fields}
        status, _, content = call(server, "POST", "/v1/completions", body)
    finally:
        server.stop(immediately=True)
        assert server.wait(10)
    assert status == 400
    assert limit in error_of(content)["message"]
    assert "fix: " in error_of(content)["message"]


def test_a_schema_at_the_limit_of_levels_is_followed(client: OpenAI) -> None:
    answer = _ask(client, response_format=_schema(_nested(59)), max_tokens=100)
    assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {}}, "type", "type"),
        ({"response_format": {"type": "json_schema"}}, "json_schema", "json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "schema", "schema"),
        ({"response_format": {"type": "json_object", "colour": {}}}, "colour", "colour"),
        (
            {"response_format": _schema({"type": "strin"})},
            "response_format",
            "response_format.json_schema.schema cannot",
        ),
        ({"response_format": _schema({"not": {}})}, "response_format", "Unimplemented"),
        ({"response_format": _schema({"$ref": "#"})}, "response_format", "response_format"),
        ({"response_format": _schema({"type": "string"}), "ignore_eos": True}, "response_format", "no token can end"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "structured_outputs.regex cannot"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "one form"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {}}, "structured_outputs", "one form"),
        ({"guided_regex": "("}, "guided_regex", "guided_regex cannot be compiled"),
        ({"guided_json": "{"}, "guided_json", "guided_json is not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "guided_choice must be a list"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "send only one of them"),
        ({"guided_regex": "ab", "allowed_token_ids": [5]}, "guided_regex", "banned"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else None,
)
def test_unenforceable_schema_is_rejected_by_field(client: OpenAI, fields: Any, param: str, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        _ask(client, extra_body=fields)
    assert refused.value.param == param
    assert said in str(refused.value)


def test_broken_stream_reports_it_in_the_last_chunk(client: OpenAI) -> None:
    with pytest.raises(openai.APIError, match="guided_regex: the text cannot be continued"):
        list(_ask(client, stream=True, extra_body={"guided_regex": "ab", "allowed_token_ids": [5]}))
