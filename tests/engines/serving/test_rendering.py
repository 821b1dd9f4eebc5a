"""What is reported of an answer that must consist of tool calls, in every format of calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peagle.engines.answer_styles import STYLES, AnswerForm
from peagle.engines.requests.params import SamplingParams
from peagle.engines.requests.results import Delta, FinishReason
from peagle.engines.serving.generation import Conversation, Generation
from peagle.engines.serving.rendering import ReportedTokens, Reporter

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}},
}
CALLS = {
    "json": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    "tags": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "llama": '{"name": "f", "parameters": {"a": 1}}',
    "channels": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}',
}


def _reported(style: str, pieces: list[str], reason: FinishReason) -> list[ReportedTokens]:
    conversation = Conversation([], tools=[TOOL], must_call=[TOOL])
    choices: Any = SimpleNamespace(
        prompts=[(1,)], in_thought=[False], generation=Generation(conversation, SamplingParams(), form=AnswerForm.CALLS)
    )
    reporter = Reporter(choices, STYLES[style], lambda _: "")
    ends: list[FinishReason | None] = [None] * (len(pieces) - 1) + [reason]
    deltas = [Delta(text, (0,), end) for text, end in zip(pieces, ends, strict=True)]
    return [reporter.report(0, each, ((each.text, False),)) for each in deltas]


@pytest.mark.parametrize("style", CALLS)
def test_a_required_call_is_reported_only_when_it_is_complete(style: str) -> None:
    text, whole = CALLS[style], [("f", '{"a": 1}')]
    for end in range(1, len(text) + 1):
        reason: FinishReason = "length" if end < len(text) else "stop"
        for pieces in ([text[:end]], [*text[:end]]):
            reported = _reported(style, pieces, reason)
            calls = [(each.name, each.arguments) for tokens in reported for each in tokens.calls]
            assert calls == whole or (end < len(text) and not calls), text[:end]
            assert [(tokens.text, tokens.runs) for tokens in reported] == [("", [])] * len(pieces)
            assert reported[-1].finish_reason == ("length" if end < len(text) else "tool_calls")
