"""Tools in chats, with OpenAI's client: answers of a model that must call one, complete and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai import OpenAI

from peagle.engines import Engine, SamplingParams
from peagle.engines.answer_styles.tagged_calls import ToolCallReader
from peagle.engines.serving.server import Server

CALL = '<tool_call>{"name": "f"}</tool_call>'
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES: Any = [{"role": "user", "content": CALL * 30}]


def _tool(parameters: Any) -> Any:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


@pytest.fixture(scope="module")
def client(calling_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{calling_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def calling(calling_engine: Engine) -> dict[str, Any]:
    """The options with which the model writes a call: it may say nothing but what calls are made of."""
    ids = sorted(set(calling_engine.tokenizer.encode(CALL)))
    params = SamplingParams(max_tokens=60, temperature=0.7, allowed_token_ids=ids, frequency_penalty=0.25)
    for seed in range(200):
        text = calling_engine.chat(MESSAGES, replace(params, seed=seed), tools=TOOLS).text
        if ToolCallReader(TOOLS).push(text, is_last=True)[1]:
            options = {"max_tokens": 60, "temperature": 0.7, "frequency_penalty": 0.25, "seed": seed}
            return {"model": "demo", "messages": MESSAGES, **options, "extra_body": {"allowed_token_ids": ids}}
    pytest.fail("no seed makes the model call")


def test_tool_call_is_separated_from_text_in_both_modes(client: OpenAI, calling: dict[str, Any]) -> None:
    calling = {**calling, "extra_body": {**calling["extra_body"], "return_drafted": True}}
    raw = client.chat.completions.create(**calling).choices[0].message
    assert raw.tool_calls is None
    whole = client.chat.completions.create(**calling, tools=TOOLS).choices[0]
    said, calls = ToolCallReader(TOOLS).push(raw.content or "", is_last=True)
    assert [each.function for each in whole.message.tool_calls or [] if each.type == "function"] == [
        openai.types.chat.chat_completion_message_function_tool_call.Function(name=each.name, arguments=each.arguments)
        for each in calls
    ]
    assert (whole.message.content or "") == said.strip()
    assert "".join(part for part, _ in (whole.model_extra or {})["drafted"]) == said.strip()
    assert len({each.id for each in whole.message.tool_calls or []}) == len(calls) > 0
    text, found, drafted = "", list[tuple[int, str | None, str]](), list[tuple[str, bool]]()
    for piece in client.chat.completions.create(**calling, tools=TOOLS, stream=True):
        delta = piece.choices[0].delta
        text += delta.content or ""
        drafted += (piece.choices[0].model_extra or {}).get("drafted", [])
        found += [
            (call.index, call.function.name, call.function.arguments or "")
            for call in delta.tool_calls or []
            if call.function
        ]
    assert text == said == "".join(part for part, _ in drafted)
    assert found == [(each.at, each.name, each.arguments) for each in calls]


def test_answer_with_a_call_sets_finish_reason(client: OpenAI, calling: dict[str, Any]) -> None:
    for streams in (False, True):
        answer: Any = client.chat.completions.create(**calling, tools=TOOLS, stop="</tool_call>", stream=streams)
        last = list(answer)[-1].choices[0] if streams else answer.choices[0]
        calls = last.delta.tool_calls if streams else last.message.tool_calls
        assert last.finish_reason == ("tool_calls" if calls else "stop")
    one: Any = client.chat.completions.create(**calling, tools=TOOLS, parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls) == 1
    none = client.chat.completions.create(**calling, tools=TOOLS, tool_choice="none")
    assert none.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "extra_body": {"guided_choice": ["a"]}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "extra_body": {"ignore_eos": True}}, "tool_choice"),
        ({"tools": [*TOOLS, *TOOLS], "tool_choice": "required"}, "tools"),
        ({"tools": _tool({"type": "array"}), "tool_choice": "required"}, "tools"),
        ({"tools": _tool({"properties": {"a": {"type": "strin"}}}), "tool_choice": "required"}, "tools"),
        ({"tools": _tool({"$ref": "#/$defs/gone"}), "tool_choice": "required"}, "tools"),
        ({"tools": TOOLS, "extra_body": {"parallel_tool_calls": "no"}}, "parallel_tool_calls"),
        ({"tools": 3}, "tools"),
    ],
)
def test_tools_that_cannot_be_called_are_refused_by_name(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=1, **fields)
    assert refused.value.param == param


CHOSEN = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
BOTH: Any = [*TOOLS, {"type": "function", "function": {"name": "g", "parameters": {**CHOSEN, "maxProperties": 1}}}]


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"f", "g"}), ({"type": "function", "function": {"name": "g"}}, {"g"})],
    ids=["any", "one"],
)
def test_an_answer_that_must_call_does_so_whole_and_streamed(client: OpenAI, choice: Any, names: set[str]) -> None:
    asked: Any = {"model": "demo", "messages": [{"role": "user", "content": "def f(x):"}], "tools": BOTH, "seed": 4}
    asked |= {"tool_choice": choice, "max_tokens": 400, "temperature": 0.8, "parallel_tool_calls": False}
    for k in (0, 4):
        asked["extra_body"] = {"num_speculative_tokens": k}
        whole: Any = client.chat.completions.create(**asked).choices[0]
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
        (made,) = whole.message.tool_calls
        assert made.function.name in names
        assert made.function.name == "f" or json.loads(made.function.arguments)["unit"] in ("C", "F")
        pieces = list(client.chat.completions.create(**asked, stream=True))
        streamed: Any = [each for piece in pieces for each in piece.choices[0].delta.tool_calls or []]
        assert [each.function.arguments for each in streamed] == [made.function.arguments]
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == ""
        assert pieces[-1].choices[0].finish_reason == "tool_calls"


def test_an_answer_in_json_may_call_instead(client: OpenAI, calling_engine: Engine) -> None:
    """Agents ask for calls first and for JSON at the end, and send both the tools and the format every time."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    asked: Any = {"model": "demo", "messages": MESSAGES, "tools": BOTH[1:], "max_tokens": 200, "temperature": 0}
    asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked["parallel_tool_calls"] = False
    for begin, calls in (("<tool_call>", True), ("{", False)):
        bias = {str(calling_engine.tokenizer.encode(begin)[0]): 100}
        (choice,) = client.chat.completions.create(**asked, logit_bias=bias).choices
        assert (choice.finish_reason, bool(choice.message.tool_calls)) == ("tool_calls" if calls else "stop", calls)
        assert calls or json.loads(choice.message.content or "")["n"] <= 9
    written = "<tool_call><function=g></function></tool_call>"
    quoted: Any = {"type": "object", "properties": {"t": {"const": written}}, "required": ["t"]}
    quoting = {**asked, "response_format": {"type": "json_schema", "json_schema": {"name": "b", "schema": quoted}}}
    (choice,) = client.chat.completions.create(**quoting, logit_bias=bias).choices
    assert json.loads(choice.message.content or "") == {"t": written}, "no call is read out of JSON"
    bias = {str(calling_engine.tokenizer.encode("<tool_call>")[0]): 100}
    (choice,) = client.chat.completions.create(**{**asked, "max_tokens": 3}, logit_bias=bias).choices
    assert (choice.message.content, choice.message.tool_calls) == ("", None), "a truncated call is omitted"
    (required,) = client.chat.completions.create(**asked, tool_choice="required").choices
    assert (required.finish_reason, required.message.content) == ("tool_calls", None)
    (none,) = client.chat.completions.create(**asked, tool_choice="none").choices
    assert json.loads(none.message.content or "")["n"] <= 9


