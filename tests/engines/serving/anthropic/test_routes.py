"""Anthropic's Messages API over HTTP: complete and streamed messages, tools, formats, token counts and errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving import answering
from peagle.engines.serving.anthropic.rendering import MessageAnswer, error_body
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import all_slots_taken, call, events
from tests.fixtures.servers import MODEL

PROMPT = "def count_vowels(text):\n"
USER: Any = [{"role": "user", "content": PROMPT}]
MINIMAL: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "messages": USER, "temperature": 0}
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]},
}


USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}


def ask(server: Server, **fields: Any) -> tuple[int, Any]:
    """Status and content of ``POST /v1/messages``."""
    status, _, content = call(server, "POST", "/v1/messages", {**MINIMAL, **fields})
    return status, json.loads(content)


def message(server: Server, **fields: Any) -> dict[str, Any]:
    """The message, which is the same whole and streamed."""
    status, whole = ask(server, **fields)
    assert status == 200, whole
    assert comparable(streamed(server, **fields)) == comparable(whole)
    found: dict[str, Any] = whole
    return found


def streamed(server: Server, **fields: Any) -> dict[str, Any]:
    """The message that the events of a stream build up."""
    status, headers, content = call(server, "POST", "/v1/messages", {**MINIMAL, **fields, "stream": True})
    assert status == 200, content
    assert headers["content-type"].startswith("text/event-stream")
    first, ping, *between, delta, last = events(content)
    middle = [each for each in between if each != {"type": "ping"}]
    assert (first["type"], ping, last) == ("message_start", {"type": "ping"}, {"type": "message_stop"})
    told: dict[str, Any] = first["message"]
    assert told["usage"]["input_tokens"] > 0
    assert (told["content"], told["stop_reason"]) == ([], None)
    blocks = list[dict[str, Any]]()
    texts = list[str]()
    is_open = False
    for each in middle:
        assert each["index"] == len(blocks) - (each["type"] != "content_block_start")
        if each["type"] == "content_block_start":
            assert not is_open
            blocks.append(each["content_block"])
            texts.append("")
            is_open = True
        elif each["type"] == "content_block_delta":
            assert is_open
            kind = {"text": "text", "thinking": "thinking", "tool_use": "input_json"}[blocks[-1]["type"]]
            assert each["delta"]["type"] == f"{kind}_delta"
            texts[-1] += each["delta"][{"input_json": "partial_json"}.get(kind, kind)]
        else:
            assert each["type"] == "content_block_stop"
            name = {"tool_use": "input"}.get(blocks[-1]["type"], blocks[-1]["type"])
            assert not blocks[-1][name]
            blocks[-1][name] = json.loads(texts[-1]) if name == "input" else texts[-1]
            is_open = False
    assert not is_open
    assert delta["type"] == "message_delta"
    return {**told, **delta["delta"], "usage": delta["usage"], "content": blocks}


def comparable(told: dict[str, Any]) -> dict[str, Any]:
    """A message without ids and times, and the same whether the prompt was cached."""
    usage = {name: value for name, value in told["usage"].items() if name != "speculation"}
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {**told, "id": "", "usage": usage, "content": without_ids(told["content"])}


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name != "id"} for each in blocks]


def written(text: str) -> dict[str, Any]:
    """The fields with which the model writes this text."""
    pytest.importorskip("llguidance")
    return {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}, "max_tokens": 200}


def calling(unit: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"unit": "{unit}"}}}}\n</tool_call>'


# ----------------------------------------------------------------------------------------------------- messages


def test_a_message_is_the_engine_s_own_text(server: Server, served_engine: Engine) -> None:
    output = served_engine.chat(USER, SamplingParams(max_tokens=24))
    told = message(server)
    assert (told["type"], told["role"], told["model"]) == ("message", "assistant", MODEL)
    assert told["id"].startswith("msg_")
    assert told["content"] == [{"type": "text", "text": output.text}]
    assert (told["stop_reason"], told["stop_sequence"]) == ("max_tokens", None)
    assert told["usage"]["input_tokens"] == len(output.prompt_token_ids)
    assert told["usage"]["output_tokens"] == len(output.token_ids)


def test_a_seed_gives_the_same_message_with_drafts_and_without(server: Server) -> None:
    asked = {"temperature": 0.9, "seed": 11, "top_p": 0.95, "top_k": 50, "max_tokens": 32}
    told = [
        message(server, **asked, **more)["content"]
        for more in ({}, {"num_speculative_tokens": 0}, {"num_speculative_tokens": 1}, {"draft": "ngram"})
    ]
    assert told == told[:1] * 4
    assert message(server, **{**asked, "seed": 12})["content"] != told[0]


def test_usage_has_the_drafts(server: Server) -> None:
    usage = ask(server, num_speculative_tokens=3)[1]["usage"]
    assert usage["speculation"]["drafted_tokens"] > 0
    assert usage["cache_creation_input_tokens"] == usage["cache_read_input_tokens"] == 0


def test_cached_prompt_tokens_count_separately(talking_engine: Path) -> None:
    with Engine.load(talking_engine, max_batch_size=1, threads=1, prefix_cache_bytes=1 << 24) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        messages = [{"role": "user", "content": PROMPT * 20}]
        first, second = (ask(server, messages=messages)[1]["usage"] for _ in range(2))
        body = {"input": PROMPT * 20, "max_output_tokens": 1}
        third = json.loads(call(server, "POST", "/v1/responses", body)[2])["usage"]
        server.stop(immediately=True)
        assert server.wait(10)
    assert first["cache_read_input_tokens"] == 0
    assert 0 < second["cache_read_input_tokens"] <= third["input_tokens_details"]["cached_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == first["input_tokens"] == third["input_tokens"]


def test_a_stop_sequence_ends_the_message_and_is_named(server: Server, served_engine: Engine) -> None:
    text = served_engine.chat(USER, SamplingParams(max_tokens=24)).text
    told = message(server, stop_sequences=["never", text[8:11]])
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", text[8:11])
    assert text[8:11] not in told["content"][0]["text"]


def test_a_message_that_ends_by_itself_has_stop_reason_end_turn(calling_server: Server) -> None:
    told = message(calling_server, **written("Yes."))
    assert (told["content"], told["stop_reason"]) == ([{"type": "text", "text": "Yes."}], "end_turn")


def test_max_tokens_may_exceed_the_context(short_server: Server, short_engine: Engine) -> None:
    """Agents request tens of thousands of tokens; the message ends with the context."""
    told = message(short_server, max_tokens=10**6)
    room = short_engine.max_seq_len - told["usage"]["input_tokens"]
    assert (told["stop_reason"], told["usage"]["output_tokens"]) == ("model_context_window_exceeded", room)


def test_system_and_content_may_be_text_or_blocks(server: Server, served_engine: Engine) -> None:
    conversation: Any = [{"role": "system", "content": "Be brief.\nBe kind."}, *USER]
    text = served_engine.chat(conversation, SamplingParams(max_tokens=24)).text
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for system in ("Be brief.\nBe kind.", [{"type": "text", "text": each} for each in ("Be brief.", "Be kind.")]):
        for content in (PROMPT, [{"type": "text", "text": PROMPT, **cached}]):
            told = message(server, system=system, messages=[{"role": "user", "content": content}])
            assert told["content"][0]["text"] == text


def test_turns_of_one_role_are_one_turn(server: Server) -> None:
    first, second = {"role": "user", "content": "def f(x):"}, {"role": "user", "content": "    return"}
    blocks = [{"type": "text", "text": each["content"]} for each in (first, second)]
    apart = message(server, messages=[first, second])
    assert apart["content"] == message(server, messages=[{"role": "user", "content": blocks}])["content"]


def test_a_message_continues_a_partial_assistant_message(server: Server, served_engine: Engine) -> None:
    begun: Any = {"role": "assistant", "content": "    return"}
    continued = served_engine.chat([*USER, begun], SamplingParams(max_tokens=24), continue_final_message=True)
    told = message(server, messages=[*USER, begun])
    assert told["content"] == [{"type": "text", "text": continued.text}]
    assert told["usage"]["input_tokens"] == len(continued.prompt_token_ids)
    apart = [{"role": "assistant", "content": [{"type": "text", "text": "    return"}]}]
    assert message(server, messages=[*USER, *apart])["content"] == told["content"]
    _, _, content = call(server, "POST", "/v1/messages/count_tokens", {"messages": [*USER, begun]})
    assert json.loads(content)["input_tokens"] == told["usage"]["input_tokens"]


def test_a_stream_pings_while_nothing_is_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageAnswer, "patience", 1e-4)
    body = {**MINIMAL, "messages": [{"role": "user", "content": PROMPT * 50}], "stream": True}
    told = [each["type"] for each in events(call(server, "POST", "/v1/messages", body)[2])]
    before = told[: told.index("content_block_start")]
    assert before[:2] == ["message_start", "ping"]
    assert before[2:].count("ping") == len(before) - 2 > 0
    assert (told[-2:], told.count("message_start")) == (["message_delta", "message_stop"], 1)


def test_a_stream_pings_while_a_call_is_written(calling_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens give no event until it is complete."""
    ticks = itertools.count(step=10.0)
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    body = {**MINIMAL, "tools": [TOOL], **written(f"I look.\n{calling('C')}"), "stream": True}
    told = events(call(calling_server, "POST", "/v1/messages", body)[2])
    (begin,) = [at for at, each in enumerate(told) if each.get("content_block", {}).get("type") == "tool_use"]
    said = max(at for at, each in enumerate(told) if each.get("delta", {}).get("type") == "text_delta")
    assert {"type": "ping"} in told[said:begin]


