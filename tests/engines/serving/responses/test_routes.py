"""OpenAI's Responses API, by its own client and over HTTP: answers, streams, items, tools, formats and storage."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving import answering
from peagle.engines.serving.responses.rendering import ResponseAnswer
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from tests.engines.serving.calls import all_slots_taken, call, error_of, events
from tests.fixtures.servers import MODEL

PROMPT = "def count_vowels(text):\n"
MINIMAL: dict[str, Any] = {"model": MODEL, "max_output_tokens": 24, "input": PROMPT, "temperature": 0}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]},
}
USER: dict[str, Any] = {"role": "user", "content": PROMPT}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
# The fields of events that locate a text.
PLACE = ("item_id", "output_index", "content_index")


def ask(server: Server, **fields: Any) -> tuple[int, Any]:
    """Status and content of ``POST /v1/responses``."""
    status, _, content = call(server, "POST", "/v1/responses", {**MINIMAL, **fields})
    return status, json.loads(content)


def answer(server: Server, **fields: Any) -> dict[str, Any]:
    """The response, which is the same whole and streamed."""
    status, whole = ask(server, **fields)
    assert status == 200, whole
    assert comparable(streamed(server, **fields)) == comparable(whole)
    found: dict[str, Any] = whole
    return found


def streamed(server: Server, **fields: Any) -> dict[str, Any]:
    """The response at the end of a stream, whose events build up the same items."""
    status, headers, content = call(server, "POST", "/v1/responses", {**MINIMAL, **fields, "stream": True})
    assert status == 200, content
    assert headers["content-type"].startswith("text/event-stream")
    told = events(content)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    created, progress, *middle, last = told
    assert (created["type"], progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["id"] == created["response"]["id"]
    items = list[dict[str, Any]]()
    while middle:
        end = next(at for at, each in enumerate(middle) if each["type"] == "response.output_item.done")
        items.append(item_of(middle[: end + 1], len(items)))
        middle = middle[end + 1 :]
    assert items == last["response"]["output"]
    found: dict[str, Any] = last["response"]
    return found


def item_of(told: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """Return the item that its events build up, each of which says where it belongs."""
    added, *middle, done = told
    item: dict[str, Any] = done["item"]
    assert added["type"] == "response.output_item.added"
    assert (added["output_index"], done["output_index"]) == (index, index)
    if item["type"] == "function_call":
        assert added["item"] == {**item, "status": "in_progress", "arguments": ""}
        kinds, text = ["response.function_call_arguments"], item["arguments"]
        place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    else:
        (part,) = item["content"]
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        assert added["item"] == {**item, "status": "in_progress", "content": []}
        opened, *middle, closed = middle
        assert opened == {**opened, **place, "type": "response.content_part.added", "part": {**part, "text": ""}}
        assert closed == {**closed, **place, "type": "response.content_part.done", "part": part}
        kinds, text = [f"response.{part['type']}"], part["text"]
    *deltas, last = middle
    assert all(each == {**each, **place, "type": f"{kinds[0]}.delta"} for each in deltas)
    assert "".join(each["delta"] for each in deltas) == text
    assert last == {**last, **place, "type": f"{kinds[0]}.done"}
    assert last.get("text", last.get("arguments")) == text
    return item


def comparable(told: dict[str, Any]) -> dict[str, Any]:
    """A response without ids and times, and the same whether the prompt was cached."""
    usage = {
        name: value for name, value in told["usage"].items() if name not in ("speculation", "input_tokens_details")
    }
    output = [{name: value for name, value in each.items() if name not in ("id", "call_id")} for each in told["output"]]
    return {**told, "id": "", "created_at": 0, "usage": usage, "output": output}


def text_of(told: dict[str, Any]) -> str:
    (item,) = told["output"]
    text: str = item["content"][0]["text"]
    return text


def written(text: str) -> dict[str, Any]:
    """The fields with which the model writes this text."""
    pytest.importorskip("llguidance")
    return {"structured_outputs": {"grammar": f"start: {json.dumps(text)}"}, "max_output_tokens": 200}


def calling(unit: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {{"unit": "{unit}"}}}}\n</tool_call>'


# ------------------------------------------------------------------------------------------------------ answers


def test_an_answer_is_the_engine_s_own_text(server: Server, served_engine: Engine) -> None:
    output = served_engine.chat([{"role": "user", "content": PROMPT}], SamplingParams(max_tokens=24))
    told = answer(server)
    assert (told["object"], told["status"], told["model"]) == ("response", "incomplete", MODEL)
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}
    assert text_of(told) == output.text
    assert told["output"][0]["status"] == "incomplete"
    assert told["usage"]["input_tokens"] == len(output.prompt_token_ids)
    assert told["usage"]["output_tokens"] == len(output.token_ids)
    assert told["usage"]["total_tokens"] == told["usage"]["input_tokens"] + told["usage"]["output_tokens"]


def test_the_official_client_reads_answers_whole_and_streamed(client: OpenAI, served_engine: Engine) -> None:
    output = served_engine.chat([{"role": "user", "content": PROMPT}], SamplingParams(max_tokens=24))
    whole = client.responses.create(**MINIMAL)
    assert whole.output_text == output.text
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == 0
    with client.responses.stream(**MINIMAL) as stream:
        deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
    assert "".join(deltas) == output.text
    assert len(deltas) > 4


def test_the_official_client_parses_answers_into_its_types(client: OpenAI) -> None:
    pytest.importorskip("llguidance")

    class Counted(BaseModel):
        n: int

    told = client.responses.parse(
        model=MODEL, input=PROMPT, text_format=Counted, max_output_tokens=60, extra_body={"seed": 3}
    )
    assert isinstance(told.output_parsed, Counted)


def test_a_seed_gives_the_same_answer_with_drafts_and_without(server: Server) -> None:
    asked = {"temperature": 0.9, "seed": 11, "top_p": 0.95, "top_k": 50, "max_output_tokens": 32}
    told = [
        text_of(answer(server, **asked, **more))
        for more in ({}, {"num_speculative_tokens": 0}, {"num_speculative_tokens": 1}, {"draft": "ngram"})
    ]
    assert told == told[:1] * 4
    assert text_of(answer(server, **{**asked, "seed": 12})) != told[0]


def test_an_answer_that_ends_by_itself_is_complete(calling_server: Server) -> None:
    told = answer(calling_server, **written("Yes."))
    assert (told["status"], told["incomplete_details"], text_of(told)) == ("completed", None, "Yes.")


def test_the_response_repeats_the_request(calling_server: Server) -> None:
    fields = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "top_p": 0.5,
        "store": False,
    }
    told = answer(calling_server, **fields)
    assert {name: told[name] for name in fields} == fields


# -------------------------------------------------------------------------------------------------------- items


def test_instructions_and_developer_messages_are_the_system_s(server: Server, served_engine: Engine) -> None:
    conversation: Any = [{"role": "system", "content": "Be brief.\nBe kind."}, {"role": "user", "content": PROMPT}]
    text = served_engine.chat(conversation, SamplingParams(max_tokens=24)).text
    user: Any = {"role": "user", "content": [{"type": "input_text", "text": PROMPT}]}
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}
    assert text_of(answer(server, instructions="Be brief.", input=[developer, user])) == text
    assert text_of(answer(server, input=[{"role": "system", "content": "Be brief."}, developer, user])) == text


def test_output_items_are_input_items(calling_server: Server) -> None:
    """As clients do that keep the conversation themselves, with fields that say nothing to a model."""
    first = answer(calling_server, tools=[TOOL], store=False, **written(f"I look.\n{calling('C')}"))
    made = first["output"][-1]
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "7 C"}
    items = [{"role": "user", "content": PROMPT}, *first["output"], result, {"role": "user", "content": "And now?"}]
    chat = {
        "model": MODEL,
        "max_tokens": 24,
        "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "weather"}}],
        "messages": [
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "weather"}}]},
            {"role": "tool", "content": "7 C"},
            {"role": "user", "content": "And now?"},
        ],
    }
    _, _, content = call(calling_server, "POST", "/v1/chat/completions", chat)
    expected = json.loads(content)["choices"][0]["message"]["content"]
    assert text_of(answer(calling_server, tools=[TOOL], input=items)).strip() == expected.strip()


# -------------------------------------------------------------------------------------------------------- tools


def test_images_and_files_in_results_are_omitted(calling_server: Server) -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "input_file", "file_data": "AA=="},
    ]
    texts = ["a", "[image omitted: this model reads only text]", "[file omitted: this model reads only text]"]
    told = [
        answer(calling_server, input=[USER, CALL, {"type": "function_call_output", "call_id": "a", "output": output}])
        for output in (parts, "\n".join(texts))
    ]
    assert comparable(told[0]) == comparable(told[1])
    image = [USER, CALL, {"type": "function_call_output", "call_id": "a", "output": [{"type": "output_audio"}]}]
    assert ask(calling_server, input=image)[1]["error"]["param"] == "input[2].output[0]"


def test_fields_of_agents_in_items_are_ignored(calling_server: Server) -> None:
    own: dict[str, Any] = {"internal_chat_message_metadata_passthrough": {"turn_id": "a"}}
    result = {"type": "function_call_output", "call_id": "a", "output": "b"}
    plain = [USER, CALL, result]
    marked = [{**USER, **own}, {**CALL, **own}, {**result, **own, "name": "weather"}]
    assert comparable(answer(calling_server, input=marked)) == comparable(answer(calling_server, input=plain))


def test_a_call_is_an_item_of_its_own(calling_server: Server) -> None:
    told = answer(calling_server, tools=[TOOL], **written(f"I look.\n{calling('C')}\n{calling('F')}"))
    text, *calls = told["output"]
    assert text["content"] == [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]
    assert [(each["type"], each["name"], json.loads(each["arguments"])) for each in calls] == [
        ("function_call", "weather", {"unit": "C"}), ("function_call", "weather", {"unit": "F"}),
    ]  # fmt: skip
    assert len({each["call_id"] for each in calls}) == 2
    assert told["status"] == "completed"


def test_a_call_of_a_namespace_s_function_names_both(calling_server: Server) -> None:
    """In the answer, whole and streamed, and in the conversation that goes on, which the server or the client keeps."""
    tools = [{**TOOL, "name": "clock"}, TOOL, {"type": "namespace", "name": "far", "description": "", "tools": [TOOL]}]
    text = calling("C").replace("weather", "far__weather")
    told = answer(calling_server, tools=tools, **written(f"{text}\n{calling('F')}"))
    far, near = told["output"]
    assert (far["namespace"], far["name"], far["arguments"]) == ("far", "weather", '{"unit": "C"}')
    assert near["name"] == "weather"
    assert "namespace" not in near
    assert told["tools"] == tools
    result = {"type": "function_call_output", "call_id": far["call_id"], "output": "7 C"}
    continued = answer(calling_server, tools=tools, previous_response_id=told["id"], input=[result])
    sent = answer(calling_server, tools=tools, input=[USER, far, near, result])
    flat = answer(
        calling_server,
        tools=tools,
        input=[USER, {**CALL, **far, "name": "far__weather", "namespace": None}, near, result],
    )
    assert text_of(continued) == text_of(sent) == text_of(flat)
    assert continued["usage"]["input_tokens"] == sent["usage"]["input_tokens"] == flat["usage"]["input_tokens"]


def test_calls_of_custom_tools_are_read_kept_and_listed(calling_server: Server) -> None:
    made = {"type": "custom_tool_call", "call_id": "a", "name": "weather", "input": "Rome"}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": "7 C"}
    told = answer(calling_server, input=[USER, made, result])
    plain = [{**CALL, "arguments": '{"input": "Rome"}'}, {**result, "type": "function_call_output"}]
    assert comparable(told) == comparable(answer(calling_server, input=[USER, *plain]))
    _, _, content = call(calling_server, "GET", f"/v1/responses/{told['id']}/input_items?order=asc")
    listed = json.loads(content)["data"][1:]
    assert [each["id"].partition("_")[0] for each in listed] == ["ctc", "ctco"]
    references = [{"type": "item_reference", "id": each["id"]} for each in listed]
    assert comparable(answer(calling_server, input=[USER, *references])) == comparable(told)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"weather", "clock"}), ({"type": "function", "name": "clock"}, {"clock"})],
    ids=["required", "one"],
)
def test_a_required_call_is_made_with_drafts_and_without(calling_server: Server, choice: Any, names: set[str]) -> None:
    pytest.importorskip("llguidance")
    asked = {"tools": [TOOL, {**TOOL, "name": "clock"}], "tool_choice": choice, "parallel_tool_calls": False}
    asked |= {"max_output_tokens": 400, "temperature": 0.8, "seed": 4}
    told = [answer(calling_server, **asked, num_speculative_tokens=k) for k in (0, 4)]
    for each in told:
        (item,) = each["output"]
        assert item["name"] in names
        assert json.loads(item["arguments"])["unit"] in ("C", "F")
    assert comparable(told[0])["output"] == comparable(told[1])["output"]


def test_a_required_call_that_the_limit_truncates_is_omitted(calling_server: Server) -> None:
    pytest.importorskip("llguidance")
    asked = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 16}
    told = answer(calling_server, **asked)
    assert (told["output"], told["status"]) == ([], "incomplete")
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_tool_loop_by_the_official_client(calling_server: Server) -> None:
    with OpenAI(base_url=f"{calling_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        asked: Any = {"model": MODEL, "tools": [TOOL], "temperature": 0, "max_output_tokens": 60}
        first = client.responses.create(
            **asked, input=PROMPT, extra_body={"structured_outputs": written(calling("C"))["structured_outputs"]}
        )
        (made,) = first.output
        assert made.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "7 C"}
        second = client.responses.create(**asked, input=[result], previous_response_id=first.id)
        items: Any = [{"role": "user", "content": PROMPT}, made.model_dump(), result]
        assert second.output_text == client.responses.create(**asked, input=items).output_text
        assert second.previous_response_id == first.id


# ------------------------------------------------------------------------------------------------------ formats


def test_a_text_format_is_followed(server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    wanted: dict[str, Any] = {"type": "json_schema", "name": "counted", "schema": schema, "strict": True}
    told = answer(server, text={"format": wanted}, max_output_tokens=60)
    assert json.loads(text_of(told))["n"] <= 9
    assert told["text"] == {"format": wanted}
    told = answer(server, text={"format": {"type": "json_object"}}, max_output_tokens=200, seed=1, temperature=1)
    assert text_of(told).lstrip().startswith("{")


# ------------------------------------------------------------------------------------------------------ storage


def test_a_stored_response_is_retrieved_continued_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(**MINIMAL)
    again = client.responses.retrieve(first.id)
    assert isinstance(again, Response)
    assert again.to_dict() == first.to_dict()
    second = client.responses.create(**{**MINIMAL, "input": "    return"}, previous_response_id=first.id)
    items: Any = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "    return"},
    ]
    assert second.output_text == client.responses.create(**{**MINIMAL, "input": items}).output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first.id)
    third: Any = {**MINIMAL, "input": "    return"}
    assert client.responses.create(**third, previous_response_id=second.id).output, "a response keeps its own past"
    with pytest.raises(openai.BadRequestError, match="not found") as refused:
        client.responses.create(**third, previous_response_id=first.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


def test_instructions_hold_for_one_response(server: Server) -> None:
    first = ask(server, instructions="Be brief.")[1]
    told = ask(server, input="    return", previous_response_id=first["id"])[1]
    items = [{"role": "user", "content": PROMPT}, *first["output"], {"role": "user", "content": "    return"}]
    assert text_of(told) == text_of(ask(server, input=items)[1])


def test_a_streamed_response_is_stored_too(server: Server) -> None:
    told = streamed(server)
    status, _, content = call(server, "GET", f"/v1/responses/{told['id']}")
    assert (status, json.loads(content)) == (200, told)


def test_a_response_is_continued_by_something_to_answer(server: Server) -> None:
    status, content = ask(server, previous_response_id=ask(server)[1]["id"], input=[])
    assert (status, content["error"]["param"]) == (400, "input")
    assert "input is empty" in content["error"]["message"]


def test_an_answer_can_follow_a_message_of_the_assistant(server: Server, served_engine: Engine) -> None:
    told = answer(server, input=[USER, {"role": "assistant", "content": "    count = "}])
    chat: Any = [USER, {"role": "assistant", "content": "    count = "}]
    expected = served_engine.chat(chat, SamplingParams(max_tokens=24), add_generation_prompt=True)
    assert text_of(told).strip() == expected.text.strip()


def test_an_input_refers_to_items_of_stored_responses(calling_server: Server) -> None:
    """Vercel's AI SDK sends references to what the server stores, and so do agents that are built with it."""
    asked = {"tools": [TOOL], **written(f"I look.\n{calling('C')}")}
    for first in (ask(calling_server, **asked)[1], streamed(calling_server, **asked)):
        result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "7 C"}
        _, _, content = call(calling_server, "GET", f"/v1/responses/{first['id']}/input_items")
        ids = [each["id"] for each in (*json.loads(content)["data"], *first["output"])]
        whole = [USER, *first["output"], result]
        told = answer(
            calling_server, tools=[TOOL], input=[*({"type": "item_reference", "id": each} for each in ids), result]
        )
        assert comparable(told) == comparable(answer(calling_server, tools=[TOOL], input=whole))
        again = answer(calling_server, input=[*({"id": each} for each in ids), result, {"id": told["output"][0]["id"]}])
        whole.append(told["output"][0])
        assert comparable(again) == comparable(answer(calling_server, input=whole))


