"""Coding agents as clients: the requests of two widely used ones, over whole tool loops.

The fields and their values are those of the agents' public sources and of captured requests: one
speaks Anthropic's Messages API (``POST /v1/messages?beta=true``), the other OpenAI's Responses API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.calls import call, events
from tests.fixtures.servers import MODEL

pytest.importorskip("llguidance")


@pytest.fixture(params=["calling_server", "server"], ids=["calls in the template", "default form"])
def agents_server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CALL = '<tool_call>\n{"name": "%s", "arguments": {"command": "ls"}}\n</tool_call>'
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

MESSAGES_HEADERS = {
    "x-api-key": "placeholder",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,effort-2025-11-24",
    "anthropic-dangerous-direct-browser-access": "true",
    "User-Agent": "agent-cli/2.1.170 (external, sdk-cli)",
    "x-app": "cli",
}
MESSAGES_BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 128000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.170; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are a coding agent.", **EPHEMERAL},
        {"type": "text", "text": "Work in the current directory.", **EPHEMERAL},
    ],
    "tools": [
        {
            "name": name,
            "description": "Runs a command.",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema", **COMMAND, "additionalProperties": False,
            },
        }
        for name in ("Bash", "Read")
    ],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": json.dumps({"device_id": "a" * 64, "account_uuid": "", "session_id": "b"})},
    "safeguards": {},
}  # fmt: skip
RESPONSES_BODY: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are a coding agent.",
    "tools": [
        {"type": "function", "name": name, "description": "Runs a command.", "strict": False, "parameters": COMMAND}
        for name in ("shell_command", "update_plan")
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "text": {"verbosity": "low"},
    "client_metadata": {"session": "a"},
}


def forced(text: str) -> dict[str, Any]:
    """The field with which the model writes this text."""
    return {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}}


def message_of(server: Server, messages: Any, **more: Any) -> tuple[list[dict[str, Any]], str]:
    """The blocks of a message, and why it ended."""
    body = {**MESSAGES_BODY, "messages": messages, **more}
    status, _, content = call(server, "POST", "/v1/messages?beta=true", body, MESSAGES_HEADERS)
    assert status == 200, content
    blocks = list[dict[str, Any]]()
    reason = ""
    for each in events(content):
        if each["type"] == "content_block_start":
            blocks.append(each["content_block"])
        elif each["type"] == "content_block_delta":
            delta = each["delta"]
            if delta["type"] == "input_json_delta":
                blocks[-1]["input"] = json.loads(delta["partial_json"])
            else:
                blocks[-1]["text"] += delta["text"]
        elif each["type"] == "message_delta":
            reason = each["delta"]["stop_reason"]
    return blocks, reason


def test_an_agent_of_the_messages_api_works_through_a_tool_loop(agents_server: Server) -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>"}
    turns: list[Any] = [{"role": "user", "content": [reminder, {"type": "text", "text": "List files.", **EPHEMERAL}]}]
    blocks, reason = message_of(agents_server, turns, **forced("I look.\n" + CALL % "Bash"))
    assert ([each["type"] for each in blocks], reason) == (["text", "tool_use"], "tool_use")
    assert blocks[1]["input"] == {"command": "ls"}
    result = {"tool_use_id": blocks[1]["id"], "type": "tool_result", "content": "a.py", "is_error": False, **EPHEMERAL}
    turns += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    turns.append({"role": "system", "content": [{"type": "text", "text": "The plan changed.", **EPHEMERAL}]})
    blocks, reason = message_of(agents_server, turns, **forced("There is a.py."))
    assert blocks == [{"type": "text", "text": "There is a.py."}]
    assert reason == "end_turn"


def test_an_agent_of_the_messages_api_works_on_after_it_has_read_an_image(agents_server: Server) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a.png"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": source}]}
    turns: list[Any] = [
        {"role": "user", "content": "Look at a.png."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    blocks, _ = message_of(agents_server, turns, **forced("I cannot see it."))
    assert blocks == [{"type": "text", "text": "I cannot see it."}]


def test_it_counts_tokens_and_asks_for_a_title(agents_server: Server) -> None:
    fields = {name: MESSAGES_BODY[name] for name in ("model", "tools", "thinking")}
    body = {**fields, "messages": [{"role": "user", "content": "foo"}]}
    status, _, content = call(agents_server, "POST", "/v1/messages/count_tokens?beta=true", body, MESSAGES_HEADERS)
    assert status == 200, content
    assert json.loads(content)["input_tokens"] > 0
    schema = {"type": "object", "properties": {"title": {"enum": ["Files"]}}, "required": ["title"]}
    title = {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "tools": [], "max_tokens": 32000}
    blocks, _ = message_of(agents_server, [{"role": "user", "content": "List files."}], **title)
    assert json.loads(blocks[0]["text"]) == {"title": "Files"}


def test_a_search_on_anthropic_s_machines_is_refused(agents_server: Server) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    body = {**MESSAGES_BODY, "tools": tools, "messages": [{"role": "user", "content": "a"}]}
    status, _, content = call(agents_server, "POST", "/v1/messages", body)
    assert status == 400
    assert "tools[0] has type 'web_search_20250305'" in json.loads(content)["error"]["message"]


def items_of(server: Server, items: Any, **more: Any) -> list[dict[str, Any]]:
    """The items of a response, which the agent takes from these events."""
    status, _, content = call(server, "POST", "/v1/responses", {**RESPONSES_BODY, "input": items, **more})
    assert status == 200, content
    told = events(content)
    assert told[0]["type"] == "response.created"
    assert told[-1]["type"] == "response.completed"
    usage = told[-1]["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 0
    items = [each["item"] for each in told if each["type"] == "response.output_item.done"]
    deltas = [each["delta"] for each in told if each["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "".join(part["text"] for each in items for part in each.get("content", ()))
    return list(items)


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_an_agent_of_the_responses_api_works_through_a_tool_loop(agents_server: Server) -> None:
    """It keeps the conversation itself, and sends items back without their ids and states."""
    items = [
        said("developer", "Sandbox: read-only."),
        said("user", "<environment_context/>"),
        said("user", "List files."),
    ]
    text, made = items_of(agents_server, items, **forced("I look.\n" + CALL % "shell_command"))
    assert (made["type"], made["name"], made["arguments"]) == ("function_call", "shell_command", '{"command": "ls"}')
    items.append({**said("assistant", text["content"][0]["text"]), "phase": "commentary"})
    items.append({name: made[name] for name in ("type", "name", "arguments", "call_id")})
    items.append({"type": "function_call_output", "call_id": made["call_id"], "output": "a.py"})
    items.append({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"})
    (text,) = items_of(agents_server, items, **forced("There is a.py."))
    assert text["content"][0]["text"] == "There is a.py."
    assert call(agents_server, "GET", f"/v1/responses/{text['id']}")[0] == 404


def test_an_agent_of_the_responses_api_follows_a_schema(agents_server: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"]}
    text = {"format": {"type": "json_schema", "name": "output_schema", "strict": True, "schema": schema}}
    (found,) = items_of(agents_server, [said("user", "Is it done?")], text=text, tools=[])
    assert json.loads(found["content"][0]["text"]) == {"ok": True}


OTHER_TOOLS: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "a"}},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": COMMAND},
]


def test_an_agent_of_the_responses_api_works_with_tools_of_an_mcp_server(agents_server: Server) -> None:
    """It sends them as a namespace, beside tools that the model is not offered."""
    member = {"type": "function", "name": "shell_command", "strict": False, "parameters": COMMAND}
    space = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [member]}
    tools = [*RESPONSES_BODY["tools"], *OTHER_TOOLS, space]
    items = [said("user", "List files.")]
    (made,) = items_of(agents_server, items, tools=tools, **forced(CALL % "mcp__files__shell_command"))
    assert (made["type"], made["namespace"], made["name"]) == ("function_call", "mcp__files", "shell_command")
    items.append({name: made[name] for name in ("type", "name", "namespace", "arguments", "call_id")})
    items.append({"type": "function_call_output", "call_id": made["call_id"], "output": "a.py"})
    items.append({"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "*** Begin Patch"})
    items.append({"type": "custom_tool_call_output", "call_id": "b", "output": "Done."})
    (text,) = items_of(agents_server, items, tools=tools, **forced("There is a.py."))
    assert text["content"][0]["text"] == "There is a.py."


@pytest.mark.parametrize("tool", [*OTHER_TOOLS, {"type": "web_surf"}], ids=lambda tool: tool["type"])
def test_tools_that_must_be_called_or_are_unknown_are_refused_by_their_type(
    agents_server: Server, tool: dict[str, Any]
) -> None:
    body = {**RESPONSES_BODY, "input": "a", "tools": [tool], "tool_choice": "required"}
    status, _, content = call(agents_server, "POST", "/v1/responses", body)
    assert status == 400
    error = json.loads(content)["error"]
    assert (error["param"], error["code"]) == ("tools[0]", "unsupported_parameter")
    assert f"type '{tool['type']}'" in error["message"]


# ------------------------------------------------------------------------------------------------ ten turns with tools

TURNS = 10
SYSTEM = " ".join(f"Rule {number}: read a file before you change it." for number in range(8))
Turn = tuple[int, int, int]  # tokens of the prompt, of these from the cache, and of the answer


@pytest.fixture(params=["served_engine", pytest.param("smollm2", marks=pytest.mark.slow)])
def caching_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose model has no form for tools, with room for a whole dialogue in the prefix cache."""
    like: Engine = request.getfixturevalue(request.param)
    with Engine(like.folder, like.manifest, like._backend, like.tokenizer, prefix_cache_bytes=1 << 28) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        yield server
        server.stop(immediately=True)
        assert server.wait(10)