# ------------------------------------------------------------------------------------------------------- models


def test_models_have_the_shape_of_the_api_that_asks(server: Server, served_engine: Engine) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    told = json.loads(call(server, "GET", "/v1/models?limit=20", headers=headers)[2])
    (listed,) = told["data"]
    assert told == {"data": [listed], "first_id": MODEL, "last_id": MODEL, "has_more": False}
    assert (listed["type"], listed["id"], listed["display_name"]) == ("model", MODEL, MODEL)
    assert (listed["max_input_tokens"], listed["lifecycle"]) == (served_engine.max_seq_len, "active")
    assert datetime.fromisoformat(listed["created_at"]).tzinfo is not None
    assert json.loads(call(server, "GET", f"/v1/models/{MODEL}", headers=headers)[2]) == listed
    assert json.loads(call(server, "GET", f"/v1/models?after_id={MODEL}", headers=headers)[2])["data"] == []
    status, _, content = call(server, "GET", "/v1/models/other", headers=headers)
    assert (status, json.loads(content)["error"]["type"]) == (404, "not_found_error")
    assert json.loads(call(server, "GET", "/v1/models")[2])["object"] == "list"
    status, _, content = call(server, "GET", "/v1/models/other")
    assert (status, json.loads(content)["error"]["code"]) == (404, "model_not_found")