def test_a_reference_to_an_item_that_is_not_stored_is_refused(calling_server: Server) -> None:
    kept, lost = ask(calling_server)[1]["output"][0]["id"], ask(calling_server, store=False)[1]["output"][0]["id"]
    for identity in (lost, f"{kept[:-1]}7", f"fc{kept[3:]}", "msg_1", ""):
        status, content = ask(calling_server, input=[USER, {"type": "item_reference", "id": identity}])
        assert (status, content["error"]["code"]) == (404, "item_not_found"), identity
        assert content["error"]["param"] == "input[1]"


def test_a_reference_by_an_id_that_the_client_chose_is_refused(calling_server: Server) -> None:
    """Although the item is listed with it."""
    _, content = ask(calling_server, input=[{**USER, "id": "msg_mine"}])
    _, _, listed = call(calling_server, "GET", f"/v1/responses/{content['id']}/input_items")
    assert [each["id"] for each in json.loads(listed)["data"]] == ["msg_mine"]
    status, content = ask(calling_server, input=[USER, {"type": "item_reference", "id": "msg_mine"}])
    assert status == 404
    assert "by the ids that this server gave them" in content["error"]["message"]


def test_items_to_which_an_input_refers_are_bounded(calling_server: Server) -> None:
    long = ask(calling_server, input="word " * 300, max_output_tokens=1)[1]
    reference = {"type": "item_reference", "id": f"msg_{long['id'].removeprefix('resp_')}0000"}
    status, content = ask(calling_server, input=[reference] * 60)
    assert (status, content["error"]["param"]) == (413, "input")
    assert "--max-body-bytes" in content["error"]["message"]


