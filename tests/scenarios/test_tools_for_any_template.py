"""Tools for models without a tool format in their chat template, over every API: calls, results and costs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.answer_styles.tagged_calls import OPEN, ToolCallReader
from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call, events

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
CLIENT_TOOLS = [{"name": each["function"]["name"], "input_schema": SCHEMA} for each in TOOLS]
FUNCTIONS = [{"type": "function", **each["function"]} for each in TOOLS]
PUSHED: Any = [{"role": "user", "content": OPEN * 30}]
CALLED = {"name": "f", "arguments": '{"unit": "C"}'}
Calls = list[tuple[str, dict[str, Any]]]


def chat(server: Server, **fields: Any) -> tuple[str, Calls, str]:
    """The text, the calls and the end of a chat's answer, which are the same whole and streamed."""
    body = {"messages": PUSHED, "tools": TOOLS, "max_tokens": 150, **fields}
    status, _, content = call(server, "POST", "/v1/chat/completions", body)
    assert status == 200, content
    (choice,) = json.loads(content)["choices"]
    made = [each["function"] for each in choice["message"].get("tool_calls", ())]
    calls = [(each["name"], json.loads(each["arguments"])) for each in made]
    _, _, content = call(server, "POST", "/v1/chat/completions", {**body, "stream": True})
    text, streamed = "", []
    for line in content.decode().split("\n\n")[:-2]:
        delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        text += delta.get("content", "")
        streamed += [each["function"] for each in delta.get("tool_calls", ())]
    assert (text.strip(), streamed) == ((choice["message"]["content"] or "").strip(), made)
    return text, calls, choice["finish_reason"]


def message(server: Server, **fields: Any) -> tuple[str, Calls, str]:
    """The same of a message of Anthropic's API."""
    body = {"messages": PUSHED, "tools": CLIENT_TOOLS, "max_tokens": 150, **fields}
    status, _, content = call(server, "POST", "/v1/messages", body)
    assert status == 200, content
    told = json.loads(content)
    calls = [(each["name"], each["input"]) for each in told["content"] if each["type"] == "tool_use"]
    streamed = events(call(server, "POST", "/v1/messages", {**body, "stream": True})[2])
    deltas = [each["delta"] for each in streamed if each["type"] == "content_block_delta"]
    assert [json.loads(each["partial_json"]) for each in deltas if "partial_json" in each] == [
        each for _, each in calls
    ]
    return "".join(each.get("text", "") for each in told["content"]), calls, told["stop_reason"]


def response(server: Server, **fields: Any) -> tuple[str, Calls, str]:
    """The same of a response of OpenAI's API."""
    body = {"input": PUSHED, "tools": FUNCTIONS, "max_output_tokens": 150, **fields}
    status, _, content = call(server, "POST", "/v1/responses", body)
    assert status == 200, content
    told = json.loads(content)
    made = [each for each in told["output"] if each["type"] == "function_call"]
    last = events(call(server, "POST", "/v1/responses", {**body, "stream": True})[2])[-1]["response"]
    assert [each["arguments"] for each in last["output"] if "arguments" in each] == [each["arguments"] for each in made]
    texts = [part["text"] for each in told["output"] for part in each.get("content", ())]
    return "".join(texts), [(each["name"], json.loads(each["arguments"])) for each in made], told["status"]


@pytest.mark.parametrize("k", [0, 4])
def test_an_answer_that_must_call_does_so_over_every_api(server: Server, k: int) -> None:
    fields = {"seed": 4, "temperature": 0.8, "num_speculative_tokens": k}
    once = {"parallel_tool_calls": False}
    told = [
        chat(server, **fields, **once, tool_choice="required"),
        message(server, **fields, tool_choice={"type": "any", "disable_parallel_tool_use": True}),
        response(server, **fields, **once, tool_choice="required"),
    ]
    assert told[0][:2] == told[1][:2] == told[2][:2]
    assert [end for *_, end in told] == ["tool_calls", "tool_use", "completed"]
    text, ((_, arguments),), _ = told[0]
    assert (text, arguments["unit"] in ("C", "F")) == ("", True)
    named = [
        chat(server, **fields, tool_choice={"type": "function", "function": {"name": "g"}}),
        message(server, **fields, tool_choice={"type": "tool", "name": "g"}),
        response(server, **fields, tool_choice={"type": "function", "name": "g"}),
    ]
    assert [[name for name, _ in calls] for _, calls, _ in named] == [["g"]] * 3