# -------------------------------------------------------------------------------------------------------- tools


def test_a_call_is_a_block_of_its_own(calling_server: Server) -> None:
    told = message(calling_server, tools=[TOOL], **written(f"I look.\n{calling('C')}\n{calling('F')}"))
    text, *calls = told["content"]
    assert text == {"type": "text", "text": "I look."}
    assert [(each["type"], each["name"], each["input"]) for each in calls] == [
        ("tool_use", "weather", {"unit": "C"}), ("tool_use", "weather", {"unit": "F"}),
    ]  # fmt: skip
    assert all(each["id"].startswith("toolu_") for each in calls)
    assert len({each["id"] for each in calls}) == 2
    assert (told["stop_reason"], told["stop_sequence"]) == ("tool_use", None)


def test_half_a_surrogate_pair_in_a_call_is_replaced(calling_server: Server) -> None:
    """Anthropic's client reads the input of a call as UTF-8, and would raise."""
    (made,) = message(calling_server, tools=[TOOL], **written(calling("x\\ud83d")))["content"]
    assert made["input"] == {"unit": "x\ufffd"}


def test_blocks_keep_the_order_of_the_answer(calling_server: Server) -> None:
    told = message(calling_server, tools=[TOOL], **written(f"One.\n{calling('C')}\nTwo.\n{calling('F')}\nThree."))
    assert [each["type"] for each in told["content"]] == ["text", "tool_use", "text", "tool_use", "text"]
    assert [each["text"] for each in told["content"] if "text" in each] == ["One.", "Two.", "Three."]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any", "disable_parallel_tool_use": True}, {"weather", "clock"}),
        ({"type": "tool", "name": "clock"}, {"clock"}),
    ],
    ids=["any", "tool"],
)
def test_a_required_call_is_made_with_drafts_and_without(calling_server: Server, choice: Any, names: set[str]) -> None:
    pytest.importorskip("llguidance")
    tools = [TOOL, {**TOOL, "name": "clock", "type": "custom"}]
    asked = {"tools": tools, "tool_choice": choice, "max_tokens": 400, "temperature": 0.8, "seed": 4}
    told = [message(calling_server, **asked, num_speculative_tokens=k) for k in (0, 4)]
    for each in told:
        (block,) = each["content"]
        assert each["stop_reason"] == "tool_use"
        assert block["name"] in names
        assert block["input"]["unit"] in ("C", "F")
    assert without_ids(told[0]["content"]) == without_ids(told[1]["content"])


