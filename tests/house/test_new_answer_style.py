"""A new answer style requires one record: the tool calls of Mistral models, defined here, from template to client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerStyle, Thought, ToolCall, Tools, register
from peagle.engines.answer_styles.calls import arguments_text
from peagle.engines.answer_styles.json_calls import json_call
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.calls import call

pytest.importorskip("llguidance")

BEGIN = "[TOOL_CALLS]"
TEMPLATE = """{% if tools %}{# [TOOL_CALLS] #}{{ tools | length }} tools{% endif %}
{%- for m in messages %}{{ m.content or '' }}{% endfor %}"""
SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
ASKED: Mapping[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "def f(x):"}],
    "tools": TOOLS,
    "max_tokens": 200,
    "temperature": 0.8,
    "seed": 3,
}


class ListReader:
    """Reads ``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, once it is complete."""

    def __init__(self, tools: Tools, max_calls: int | None = None, *, are_certain: bool = False) -> None:
        self._most, self._held, self.count = max_calls, "", 0

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        self._held += text
        if not is_last:
            return "", []
        try:
            found = json.loads(self._held.removeprefix(BEGIN))[: self._most]
        except ValueError:
            return self._held, []
        self.count = len(found)
        return "", [ToolCall(at, each["name"], arguments_text(each["arguments"])) for at, each in enumerate(found)]

    def take_thoughts(self) -> list[Thought]:
        return []


def list_frame(*, repeats: bool, must_call: bool) -> list[str]:
    more = ' (", " call)*' if repeats else ""
    return [f'start: "{BEGIN}[" call{more} "]"']


LIST = AnswerStyle(
    "list",
    is_of=lambda templates: any(BEGIN in template for template in templates),
    reader=ListReader,
    frame=list_frame,
    calls=partial(json_call, key="arguments"),
)


@pytest.fixture(scope="module")
def style() -> Iterator[None]:
    """The one line of registration."""
    register(LIST)
    yield
    del STYLES["list"]


@pytest.fixture(scope="module")
def engine(style: None, talking_engine: Path) -> Iterator[Engine]:
    with Engine.load(talking_engine, max_batch_size=2, threads=1, chat_template=TEMPLATE) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Server]:
    started = Server(engine, ServerSettings("demo"), port=0)
    started.start()
    yield started
    started.stop(immediately=True)
    assert started.wait(10)


def test_the_template_selects_it_and_gets_the_tools(engine: Engine, talking_engine: Path) -> None:
    assert engine.answer_style is LIST
    assert engine.chat_prompt(ASKED["messages"], tools=TOOLS)[0] == "2 toolsdef f(x):"
    with Engine.load(talking_engine, threads=1) as other:
        assert other.answer_style is DEFAULT


@pytest.mark.parametrize("repeats", [True, False])
def test_required_calls_are_enforced_and_read(server: Server, repeats: bool) -> None:
    asked = {**ASKED, "tool_choice": "required", "parallel_tool_calls": repeats}
    status, _, content = call(server, "POST", "/v1/chat/completions", asked)
    choice = json.loads(content)["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "tool_calls")
    found = [each["function"] for each in choice["message"]["tool_calls"]]
    assert len(found) == 1 or repeats
    for each in found:
        assert each["name"] in ("f", "g")
        assert json.loads(each["arguments"])["unit"] in ("C", "F")
    lines = call(server, "POST", "/v1/chat/completions", {**asked, "stream": True})[2].decode().split("\n\n")
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    streamed = [each for piece in pieces for each in piece["choices"][0]["delta"].get("tool_calls") or []]
    assert [each["function"] for each in streamed] == found


def test_json_may_replace_the_calls(server: Server) -> None:
    kinds = set[str]()
    for seed in range(8):
        asked = {**ASKED, "seed": seed, "temperature": 2.0, "response_format": {"type": "json_object"}}
        message = json.loads(call(server, "POST", "/v1/chat/completions", asked)[2])["choices"][0]["message"]
        kinds.add("calls" if message.get("tool_calls") else "json")
        assert message.get("tool_calls") or message["content"].lstrip().startswith("{")
    assert kinds == {"calls", "json"}
