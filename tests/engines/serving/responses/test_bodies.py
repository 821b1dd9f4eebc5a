"""Bodies of responses, without a server: each field has the effect that docs/serving.md states."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from openai.types.responses import ResponseIncludable
from openai.types.responses import response_create_params as theirs

from peagle.engines.answer_styles import DEFAULT
from peagle.engines.serving.generation import Generation
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.responses.bodies import (
    IGNORED,
    INCLUDES,
    NEUTRAL,
    UNSUPPORTED_INCLUDES,
    ResponsesBody,
    body_of,
)
from peagle.engines.serving.responses.conversations import generation_of
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.documented import rows_of

ROWS = rows_of("OpenAI's Responses API")
MINIMAL: dict[str, Any] = {"input": "a"}
TOOL = {"type": "function", "name": "f"}
# For every supported field, a value with an effect, and other fields that it requires.
HONOURED: dict[str, tuple[Any, dict[str, Any]]] = {
    name: (value, beside[0] if beside else {})
    for name, value, *beside in [
        ("input", "b"), ("instructions", "b"), ("max_output_tokens", 4), ("stream", True), ("temperature", 0.5),
        ("top_p", 0.5), ("top_k", 5), ("tools", [TOOL]), ("tool_choice", "required", {"tools": [TOOL]}), ("seed", 3),
        ("parallel_tool_calls", False, {"tools": [TOOL]}), ("min_p", 0.5), ("draft", "none"),
        ("num_speculative_tokens", 1), ("acceptance_tolerance", 0.5), ("structured_outputs", {"regex": "a"}),
        ("text", {"format": {"type": "json_object"}}), ("chat_template_kwargs", {"a": 1}), ("priority", -2),
        ("cache_salt", "a"),
    ]
}  # fmt: skip
# These change no generation, or only with a store or another model; other tests have them.
ELSEWHERE = {"model", "include", "metadata", "previous_response_id", "reasoning", "store", "stream_options"}


def asked(**fields: Any) -> Generation:
    settings = ServerSettings("m", scheduling_policy="priority")
    return generation_of(body_of(msgspec.json.encode({**MINIMAL, **fields})), [], 100, DEFAULT, settings)


def test_docs_describe_every_field() -> None:
    fields = {*ResponsesBody.__struct_fields__, *IGNORED, *NEUTRAL}
    assert sorted(name for names, _ in ROWS for name in names) == sorted(fields)
    assert next(names for names, text in ROWS if text.startswith("ignored")) == sorted(IGNORED)
    assert sorted(name for names, text in ROWS if text.startswith("refused") for name in names) == sorted(NEUTRAL)


def test_every_field_that_the_official_client_can_send_is_known() -> None:
    """The lists come from the installed client: a new field fails here until it is handled."""
    names = {*theirs.ResponseCreateParamsBase.__annotations__, *theirs.ResponseCreateParamsNonStreaming.__annotations__}
    assert names <= {*ResponsesBody.__struct_fields__, *IGNORED, *NEUTRAL}
    assert set(get_args(ResponseIncludable)) == INCLUDES | UNSUPPORTED_INCLUDES


@pytest.mark.parametrize("name", sorted({*ResponsesBody.__struct_fields__} - ELSEWHERE))
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
    with pytest.raises(HttpRefusal, match=name) as refused:
        asked(**{name: {"a": 1}})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


def test_tools_take_fields_that_say_nothing() -> None:
    said = {"strict": True, "allowed_callers": ["direct"], "async": False, "defer_loading": True, "output_schema": {}}
    assert asked(tools=[{**TOOL, **said}]) == asked(tools=[TOOL])


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max", None])
def test_models_without_levels_of_reasoning_ignore_the_effort(effort: str | None) -> None:
    assert asked(reasoning={"effort": effort, "summary": "auto", "context": "auto"}) == asked()
