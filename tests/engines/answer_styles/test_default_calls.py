"""Tools, calls and results as text, for templates without a form for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles.default_calls import END_OF_RESULT, RESULT, in_default_form
from peagle.engines.answer_styles.tagged_calls import CLOSE, OPEN, ToolCallReader
from peagle.engines.text.chat_template import ChatTemplate
from peagle.engines.text.messages import messages_of
from tests.chat_templates import CHATML, GEMMA

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "wetter", "description": "Das Wetter in «Köln»."}}
SYSTEM, HI = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}


def called(*arguments: Any, **more: Any) -> dict[str, Any]:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]
    return {"role": "assistant", **more, "tool_calls": calls}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": text}


def converted(messages: list[Any], tools: list[Any] | None = None, *, takes_system: bool = True) -> list[Any]:
    return in_default_form(messages_of("messages", messages), tools or [], takes_system=takes_system)


def test_tools_are_described_after_the_system_message() -> None:
    first, user = converted([SYSTEM, HI], [TOOL])
    assert user == HI
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\n# Tools\n")
    line = next(each for each in first["content"].splitlines() if each.startswith("{"))
    assert json.loads(line) == TOOL
    assert "«Köln»" in line
    alone, _ = converted([HI], [TOOL])
    assert (alone["role"], f"Be brief.\n\n{alone['content']}") == ("system", first["content"])


def test_a_template_without_system_messages_has_the_tools_in_the_first_question() -> None:
    (only,) = converted([HI], [TOOL], takes_system=False)
    assert only["role"] == "user"
    assert only["content"] == f"{converted([HI], [TOOL])[0]['content']}\n\nHi"


SILENT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + GEMMA


@pytest.mark.parametrize(("source", "takes"), [(CHATML, True), (GEMMA, True), (SILENT, False), (STRICT, False)])
def test_any_template_shows_the_model_its_tools_once(source: str, takes: bool) -> None:
    template = ChatTemplate({"default": source}, {"bos_token": ""})
    assert template.takes_system == takes
    turns = [HI, called({"a": 1}), result("7 C"), {"role": "user", "content": "Und?"}]
    told = template.render(converted(turns, [TOOL], takes_system=takes))
    assert told.count(json.dumps(TOOL, ensure_ascii=False)) == 1


def test_results_and_the_next_user_message_are_merged() -> None:
    turns = [
        HI,
        called({"a": 1}, {}, content="I look."),
        result("7 C"),
        result(""),
        {"role": "user", "content": "Und?"},
    ]
    told = converted(turns)
    assert [each["role"] for each in told] == ["user", "assistant", "user"]
    call = '{"name": "f", "arguments": {"a": 1}}'
    assert told[1]["content"].startswith(f"I look.\n{OPEN}\n{call}\n{CLOSE}\n{OPEN}\n")
    assert "tool_calls" not in told[1]
    assert told[2]["content"] == f"{RESULT}\n7 C\n{END_OF_RESULT}\n{RESULT}\n\n{END_OF_RESULT}\nUnd?"


def test_other_messages_are_unchanged() -> None:
    turns = [SYSTEM, HI, {"role": "assistant", "content": "Hello"}, HI, HI]
    assert converted(turns) == turns
    odd = [HI, {"role": "assistant", "content": "a", "tool_calls": [3, {"function": {"name": []}}]}, HI]
    assert converted(odd) == odd


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(
    arguments=st.lists(st.dictionaries(st.sampled_from("ab"), JSON), min_size=1, max_size=3),
    said=st.sampled_from(["", "So."]),
)
def test_a_call_is_shown_to_the_model_as_it_is_read_from_answers(arguments: list[Any], said: str) -> None:
    (_, message) = in_default_form([HI, called(*arguments, content=said)], [], takes_system=True)
    text, calls = ToolCallReader([]).push(message["content"], is_last=True)
    assert text.strip() == said
    assert [json.loads(each.arguments) for each in calls] == arguments
