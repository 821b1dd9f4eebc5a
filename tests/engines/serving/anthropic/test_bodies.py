"""Message bodies, without a server: each field has the effect that docs/serving.md states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from peagle.engines.answer_styles import DEFAULT
from peagle.engines.serving.anthropic.bodies import IGNORED, NEUTRAL, CountBody, MessagesBody, body_of
from peagle.engines.serving.anthropic.conversations import generation_of
from peagle.engines.serving.generation import Generation
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.documented import rows_of

ROWS = rows_of("Anthropic's Messages API")
MINIMAL: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CLEARING: dict[str, Any] = {"edits": [{"type": "clear_thinking_20251015"}]}


def thoughtful(*kept: str) -> list[Any]:
    """Messages of three turns with reasoning, the second with a call, in which only the ``kept`` (or all) are left."""

    def answer(thought: str, *blocks: Any) -> dict[str, Any]:
        thinking = [{"type": "thinking", "thinking": thought, "signature": ""}]
        text = {"type": "text", "text": "A."}
        return {"role": "assistant", "content": [*thinking * (not kept or thought in kept), text, *blocks]}

    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "7"}
    reminder = {"type": "text", "text": "Be brief."}
    return [
        {"role": "user", "content": "a"},
        answer("one"),
        {"role": "user", "content": "b"},
        answer("two", call),
        {"role": "user", "content": [result, reminder]},
        answer("three"),
        {"role": "user", "content": [reminder]},
    ]


# For every supported field, a value with an effect, and other fields that it requires.
HONOURED: dict[str, tuple[Any, dict[str, Any]]] = {
    name: (value, beside[0] if beside else {})
    for name, value, *beside in [
        ("messages", [{"role": "user", "content": "b"}]), ("system", "b"), ("max_tokens", 4), ("stream", True),
        ("temperature", 0.5), ("top_p", 0.5), ("top_k", 5), ("stop_sequences", ["a"]), ("tools", [TOOL]),
        ("tool_choice", {"type": "any"}, {"tools": [TOOL]}), ("seed", 3), ("min_p", 0.5), ("draft", "none"),
        ("num_speculative_tokens", 1), ("acceptance_tolerance", 0.5), ("structured_outputs", {"regex": "a"}),
        ("output_config", {"format": {"type": "json_schema", "schema": {}}}), ("chat_template_kwargs", {"a": 1}),
        ("priority", -2), ("cache_salt", "a"),
    ]
}  # fmt: skip
HONOURED["context_management"] = (CLEARING, {"messages": thoughtful()})
OF_THE_ROUTE = {"model", "thinking"}  # these do not affect generation; the tests of the routes cover them


def asked(**fields: Any) -> Generation:
    body = body_of(msgspec.json.encode({**MINIMAL, **fields}), MessagesBody)
    return generation_of(body, DEFAULT, ServerSettings("m", scheduling_policy="priority"))


def test_docs_describe_every_field() -> None:
    fields = {*MessagesBody.__struct_fields__, *IGNORED, *NEUTRAL}
    assert sorted(name for names, _ in ROWS for name in names) == sorted(fields)
    assert next(names for names, text in ROWS if text.startswith("ignored")) == sorted(IGNORED)
    assert sorted(name for names, text in ROWS if text.startswith("refused") for name in names) == sorted(NEUTRAL)


@pytest.mark.parametrize("name", sorted({*MessagesBody.__struct_fields__} - OF_THE_ROUTE))
def test_a_field_that_is_honoured_changes_the_generation(name: str) -> None:
    value, beside = HONOURED[name]
    assert asked(**beside, **{name: value}) != asked(**beside)
    if name not in MINIMAL:
        assert asked(**{name: None}) == asked()


@pytest.mark.parametrize("name", IGNORED)
def test_a_field_that_is_ignored_takes_any_value(name: str) -> None:
    for value in (None, "a", 1, {"a": [1]}):
        assert asked(**{name: value}) == asked()


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_without_support_takes_only_values_that_say_nothing(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        assert asked(**{name: value}) == asked()
        body_of(msgspec.json.encode({"messages": MINIMAL["messages"], name: value}), CountBody)
    with pytest.raises(HttpRefusal, match=name) as refused:
        asked(**{name: {"a": 1}})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


def test_tokens_are_not_counted_for_fields_of_an_answer() -> None:
    with pytest.raises(HttpRefusal, match="max_tokens"):
        body_of(msgspec.json.encode(MINIMAL), CountBody)


def test_tools_take_fields_that_say_nothing() -> None:
    said = {"cache_control": {"type": "ephemeral"}, "strict": True, "eager_input_streaming": None, "type": "custom"}
    said |= {"allowed_callers": ["direct"], "defer_loading": False, "input_examples": []}
    assert asked(tools=[{**TOOL, **said}]) == asked(tools=[TOOL])


def test_a_billing_header_is_not_part_of_the_prompt() -> None:
    """It differs in every request, so that no prompt would share its beginning with the one before."""
    told = {"type": "text", "text": "Be brief."}
    header = "x-anthropic-billing-header: cc_version=2.1.170; cc_entrypoint=cli; cch="
    first, second = (asked(system=[{"type": "text", "text": f"{header}{each};"}, told]) for each in ("fa690", "0b1c2"))
    assert first == second == asked(system=[told])
    assert asked(system=[{"type": "text", "text": header}]) == asked()
    quoting = f"Explain {header}"
    assert asked(system=[{"type": "text", "text": quoting}]) == asked(system=quoting) != asked()


@pytest.mark.parametrize("budget", [None, {"type": "tokens", "total": 20000, "remaining": 100}])
def test_a_budget_of_a_task_is_ignored(budget: Any) -> None:
    assert asked(output_config={"effort": "low", "task_budget": budget}) == asked(output_config={"effort": "low"})


def with_result(content: Any) -> Any:
    """The messages of a conversation whose tool has returned this content."""
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    return [*MINIMAL["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
            "[image omitted: this model reads only text]",
        ),
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
            "[document omitted: this model reads only text]",
        ),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "7 C"}}, "7 C"),
        (
            {"type": "search_result", "source": "s.md", "title": "S", "content": [{"type": "text", "text": "7 C"}]},
            "S\ns.md\n7 C",
        ),
        ({"type": "tool_reference", "tool_name": "f", "cache_control": None}, "[tool: f]"),
    ],
    ids=["image", "PDF", "text", "search result", "tool reference"],
)
def test_a_result_of_a_tool_is_text(block: dict[str, Any], text: str) -> None:
    """A refused block would stay in the history, so that every later turn would fail."""
    read = {"type": "text", "text": "Read a.png:"}
    assert asked(messages=with_result([read, block])) == asked(messages=with_result(f"Read a.png:\n{text}"))


@pytest.mark.parametrize(
    "block",
    [{"type": "video"}, {"type": "document"}, {"type": "search_result", "source": "s", "title": "S", "content": [{}]}],
)
def test_an_invalid_result_of_a_tool_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(HttpRefusal, match=r"messages\[2\].content\[0\].content\[0\]|required field"):
        asked(messages=with_result([block]))


def test_instructions_may_be_a_block_within_a_conversation() -> None:
    told = {"type": "mid_conv_system", "content": [{"type": "text", "text": "Be brief."}]}
    apart = [*MINIMAL["messages"], {"role": "system", "content": "Be brief."}, {"role": "user", "content": "b"}]
    user = {"role": "user", "content": [{"type": "text", "text": "a"}, told, {"type": "text", "text": "b"}]}
    system = [MINIMAL["messages"][0], {"role": "system", "content": [told]}, apart[-1]]
    assert asked(messages=[user]) == asked(messages=system) == asked(messages=apart)
    told["content"].append({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}})  # type: ignore[attr-defined]
    with pytest.raises(HttpRefusal, match="has type 'tool_removal'"):
        asked(messages=[user])


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ({}, ["two", "three"]),
        ({"keep": {"type": "thinking_turns", "value": 1}}, ["two", "three"]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, []),
        ({"keep": {"type": "thinking_turns", "value": 99}}, []),
        ({"keep": {"type": "all"}}, []),
        ({"keep": "all"}, []),
    ],
)
def test_reasoning_of_older_turns_is_cleared_on_request(keep: dict[str, Any], kept: list[str]) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", **keep}]}
    assert asked(messages=thoughtful(), context_management=edits) == asked(messages=thoughtful(*kept))
    assert asked(context_management=edits) == asked(context_management={"edits": []}) == asked()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"type": "clear_tool_uses_20250919"}, r"edits\[0\] has type 'clear_tool_uses_20250919'"),
        ({"type": "clear_thinking_20251015", "keep": "some"}, r"edits\[0\].keep must be an object"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}, "value"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}}, "must be 1 or more"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1.5}}, "value"),
        ({"type": "clear_thinking_20251015", "colour": 1}, "colour"),
    ],
)
def test_an_edit_without_support_is_refused(edit: dict[str, Any], says: str) -> None:
    with pytest.raises(HttpRefusal, match=says):
        asked(context_management={"edits": [edit]})