def test_required_call_can_repeat(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    asked: Any = {"model": "demo", "messages": MESSAGES, "tools": tools, "tool_choice": "required", "max_tokens": 150}
    (choice,) = client.chat.completions.create(**asked, temperature=0).choices
    assert {made.function.name for made in choice.message.tool_calls or [] if made.type == "function"} == {"f"}
    assert len(choice.message.tool_calls or []) > 1
    assert choice.message.content is None, "what max_tokens cut is no call, and nothing else is said"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}], ids=["any", "one"])
def test_a_required_call_that_max_tokens_truncates_is_omitted(client: OpenAI, choice: Any) -> None:
    asked: Any = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 3}
    asked["extra_body"] = {"return_drafted": True}
    whole: Any = client.chat.completions.create(**asked, temperature=0).choices[0]
    assert (whole.finish_reason, whole.message.tool_calls, whole.message.content) == ("length", None, "")
    assert whole.model_extra["drafted"] == []
    pieces: Any = [piece.choices[0] for piece in client.chat.completions.create(**asked, temperature=0, stream=True)]
    assert [(piece.delta.content, piece.delta.tool_calls) for piece in pieces] == [("", None), (None, None)]
    assert pieces[-1].finish_reason == "length"


def test_half_a_surrogate_pair_in_arguments_is_replaced(client: OpenAI) -> None:
    """Models cut emoji in two; UTF-8 has no such character, and neither have the clients of other languages."""
    text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d"}}</tool_call>'
    asked: Any = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 60}
    form = {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}}
    (made,) = client.chat.completions.create(**asked, extra_body=form).choices[0].message.tool_calls or ()
    assert made.type == "function"
    assert json.loads(made.function.arguments) == {"a": "\ufffd"}


def test_a_call_can_be_had_from_python_too(calling_engine: Engine, served_engine: Engine) -> None:
    for engine in (calling_engine, served_engine):
        params = SamplingParams(max_tokens=400, structured_outputs=engine.calls_of(BOTH[1:], max_calls=1))
        output = engine.chat(MESSAGES, params, tools=BOTH[1:])
        _, calls = ToolCallReader(BOTH, are_certain=True).push(output.text, is_last=True)
        assert [each.name for each in calls] == ["g"]
    assert calling_engine.optional_calls_of(BOTH) is None


def test_any_schema_terminates(client: OpenAI, calling: dict[str, Any]) -> None:
    for parameters in (3, [], None, {"properties": []}, {"properties": {"a": 3}}, {"properties": {"a": {"type": [1]}}}):
        tools: Any = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        answer = client.chat.completions.create(**{**calling, "max_tokens": 2}, tools=tools)
        assert json.loads(answer.to_json())["choices"]