def test_input_tokens_are_counted_as_a_response_counts_them(client: OpenAI) -> None:
    first = client.responses.create(**MINIMAL, instructions="Be brief.")
    assert first.usage is not None
    count = client.responses.input_tokens.count
    assert count(model=MODEL, input=PROMPT, instructions="Be brief.").input_tokens == first.usage.input_tokens
    assert count(input="a", previous_response_id=first.id).input_tokens > first.usage.input_tokens
    ended: Any = [USER, {"role": "assistant", "content": "a"}]
    assert count(input=ended).input_tokens > count(input=PROMPT).input_tokens


def test_a_conversation_is_not_compacted(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not compact"):
        client.responses.compact(model=MODEL, input=PROMPT)


def test_store_false_keeps_nothing(server: Server) -> None:
    told = ask(server, store=False)[1]
    assert call(server, "GET", f"/v1/responses/{told['id']}")[0] == 404
    assert ask(server, previous_response_id=told["id"])[0] == 400


def test_the_items_that_a_response_answers_are_listed(server: Server, client: OpenAI) -> None:
    call_item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "7"}
    first = ask(server, input=[{"role": "user", "content": PROMPT}, call_item, output])[1]
    second = ask(server, input="And now?", previous_response_id=first["id"])[1]
    listed = list(client.responses.input_items.list(second["id"], order="asc", limit=2))
    assert [each.type for each in listed] == [
        "message", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert [each.id for each in listed if each.id] == list(dict.fromkeys(each.id for each in listed))
    found: Any = [listed[0], listed[3], listed[4]]
    assert [(each.role, each.content[0].type, each.content[0].text) for each in found] == [
        ("user", "input_text", PROMPT),
        ("assistant", "output_text", text_of(first)),
        ("user", "input_text", "And now?"),
    ]
    page = client.responses.input_items.list(second["id"], limit=2)
    assert page.has_more
    assert [each.id for each in page.data] == [listed[4].id, listed[3].id], "the latest are first"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=a",
        pytest.param("limit=" + "9" * 5000, id="limit of 5000 digits"),
        "order=up",
        "after=msg_gone",
    ],
)
def test_an_invalid_page_of_items_is_refused_by_name(server: Server, query: str) -> None:
    identity = ask(server)[1]["id"]
    status, _, content = call(server, "GET", f"/v1/responses/{identity}/input_items?{query}")
    assert (status, error_of(content)["param"]) == (400, query.split("=")[0])


