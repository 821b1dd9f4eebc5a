"""What is known of the answer to a conversation before it begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.engines.answer_styles import AnswerForm
from peagle.engines.requests.params import SamplingParams
from peagle.engines.requests.structured_outputs import StructuredOutputsParams
from peagle.engines.serving.generation import Conversation, Generation, admitted
from peagle.engines.serving.settings import ServerSettings

TOOL = {"type": "function", "function": {"name": "f"}}
CALLS = StructuredOutputsParams(grammar='start: "f"')
JSON, CHOICE = StructuredOutputsParams(json_object=True), StructuredOutputsParams(choice=["Yes."])


@pytest.mark.parametrize(
    ("fields", "own_form", "enforceable", "form", "kept"),
    [
        ({}, None, True, AnswerForm.ANY, None),
        ({}, JSON, True, AnswerForm.JSON, JSON),
        ({"tools": [TOOL]}, None, True, AnswerForm.TEXT_THEN_CALLS, CALLS),
        ({"tools": [TOOL]}, None, False, AnswerForm.ANY, None),
        ({"tools": [TOOL]}, JSON, True, AnswerForm.JSON_OR_CALLS, CALLS),
        ({"tools": [TOOL]}, JSON, False, AnswerForm.JSON, JSON),
        ({"tools": [TOOL]}, CHOICE, True, AnswerForm.ANY, CHOICE),
        ({"tools": [TOOL], "must_call": [TOOL]}, JSON, False, AnswerForm.CALLS, CALLS),
    ],
)
def test_the_form_of_an_answer_is_that_of_its_grammar(
    fields: dict[str, Any],
    own_form: StructuredOutputsParams | None,
    enforceable: bool,
    form: AnswerForm,
    kept: StructuredOutputsParams | None,
) -> None:
    engine = SimpleNamespace(
        calls_of=lambda *_, **__: CALLS, optional_calls_of=lambda *_, **__: CALLS if enforceable else None
    )
    settings = ServerSettings("demo")
    state: Any = SimpleNamespace(engine=engine, settings=settings, limits=settings.limits)
    asked = Generation(Conversation([], **fields), SamplingParams(structured_outputs=own_form))
    found = asyncio.run(admitted(state, asked))
    assert (found.form, found.params.structured_outputs) == (form, kept)