def test_a_required_call_that_max_tokens_truncates_is_omitted(calling_server: Server) -> None:
    pytest.importorskip("llguidance")
    told = message(calling_server, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=5)
    assert (told["content"], told["stop_reason"]) == ([], "max_tokens")


def test_tool_choice_none_hides_the_tools(calling_server: Server) -> None:
    told = message(calling_server, tools=[TOOL], tool_choice={"type": "none"}, **written(calling("C")))
    assert told["content"] == [{"type": "text", "text": calling("C")}]


def test_one_call_at_a_time_on_request(calling_server: Server) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    told = message(calling_server, tools=[TOOL], tool_choice=choice, **written(calling("C") + calling("F")))
    assert [each["input"] for each in told["content"]] == [{"unit": "C"}]


def test_a_tool_loop(calling_server: Server, calling_engine: Engine) -> None:
    """Question, call, result and answer: the model is shown what a chat with the same messages shows it."""
    asked = ask(calling_server, tools=[TOOL], **written(f"I look.\n{calling('C')}"))[1]
    (_, made) = asked["content"]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": made["id"],
            "content": [{"type": "text", "text": "7 C"}],
            "is_error": False,
        },
        {"type": "text", "text": "And now?"},
    ]
    # Clients send back the fields that this answer does not have, too.
    absent = [{"citations": None}, {"caller": None, "toolset_name": None}]
    spoken = [{**block, **fields} for block, fields in zip(asked["content"], absent, strict=True)]
    turns = [*USER, {"role": "assistant", "content": spoken}, {"role": "user", "content": results}]
    told = message(calling_server, tools=[TOOL], messages=turns)
    chat: Any = [
        *USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "weather"}}]},
        {"role": "tool", "content": "7 C"},
        {"role": "user", "content": "And now?"},
    ]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    expected = calling_engine.chat(chat, SamplingParams(max_tokens=24), tools=tools)
    assert told["content"][0]["text"].strip() == expected.text.strip()


# ------------------------------------------------------------------------------------------------------ formats


def test_an_output_format_is_followed(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "high"}
    told = message(server, output_config=config, max_tokens=60)
    assert json.loads(told["content"][0]["text"])["n"] <= 9


# ------------------------------------------------------------------------------------------------- token counts


@pytest.mark.parametrize(
    ("content", "said"),
    [([{"type": "text", "text": "I look."}, USE], "I look."), ([{"type": "thinking", "thinking": "a"}], ""), ([], "")],
    ids=["call", "thought", "none"],
)
def test_tokens_are_counted_whether_or_not_there_is_something_to_answer(
    calling_server: Server, calling_engine: Engine, content: list[dict[str, Any]], said: str
) -> None:
    body = {"messages": [*USER, {"role": "assistant", "content": content}]}
    status, _, told = call(calling_server, "POST", "/v1/messages/count_tokens", body)
    assert status == 200, told
    chat: Any = [*USER, {"role": "assistant", "content": said}]
    expected = calling_engine.chat_prompt(chat, add_generation_prompt=False)[1]
    assert json.loads(told) == {"input_tokens": len(expected)}


def test_tokens_are_counted_as_a_message_counts_them(calling_server: Server) -> None:
    body = {"model": MODEL, "messages": USER, "system": "Be brief.", "tools": [TOOL], "thinking": {"type": "adaptive"}}
    status, _, content = call(calling_server, "POST", "/v1/messages/count_tokens?beta=true", body)
    assert status == 200, content
    whole = comparable(ask(calling_server, system="Be brief.", tools=[TOOL])[1])
    assert json.loads(content) == {"input_tokens": whole["usage"]["input_tokens"]}


