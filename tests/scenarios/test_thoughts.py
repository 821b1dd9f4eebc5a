"""Models that reason between tags, over every API: reasoning, answers and calls, switches, forms and earlier thoughts.

The engine's own words are forced by forms, so that the model says what a model of that kind would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.answer_styles import DEFAULT, STYLES
from peagle.engines.answer_styles.thoughts import TAGS
from peagle.engines.serving.generation import Conversation
from peagle.engines.serving.reasoning import styled
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.chat_templates import QWEN3
from tests.engines.serving.calls import call, error_of, events

pytest.importorskip("llguidance")

SAY = "{%- for m in messages %}{{ m.reasoning_content or '' }}{{ m.content or '' }}{% endfor %}"
SWITCHED = (  # calls as JSON; the template does not open the reasoning, and can close it
    "{% if tools %}{# calls are written as <tool_call> #}{% endif %}" + SAY + "{% if add_generation_prompt and "
    "enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
OPENING = SAY + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
CLIENT_TOOLS = [{"name": "f", "input_schema": SCHEMA}]
FUNCTIONS = [{"type": "function", **TOOLS[0]["function"]}]
MESSAGES: Any = [{"role": "user", "content": "def f(x):"}]
THOUGHT, SAID = "Warm or not?", "It is warm."
CALLED = '<tool_call>\n{"name": "f", "arguments": {"unit": "F"}}\n</tool_call>'
ANSWER = f"<think>\n{THOUGHT} {CALLED}\n</think>\n\n{SAID}\n{CALLED}"
REASONED = f"{THOUGHT} {CALLED}"


@pytest.fixture(scope="module")
def switched_engine(talking_engine: Path) -> Iterator[Engine]:
    with Engine.load(talking_engine, max_batch_size=2, threads=1, chat_template=SWITCHED) as engine:
        yield engine


@pytest.fixture(scope="module")
def opening_engine(talking_engine: Path) -> Iterator[Engine]:
    with Engine.load(talking_engine, max_batch_size=2, threads=1, chat_template=OPENING) as engine:
        yield engine


@contextmanager
def served(engine: Engine) -> Iterator[Server]:
    server = Server(engine, ServerSettings("demo"), port=0)
    server.start()
    yield server
    server.stop(immediately=True)
    assert server.wait(10)


@pytest.fixture(scope="module")
def switched(switched_engine: Engine) -> Iterator[Server]:
    with served(switched_engine) as server:
        yield server


@pytest.fixture(scope="module")
def opening(opening_engine: Engine) -> Iterator[Server]:
    with served(opening_engine) as server:
        yield server


def forced(text: str) -> dict[str, Any]:
    return {"temperature": 0, "structured_outputs": {"choice": [text]}}


def answered(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, _, content = call(server, "POST", path, body)
    assert status == 200, content
    told: dict[str, Any] = json.loads(content)
    return told


Told = tuple[str, str, list[Any], str]


def chat(server: Server, **fields: Any) -> Told:
    """Reasoning, text, calls and end of a chat's answer, which are the same whole and streamed."""
    body = {"messages": MESSAGES, "max_tokens": 150, **fields}
    (choice,) = answered(server, "/v1/chat/completions", body)["choices"]
    message = choice["message"]
    made = [each["function"] for each in message.get("tool_calls", ())]
    _, _, content = call(server, "POST", "/v1/chat/completions", {**body, "stream": True})
    thought, said, streamed = "", "", []
    for line in content.decode().split("\n\n")[:-2]:
        delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        thought, said = thought + delta.get("reasoning_content", ""), said + delta.get("content", "")
        streamed += [each["function"] for each in delta.get("tool_calls", ())]
    whole = message.get("reasoning_content", ""), (message["content"] or "").strip(), made
    assert (thought, said.strip(), streamed) == whole
    return *whole, choice["finish_reason"]