def call_in_words(number: int) -> dict[str, Any]:
    """The field with which the model says something and calls a tool; at the end, it only says something."""
    call = f'<tool_call>\n{{"name": "Bash", "arguments": {{"command": "cat {number}.py"}}}}\n</tool_call>'
    return forced(f"I read {number}.\n{call}" if number < TURNS - 1 else "It is done.")


def file_of(number: int) -> str:
    return f"def f{number}(x):\n    return x + {number}\n"


def turns_of_messages(server: Server) -> Iterator[Turn]:
    turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Tidy up.", **EPHEMERAL}]}]
    for number in range(TURNS):
        billing = f"x-anthropic-billing-header: cc_version=2.1.170; cc_entrypoint=cli; cch={number:05x};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": SYSTEM, **EPHEMERAL}]
        body = {**MESSAGES_BODY, "system": system, "messages": turns, **call_in_words(number)}
        status, _, content = call(server, "POST", "/v1/messages?beta=true", body, MESSAGES_HEADERS)
        assert status == 200, content
        told = events(content)
        blocks = [dict(each["content_block"]) for each in told if each["type"] == "content_block_start"]
        for each in told:
            if each["type"] == "content_block_delta" and "text" in each["delta"]:
                blocks[each["index"]]["text"] += each["delta"]["text"]
            elif each["type"] == "content_block_delta":
                blocks[each["index"]]["input"] = json.loads(each["delta"]["partial_json"])
        end = next(each for each in told if each["type"] == "message_delta")
        usage = end["usage"]
        read = usage["cache_read_input_tokens"]
        yield usage["input_tokens"] + read, read, usage["output_tokens"]
        turns.append({"role": "assistant", "content": blocks})
        if end["delta"]["stop_reason"] == "end_turn":
            return
        assert blocks[-1]["input"] == {"command": f"cat {number}.py"}
        result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": file_of(number)}
        turns.append({"role": "user", "content": [result]})


