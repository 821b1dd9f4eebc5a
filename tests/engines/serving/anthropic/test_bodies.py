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