def test_no_response_can_be_cancelled(server: Server, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="close the connection"):
        client.responses.cancel(ask(server)[1]["id"])
    for method, path in (("POST", "cancel"), ("GET", "input_items")):
        status, _, content = call(server, method, f"/v1/responses/resp_gone/{path}")
        assert (status, error_of(content)["code"]) == (404, "response_not_found")


def test_the_store_is_bounded(served_engine: Engine) -> None:
    limits = Limits(stored_answers=2, stored_bytes=20_000)
    server = Server(served_engine, ServerSettings(MODEL, limits=limits), port=0)
    server.start()

    def kept(told: dict[str, Any]) -> bool:
        return call(server, "GET", f"/v1/responses/{told['id']}")[0] == 200

    try:
        asked = {"max_output_tokens": 1}
        told = [ask(server, **asked)[1] for _ in range(3)]
        assert [kept(each) for each in told] == [False, True, True]
        large = ask(server, **asked, metadata={"a": "b" * 18_000})[1]
        assert [kept(each) for each in (*told, large)] == [False, False, False, True]
        too_large = {**asked, "metadata": {"a": "b" * 20_000}}
        lost = [ask(server, **too_large)[1], streamed(server, **too_large)]
        assert [(each["store"], kept(each)) for each in (*lost, large)] == [(False, False)] * 2 + [(True, True)]
        status, content = ask(server, previous_response_id=lost[0]["id"])
        assert (status, "--response-store-bytes" in content["error"]["message"]) == (400, True)
    finally:
        server.stop(immediately=True)
    assert server.wait(10)


