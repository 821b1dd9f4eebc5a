"""Tools of responses as the functions that a model is offered, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from openai.types.responses import ToolChoiceTypes, ToolParam

from peagle.engines.answer_styles import DEFAULT
from peagle.engines.serving.generation import Conversation
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.responses.bodies import LEFT_OUT_TOOLS, body_of
from peagle.engines.serving.responses.conversations import conversation_of
from peagle.engines.serving.responses.offered_tools import Member, offered_tools

F: dict[str, Any] = {"type": "function", "name": "f"}
G: dict[str, Any] = {**F, "name": "g"}
SEARCH: dict[str, Any] = {"type": "web_search"}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch"}


def space(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": f"All about {name}.", "tools": tools}


def names(*tools: Any) -> list[str]:
    return [each["function"]["name"] for each in offered_tools(tools).functions]


def conversation(**fields: Any) -> Conversation:
    return conversation_of(body_of(msgspec.json.encode({"input": "a", **fields})), [], DEFAULT)


def literals(hint: Any) -> Iterator[str]:
    """Yield the strings in a type hint."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for each in get_args(hint):
            yield from literals(each)


def test_every_type_of_tool_that_the_official_client_can_send_is_known() -> None:
    """The lists come from the installed client: a new type fails here until it is handled."""
    tools = {name for each in get_args(ToolParam) for name in literals(get_type_hints(each)["type"])}
    choices = {*literals(ToolChoiceTypes.__annotations__["type"])}
    assert {*tools, *choices} == LEFT_OUT_TOOLS | {"function", "namespace"}


@pytest.mark.parametrize("kind", sorted(LEFT_OUT_TOOLS))
@pytest.mark.parametrize("choice", [None, "auto", "none", {"type": "function", "name": "f"}])
def test_a_conversation_is_the_same_without_tools_that_are_left_out(kind: str, choice: Any) -> None:
    tool = {"type": kind, "name": "a", "colour": 1}
    assert conversation(tools=[tool, F, tool], tool_choice=choice) == conversation(tools=[F], tool_choice=choice)
    assert conversation(tools=[tool, space("s", F, tool)], tool_choice=choice) == conversation(
        tools=[F], tool_choice=choice
    )


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [SEARCH], "tool_choice": "required"}, "tools[0]", "type 'web_search'"),
        ({"tools": [space("s", PATCH)], "tool_choice": "required"}, "tools[0].tools[0]", "type 'custom'"),
        ({"tools": [PATCH], "tool_choice": {"type": "function", "name": "f"}}, "tools[0]", "type 'custom'"),
        ({"tools": [SEARCH, F], "tool_choice": SEARCH}, "tool_choice", "type 'web_search'"),
        ({"tools": [PATCH, F], "tool_choice": PATCH}, "tool_choice", "type 'custom'"),
        ({"tools": [F, {"type": "web_surf"}]}, "tools[1]", "type 'web_surf'"),
        ({"tools": [{"type": ["custom"]}]}, "tools[0]", "must be an object with a type"),
        ({"tools": [space("s", {"type": "web_surf"})]}, "tools[0].tools[0]", "supported: function"),
        ({"tools": [space("s", space("t", F))]}, "tools[0].tools[0]", "type 'namespace'"),
        ({"tools": [space("s", {**F, "name": ""})]}, "tools[0].tools[0]", "no name"),
        ({"tools": [space("s", {**F, "colour": 1})]}, "tools[0].tools[0].colour", "unknown field"),
        ({"tools": [space("s", F), F], "tool_choice": {"type": "function", "name": "h"}}, "tool_choice", "'h'"),
    ],
)
def test_tools_that_cannot_be_called_or_are_unknown_are_refused(fields: Any, param: str, says: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        conversation(**fields)
    assert refused.value.param == param
    assert says in refused.value.message


def test_a_required_call_is_of_a_function_that_is_left() -> None:
    found = conversation(tools=[SEARCH, space("s", F)], tool_choice="required")
    assert [each["function"]["name"] for each in found.must_call] == ["f"]


def test_functions_of_namespaces_are_offered_by_names_of_their_own() -> None:
    assert names(G, space("s", F)) == ["g", "f"]
    assert names(F, space("s", F, G), space("t", F)) == ["f", "s__f", "g", "t__f"]
    parameters = {"type": "object", "properties": {}}
    (tool,) = offered_tools([space("s", {**F, "description": "d", "parameters": parameters})]).functions
    assert tool == {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}


def test_functions_of_namespaces_take_fields_that_say_nothing() -> None:
    said = {"strict": True, "allowed_callers": ["direct"], "defer_loading": True, "output_schema": {"type": "string"}}
    assert offered_tools([space("s", {**F, **said})]) == offered_tools([space("s", F)])
    with pytest.raises(HttpRefusal, match="allowed_callers is not supported"):
        offered_tools([space("s", {**F, "allowed_callers": ["programmatic"]})])


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ([F, {**F, "name": "s__f"}, space("s", F)], "tools[2].tools[0]"),
        ([space("s", F, F)], "tools[0].tools[1]"),
    ],
    ids=["another function", "twice in a namespace"],
)
def test_a_function_without_a_name_of_its_own_is_refused(tools: list[Any], path: str) -> None:
    with pytest.raises(HttpRefusal, match=r"there is 's__f' too; fix: rename one") as refused:
        offered_tools(tools)
    assert refused.value.param == path


def test_the_name_that_a_model_reads_leads_to_the_function_and_back() -> None:
    offered = offered_tools([F, space("s", F, G), space("t", F)])
    for name, member in {"f": (None, "f"), "s__f": ("s", "f"), "g": ("s", "g"), "t__f": ("t", "f")}.items():
        assert offered.member(name) == Member(*member)
        assert offered.name_of(Member(*member)) == name
    assert offered.name_of(Member("gone", "h")) == "h"


def test_calls_in_a_conversation_have_the_names_that_are_offered() -> None:
    made = {"type": "function_call", "call_id": "a", "arguments": "{}", "caller": {"type": "direct"}, "name": "f"}
    result = {"type": "function_call_output", "call_id": "a", "output": "b", "caller": {"type": "direct"}}
    tools = [F, space("s", F)]
    for place, name in (({"namespace": "s"}, "s__f"), ({}, "f")):
        plain = {"type": "function_call", "call_id": "a", "arguments": "{}", "name": name}
        output = {"type": "function_call_output", "call_id": "a", "output": "b"}
        assert (
            conversation(tools=tools, input=[{**made, **place}, result]).messages
            == conversation(tools=tools, input=[plain, output]).messages
        )


def test_calls_of_custom_tools_are_calls_with_one_argument() -> None:
    own = {"call_id": "a", "internal_chat_message_metadata_passthrough": {"turn_id": "b"}}
    made = {"type": "custom_tool_call", "name": "apply_patch", "input": 'a "patch"', "status": "completed", **own}
    parts = [{"type": "input_text", "text": "Done."}]
    result = {"type": "custom_tool_call_output", "output": parts, "name": "apply_patch", **own}
    call, answer = conversation(tools=[PATCH], input=[made, result]).messages
    assert call["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": {"input": 'a "patch"'}}
    assert (answer["role"], answer["name"], answer["content"][0]["text"]) == ("tool", "apply_patch", "Done.")