def message(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The blocks of a message, which are the same whole and streamed."""
    body = {"messages": MESSAGES, "max_tokens": 150, **fields}
    told: list[dict[str, Any]] = answered(server, "/v1/messages", body)["content"]
    streamed = events(call(server, "POST", "/v1/messages", {**body, "stream": True})[2])
    opened = [each["content_block"]["type"] for each in streamed if each["type"] == "content_block_start"]
    assert opened == [each["type"] for each in told]
    return told


def items(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The items of a response, which are the same whole and streamed."""
    body = {"input": MESSAGES, "max_output_tokens": 150, **fields}
    told: list[dict[str, Any]] = answered(server, "/v1/responses", body)["output"]
    last = events(call(server, "POST", "/v1/responses", {**body, "stream": True})[2])[-1]["response"]
    assert [each["type"] for each in last["output"]] == [each["type"] for each in told]
    return told


def test_the_styles_of_calls_and_of_reasoning_are_independent(switched_engine: Engine, opening_engine: Engine) -> None:
    assert switched_engine.answer_style == replace(STYLES["json"], thoughts=TAGS[0])
    opened = replace(TAGS[0], switch="", is_opened=True)
    assert opening_engine.answer_style == replace(DEFAULT, thoughts=opened)


def test_reasoning_text_and_calls_are_separated_in_every_api(switched: Server) -> None:
    made = {"name": "f", "arguments": '{"unit": "F"}'}
    assert chat(switched, **forced(ANSWER), tools=TOOLS) == (REASONED, SAID, [made], "tool_calls")
    assert chat(switched, **forced(ANSWER)) == (REASONED, f"{SAID}\n{CALLED}", [], "stop")
    assert chat(switched, **forced(SAID), tools=TOOLS) == ("", SAID, [], "stop")
    thought, said, used = message(switched, **forced(ANSWER), tools=CLIENT_TOOLS)
    assert (thought["thinking"], said["text"], used["input"]) == (REASONED, SAID, {"unit": "F"})
    thought, said, used = items(switched, **forced(ANSWER), tools=FUNCTIONS)
    assert [part["text"] for part in (*thought["content"], *said["content"])] == [REASONED, SAID]
    assert used["type"] == "function_call"


def test_a_cut_answer_is_reasoning_only(switched: Server) -> None:
    thought, *rest = chat(switched, **forced(ANSWER), tools=TOOLS, max_tokens=9)
    assert rest == ["", [], "length"]
    assert REASONED.startswith(thought)
    assert thought


def test_an_answer_begins_inside_the_reasoning_that_its_prompt_opens(opening: Server, opening_engine: Engine) -> None:
    output = opening_engine.chat(MESSAGES, SamplingParams(max_tokens=8))
    thought = output.text.rstrip("\n")
    assert chat(opening, max_tokens=8, temperature=0) == (thought, "", [], "length")
    (block,) = message(opening, max_tokens=8, temperature=0)
    assert (block["type"], block["thinking"]) == ("thinking", thought)
    (item,) = items(opening, max_output_tokens=8, temperature=0)
    assert (item["type"], item["content"][0]["text"]) == ("reasoning", thought)
    assert opening_engine.spoken(output.text) == ""
    assert opening_engine.spoken(f"{output.text}</think>\n\n{SAID}") == SAID
    asked = [{"role": "user", "content": "What is <think>"}]
    assert chat(opening, messages=asked, max_tokens=4, temperature=0, add_generation_prompt=False)[0] == ""


def test_offered_tools_do_not_prevent_reasoning(opening: Server) -> None:
    thought, said, calls, _ = chat(opening, tools=TOOLS, max_tokens=8, temperature=0)
    assert thought
    assert (said, calls) == ("", [])


@pytest.mark.parametrize("name", ["switched", "opening"])
def test_a_structured_answer_has_no_reasoning(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    form = {"type": "json_schema", "json_schema": {"name": "unit", "schema": SCHEMA}}
    thought, said, _, _ = chat(server, response_format=form, seed=3)
    assert thought == ""
    assert json.loads(said)["unit"] in ("C", "F")
    for schema in (SCHEMA, {"type": "object", "properties": {"a": {}}}):
        form = {"type": "json_schema", "json_schema": {"name": "any", "schema": schema}}
        assert chat(server, response_format=form, tools=TOOLS, max_tokens=4, seed=3)[0] == ""
    thought, said, made, end = chat(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=3)
    assert (thought, said, end) == ("", "", "tool_calls")
    assert json.loads(made[0]["arguments"])["unit"] in ("C", "F")
    (block,) = message(server, **forced(SAID))
    assert (block["type"], block["text"]) == ("text", SAID)


def test_reasoning_that_the_prompt_opens_is_closed_before_a_form(opening_engine: Engine) -> None:
    engine = opening_engine
    params = SamplingParams(structured_outputs={"choice": [SAID]})
    output = engine.chat(MESSAGES, params)
    assert engine.tokenizer.decode(output.prompt_token_ids) == f"{MESSAGES[0]['content']}<think>\n\n</think>\n\n"
    form = engine.optional_calls_of(TOOLS)
    assert form is not None
    output = engine.chat(MESSAGES, SamplingParams(max_tokens=1, structured_outputs=form), tools=TOOLS)
    assert engine.tokenizer.decode(output.prompt_token_ids).endswith("<think>\n")


def test_reasoning_that_a_message_begins_is_closed_before_a_form(opening: Server, opening_engine: Engine) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "<think>\nWarm"}]
    text, ids = opening_engine.chat_prompt(begun, continue_final_message=True, can_think=False)
    assert text == f"{MESSAGES[0]['content']}<think>\nWarm\n</think>\n\n"
    body = {"messages": begun, "continue_final_message": True, **forced(SAID), "max_tokens": 50}
    told = answered(opening, "/v1/chat/completions", body)
    assert told["usage"]["prompt_tokens"] == len(ids)
    assert told["choices"][0]["message"]["content"] == SAID