# ----------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"colour": 1}, "colour", "unknown field"),
        ({"input": None}, "input", "input"),
        ({"input": []}, "input", "input is empty"),
        ({"instructions": "a", "input": [USER, CALL]}, "input[1]", "input[1] is a call or reasoning"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "role"),
        ({"input": [{"type": "item_reference", "id": 1}]}, "input[0]", "type 'item_reference'"),
        ({"input": [{"type": "tool_search_call"}]}, "input[0]", "supported: message, function_call"),
        ({"input": ["a"]}, "input[0]", "must be an object"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input[0].content[0]",
            "'input_image'",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]", "'input_file'"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input[0].call_id", "required field"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tools[0]",
            "type 'web_search', which this server does not support; supported: function, namespace",
        ),
        ({"tools": [{"type": "a"}]}, "tools[0]", "supported: function, namespace"),
        ({"tool_choice": {"type": "custom", "name": "apply_patch"}}, "tool_choice", "type 'custom'"),
        ({"tools": [{"name": "f"}]}, "tools[0]", "type"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0]", "no name"),
        ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"tool_choice": "some"}, "tool_choice", "tool_choice must be"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice", "'allowed_tools'"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1 or more"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"previous_response_id": "resp_gone"}, "previous_response_id", "not found"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"background": True}, "background", "set it to false"),
        ({"truncation": "auto"}, "truncation", 'set it to "disabled"'),
        ({"prompt": {"id": "a"}}, "prompt", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]", "not supported"),
        ({"include": ["a"]}, "include[0]", "unknown"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort", "one of"),
        ({"reasoning": {"depth": 1}}, "reasoning", "depth"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context", "not supported"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "'xml'"),
        ({"text": {"colour": 1}}, "text", "colour"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "strin"}}}},
            "text.format",
            "text.format.schema",
        ),
        (
            {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
            "text.format",
            "combined",
        ),
    ],
)
def test_refusals_name_the_field(server: Server, fields: dict[str, Any], param: str | None, says: str) -> None:
    for streams in (False, True):
        status, told = ask(server, **fields, stream=streams)
        assert status == 400, told
        assert told["error"]["param"] == param
        assert says in told["error"]["message"]