def turns_of_responses(server: Server) -> Iterator[Turn]:
    items = [said("developer", "Sandbox: read-only."), said("user", "Tidy up.")]
    tools = [{**each, "name": name} for each, name in zip(RESPONSES_BODY["tools"], ("Bash", "Read"), strict=True)]
    for number in range(TURNS):
        body = {**RESPONSES_BODY, "instructions": SYSTEM, "tools": tools, "input": items, **call_in_words(number)}
        status, _, content = call(server, "POST", "/v1/responses", body)
        assert status == 200, content
        response = events(content)[-1]["response"]
        usage = response["usage"]
        yield usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
        text, *calls = response["output"]
        items.append(said("assistant", text["content"][0]["text"]))
        if not calls:
            return
        (made,) = calls
        assert json.loads(made["arguments"]) == {"command": f"cat {number}.py"}
        items.append({name: made[name] for name in ("type", "name", "arguments", "call_id")})
        items.append({"type": "function_call_output", "call_id": made["call_id"], "output": file_of(number)})


def turns_of_chats(server: Server) -> Iterator[Turn]:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Tidy up."}]
    tools = [{"type": "function", "function": {"name": name, "parameters": COMMAND}} for name in ("Bash", "Read")]
    for number in range(TURNS):
        body = {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": 256, **call_in_words(number)}
        status, _, content = call(server, "POST", "/v1/chat/completions", body)
        assert status == 200, content
        answer = json.loads(content)
        usage, (choice,) = answer["usage"], answer["choices"]
        yield usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
        messages.append(choice["message"])
        if choice["finish_reason"] == "stop":
            return
        (made,) = choice["message"]["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == {"command": f"cat {number}.py"}
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": file_of(number)})


@pytest.mark.parametrize(
    "turns_of",
    [turns_of_messages, *(pytest.param(each, marks=pytest.mark.slow) for each in (turns_of_responses, turns_of_chats))],
)
def test_ten_turns_with_tools_read_little_twice(
    caching_server: Server, turns_of: Callable[[Server], Iterator[Turn]]
) -> None:
    """What was seen before is the whole prompt of the turn before, and its answer."""
    turns = [*turns_of(caching_server)]
    assert len(turns) == TURNS
    seen = sum(prompt + answer for prompt, _, answer in turns[:-1])
    cached = sum(cached for _, cached, _ in turns[1:])
    assert 0.9 * seen < cached <= seen, turns