@pytest.fixture(scope="module")
def calling(served_engine: Engine) -> dict[str, Any]:
    """The options with which the model calls of its own accord: it is biased towards the words of the tag."""
    bias = dict.fromkeys(served_engine.tokenizer.encode(OPEN), 12.0)
    form = served_engine.optional_calls_of(TOOLS)
    assert form is not None
    params = SamplingParams(max_tokens=150, temperature=0.7, logit_bias=bias, structured_outputs=form)
    for seed in range(60):
        text = served_engine.chat(PUSHED, replace(params, seed=seed), tools=TOOLS).text
        if ToolCallReader(TOOLS).push(text, is_last=True)[1]:
            return {"temperature": 0.7, "seed": seed, "logit_bias": {str(token): 12.0 for token in bias}}
    pytest.fail("no seed makes the model call")


def test_a_call_that_the_model_begins_fits_its_schema(server: Server, calling: dict[str, Any]) -> None:
    told = [chat(server, **calling, num_speculative_tokens=k) for k in (0, 4)]
    assert told[0] == told[1]
    _, calls, _ = told[0]
    assert {(name in ("f", "g"), arguments["unit"] in ("C", "F")) for name, arguments in calls} == {(True, True)}
    _, once, end = chat(server, **calling, parallel_tool_calls=False)
    assert (once, end) == (calls[:1], "tool_calls")
    assert chat(server, **calling, tool_choice="none", max_tokens=20)[1] == []


def test_a_call_that_a_stop_string_truncates_is_omitted(server: Server, calling: dict[str, Any]) -> None:
    text, calls, _ = chat(server, **calling, stop='"arguments"')
    assert (OPEN in text, calls) == (False, [])


def test_calls_can_be_had_where_schemas_cannot_be_enforced(
    server: Server, served_engine: Engine, calling: dict[str, Any]
) -> None:
    for parameters in (3, {"type": "array"}, {"properties": {"a": {"type": "strin"}}}):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        assert served_engine.optional_calls_of(tools) is not None
        _, calls, _ = chat(server, tools=tools, **calling, max_tokens=20)
        assert {name for name, _ in calls} <= {"f"}
    assert chat(server, tools=[*TOOLS, *TOOLS], **calling, max_tokens=8)[1] == []
    assert chat(server, ignore_eos=True, **calling, max_tokens=8)[2] == "length"


def test_a_form_of_the_body_replaces_that_of_the_tools(server: Server) -> None:
    form = {"structured_outputs": {"choice": ["Yes."]}, "temperature": 0}
    assert chat(server, **form) == ("Yes.", [], "stop")
    assert message(server, **form) == ("Yes.", [], "end_turn")
    assert response(server, **form) == ("Yes.", [], "completed")


def test_the_model_is_shown_the_same_conversation_by_every_api(server: Server, served_engine: Engine) -> None:
    """Tools, a call and its result have the default form, which any client can count."""
    calls = [{"id": "1", "type": "function", "function": CALLED}]
    turns: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I look.", "tool_calls": calls}]
    turns.append({"role": "tool", "tool_call_id": "1", "content": "7 C"})
    text, ids = served_engine.chat_prompt(turns, tools=TOOLS)
    assert text.startswith("# # Tools\n")
    assert text.endswith(
        'HiI look.\n<tool_call>\n{"name": "f", "arguments": {"unit": "C"}}\n</tool_call>'
        "<tool_response>\n7 C\n</tool_response>"
    )
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"unit": "C"}}
    blocks: Any = [
        turns[0],
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "7 C"}]},
    ]
    items: Any = [
        turns[0],
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "1", **CALLED},
        {"type": "function_call_output", "call_id": "1", "output": "7 C"},
    ]
    least = {"structured_outputs": {"choice": ["a"]}}
    for path, body, name in (
        ("/tokenize", {"messages": turns, "tools": TOOLS}, "count"),
        ("/v1/messages/count_tokens", {"messages": blocks, "tools": CLIENT_TOOLS}, "input_tokens"),
        ("/v1/chat/completions", {"messages": turns, "tools": TOOLS, **least}, "prompt_tokens"),
        ("/v1/responses", {"input": items, "tools": FUNCTIONS, **least}, "input_tokens"),
    ):
        status, _, content = call(server, "POST", path, body)
        assert status == 200, content
        told = json.loads(content)
        assert told.get("usage", told)[name] == len(ids), path