def test_a_stored_response_is_not_streamed(server: Server) -> None:
    told = ask(server)[1]
    status, _, content = call(server, "GET", f"/v1/responses/{told['id']}?stream=true")
    assert (status, error_of(content)["param"]) == (400, "stream")


def test_a_prompt_that_is_too_long_has_its_code(server: Server) -> None:
    status, told = ask(server, input=PROMPT * 600)
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, "context_length_exceeded", "input")
    status, told = ask(server, max_output_tokens=10**6)
    code, param = "context_length_exceeded", "max_output_tokens"
    assert (status, told["error"]["code"], told["error"]["param"]) == (400, code, param)


@pytest.mark.parametrize("fields", [{"input": PROMPT * 600}, {"max_output_tokens": 10**6}])
def test_a_stream_that_is_too_long_for_the_context_fails_with_an_event(server: Server, fields: dict[str, Any]) -> None:
    status, headers, content = call(server, "POST", "/v1/responses", {**MINIMAL, **fields, "stream": True})
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    created, failed = events(content)
    assert (created["type"], failed["type"]) == ("response.created", "response.failed")
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    assert failed["response"]["id"] == created["response"]["id"]
    assert call(server, "GET", f"/v1/responses/{failed['response']['id']}")[0] == 404


def test_a_stream_says_that_it_goes_on_while_nothing_is_written(
    server: Server, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResponseAnswer, "patience", 1e-4)
    body = {**MINIMAL, "input": PROMPT * 50, "stream": True}
    told = events(call(server, "POST", "/v1/responses", body)[2])
    kinds = [each["type"] for each in told]
    before = kinds[: kinds.index("response.output_item.added")]
    assert before == ["response.created", *["response.in_progress"] * (len(before) - 1)]
    assert len(before) > 2
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    with client.responses.stream(model=MODEL, max_output_tokens=24, input=PROMPT * 50, temperature=0) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.output_text == text_of(told[-1]["response"])