# ----------------------------------------------------------------------------------------------- keys and headers


@pytest.fixture(scope="module")
def locked_server(served_engine: Engine) -> Iterator[Server]:
    server = Server(served_engine, ServerSettings(MODEL, api_keys=("secret",), limits=Limits(seconds=0.5)), port=0)
    server.start()
    yield server
    server.stop(immediately=True)
    assert server.wait(10)


def test_the_key_may_come_in_either_header(locked_server: Server) -> None:
    for headers in (
        {"x-api-key": "secret"},
        {"Authorization": "Bearer secret"},
        {"x-api-key": "no", "Authorization": "Bearer secret"},
    ):
        assert call(locked_server, "POST", "/v1/messages", {}, headers)[0] == 400, "the body is refused, not the key"
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"Authorization": "Basic secret"}):
        status, _, content = call(locked_server, "POST", "/v1/messages", MINIMAL, headers)
        told = json.loads(content)
        assert (status, told["type"], told["error"]["type"]) == (401, "error", "authentication_error")


def test_version_and_beta_headers_are_accepted(server: Server) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14,unheard-of"}
    assert call(server, "POST", "/v1/messages?beta=true", MINIMAL, headers)[0] == 200


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"colour": 1}, "unknown field `colour`"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [*USER, {"role": "assistant", "content": []}]}, "messages[1] is from the assistant"),
        (
            {"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "messages[1] is from the assistant",
        ),
        (
            {"messages": [*USER, {"role": "assistant", "content": [USE, {"type": "text", "text": "a"}]}]},
            "no text that the answer could continue",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0] has type 'image'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "supported: text, tool_result"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "required field `text`"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0] must be an object with a type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0] has type 'web_search_20250305'"),
        ({"tools": [{**TOOL, "name": ""}]}, "tools[0] has no name"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading is not supported"),
        ({"tool_choice": {"type": "any"}}, "tools is empty"),
        ({"tool_choice": {"type": "some"}}, "tool_choice has type 'some'"),
        ({"thinking": {"type": "between_tools"}}, "thinking has type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}}, "output_config.format"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "structured_outputs": {"regex": "a"}},
            "cannot be combined",
        ),
        ({"stop_sequences": [""]}, "fix: change stop_sequences"),
        ({"temperature": -1}, "temperature"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0] has type 'clear_tool_uses_20250919'",
        ),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers is not supported"),
        ({"container": "a"}, "container is not supported"),
    ],
)
def test_refusals_name_the_field(server: Server, fields: dict[str, Any], says: str) -> None:
    for streams in (False, True):
        status, told = ask(server, **fields, stream=streams)
        assert status == 400
        assert [*told] == ["type", "error"]
        assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
        assert says in told["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("POST", "batches"), ("GET", "batches/a/results"), ("POST", "other")])
def test_paths_below_messages_that_do_not_exist_have_anthropic_s_errors(server: Server, method: str, path: str) -> None:
    status, _, content = call(server, method, f"/v1/messages/{path}")
    told = json.loads(content)
    assert (status, told["type"], told["error"]["type"]) == (404, "error", "not_found_error")


def test_other_errors_have_anthropic_s_types(server: Server) -> None:
    status, told = ask(server, model="another")
    assert (status, told["error"]["type"]) == (404, "not_found_error")
    status, told = ask(server, messages=[{"role": "user", "content": "a" * (1 << 16)}])
    assert (status, told["error"]["type"]) == (413, "request_too_large")
    status, told = ask(server, messages=[{"role": "user", "content": PROMPT * 600}])
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")
    assert told["error"]["message"].startswith("prompt is too long: "), "agents look for these words"
    status, _, content = call(server, "GET", "/v1/messages")
    assert (status, json.loads(content)["error"]["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error")])
def test_errors_of_a_busy_or_broken_server_have_anthropic_s_types(status: int, kind: str) -> None:
    assert error_body(HttpRefusal(status, "why")) == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_stream_that_fails_ends_with_the_error(locked_server: Server, served_engine: Engine) -> None:
    headers = {"x-api-key": "secret"}
    with all_slots_taken(served_engine):
        _, _, content = call(locked_server, "POST", "/v1/messages", {**MINIMAL, "stream": True}, headers)
    last = events(content)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "timeout_error")
    assert "--request-timeout" in last["error"]["message"]