def test_the_visible_part_of_an_answer_depends_on_its_prompt(talking_engine: Path, opening_engine: Engine) -> None:
    """Not on what the template usually opens."""
    template = OPENING.replace("add_generation_prompt", "add_generation_prompt and enable_thinking is not false")
    few = SamplingParams(max_tokens=8)
    with Engine.load(talking_engine, threads=1, chat_template=template) as engine:
        closed = engine.chat(MESSAGES, few, chat_template_kwargs={"enable_thinking": False})
        assert closed.text
        assert engine.spoken(closed) == closed.text
        assert engine.spoken(engine.chat(MESSAGES, few)) == ""
    assert opening_engine.spoken(opening_engine.chat(MESSAGES, few)) == ""
    structured = opening_engine.chat(MESSAGES, SamplingParams(structured_outputs={"choice": [SAID]}))
    assert opening_engine.spoken(structured) == SAID


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/messages/count_tokens", {"messages": MESSAGES}, {"thinking": {"type": "disabled"}}),
        ("/v1/responses/input_tokens", {"input": MESSAGES}, {"reasoning": {"effort": "none"}}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}, {"reasoning_effort": "none"}),
    ],
)
def test_reasoning_can_be_turned_off(
    switched: Server, switched_engine: Engine, opening: Server, path: str, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    def tokens(server: Server, **more: Any) -> int:
        told = answered(server, path, {**body, **more})
        return int(told["usage"]["prompt_tokens"] if "usage" in told else told["input_tokens"])

    switch = {"chat_template_kwargs": {"enable_thinking": False}}
    closed = len(switched_engine.chat_prompt(MESSAGES, **switch)[1])  # type: ignore[arg-type]
    assert tokens(switched, **fields) == closed > tokens(switched)
    assert tokens(switched, **fields, chat_template_kwargs={"enable_thinking": True}) == tokens(switched)
    assert tokens(opening, **fields) == tokens(opening), "a template without the variable is unchanged"


@pytest.mark.parametrize(
    ("path", "count_path", "limit", "body"),
    [
        ("/v1/messages", "/v1/messages/count_tokens", "max_tokens", {"messages": MESSAGES, **fields})
        for fields in (
            {"tools": CLIENT_TOOLS},
            {"tools": CLIENT_TOOLS, "tool_choice": {"type": "any"}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        )
    ]
    + [
        ("/v1/responses", "/v1/responses/input_tokens", "max_output_tokens", {"input": MESSAGES, **fields})
        for fields in (
            {"text": {"format": {"type": "text"}}},
            {"tools": FUNCTIONS, "tool_choice": "required"},
            {"text": {"format": {"type": "json_object"}}},
            {"structured_outputs": {"choice": [SAID]}},
        )
    ],
)
def test_tokens_are_counted_with_the_end_of_reasoning_that_a_form_closes(
    opening: Server, path: str, count_path: str, limit: str, body: dict[str, Any]
) -> None:
    usage = answered(opening, path, {**body, limit: 1})["usage"]
    counted = answered(opening, count_path, body)["input_tokens"]
    assert counted == usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def test_models_with_levels_have_no_switch() -> None:
    conversation = Conversation(MESSAGES)
    assert styled(conversation, STYLES["channels"], thinks=False).chat_template_kwargs is None
    assert styled(conversation, DEFAULT, "none", thinks=False) is conversation


def test_earlier_reasoning_is_given_to_the_template(talking_engine: Path) -> None:
    """Qwen3's template writes that of the answer to the last question, with its calls."""
    with Engine.load(talking_engine, threads=1, chat_template=QWEN3) as engine:
        used = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": "7"}
        blocks = [{"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": SAID}, used]
        turns = [*MESSAGES, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
        made = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        given: list[Any] = [*MESSAGES, {"role": "assistant", "content": SAID, "reasoning_content": THOUGHT}]
        given[-1]["tool_calls"] = [made]
        given.append({"role": "tool", "tool_call_id": "1", "content": "7"})
        reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": THOUGHT}]}
        output = {"type": "function_call_output", "call_id": "1", "output": "7"}
        listed = [*MESSAGES, reasoning, {"role": "assistant", "content": SAID}]
        listed += [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, output]
        text, ids = engine.chat_prompt(given)
        assert f"<think>\n{THOUGHT}\n</think>\n\n{SAID}" in text
        with served(engine) as server:
            counted = answered(server, "/v1/messages/count_tokens", {"messages": turns})["input_tokens"]
            also_counted = answered(server, "/v1/responses/input_tokens", {"input": listed})["input_tokens"]
        assert (counted, also_counted) == (len(ids), len(ids))


def test_a_cut_thought_can_be_continued(switched: Server) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "<think>\nWarm"}]
    whole = chat(switched, messages=begun, continue_final_message=True, max_tokens=4, temperature=0)
    assert whole[0]
    assert whole[1:] == ("", [], "length")
    blocks = message(switched, messages=begun, max_tokens=4, temperature=0)
    assert [each["type"] for each in blocks] == ["thinking"]
    ended = [*MESSAGES, {"role": "assistant", "content": "<think>\nWarm\n</think>\n\nIt"}]
    assert chat(switched, messages=ended, continue_final_message=True, max_tokens=4, temperature=0)[0] == ""
    thought_only = [*MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Warm"}]}]
    status, _, content = call(switched, "POST", "/v1/messages", {"messages": thought_only, "max_tokens": 4})
    assert status == 400
    assert "has no text that the answer could continue" in error_of(content)["message"]