def test_a_stream_says_that_it_goes_on_while_a_call_is_written(
    calling_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens give no event until it is complete."""
    ticks = itertools.count(step=20.0)
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    body = {**MINIMAL, "tools": [TOOL], **written(f"I look.\n{calling('C')}"), "stream": True}
    told = events(call(calling_server, "POST", "/v1/responses", body)[2])
    (begin,) = [at for at, each in enumerate(told) if each.get("item", {}).get("type") == "function_call"][:1]
    said = max(at for at, each in enumerate(told[:begin]) if each["type"] == "response.output_text.delta")
    assert "response.in_progress" in [each["type"] for each in told[said:begin]]


@pytest.fixture
def hurried_server(served_engine: Engine) -> Iterator[Server]:
    server = Server(served_engine, ServerSettings(MODEL, limits=Limits(seconds=0.2)), port=0)
    server.start()
    yield server
    server.stop(immediately=True)
    assert server.wait(10)


def test_a_stream_that_fails_ends_with_the_error(hurried_server: Server, served_engine: Engine) -> None:
    with all_slots_taken(served_engine):
        last = events(call(hurried_server, "POST", "/v1/responses", {**MINIMAL, "stream": True})[2])[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "--request-timeout" in last["response"]["error"]["message"]
    assert call(hurried_server, "GET", f"/v1/responses/{last['response']['id']}")[0] == 404
