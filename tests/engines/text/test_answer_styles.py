"""The answer style of a model, from the templates of families, and the parser for it."""

from __future__ import annotations

import pytest

from peagle.engines.text.answer_styles import Style, reader_of, shows_special, style_of
from peagle.engines.text.channels import ChannelReader
from peagle.engines.text.llama_calls import LlamaCallReader
from peagle.engines.text.tool_calls import CLOSE, OPEN, ToolCallReader
from tests.chat_templates import CHATML, LLAMA3, QWEN3

TOOL = {"type": "function", "function": {"name": "f"}}
HERMES = "{% for tool in tools %}{{ tool }} in <tool_call></tool_call>{% endfor %}"
HARMONY = "{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}"
CODER = "{% for t in tools %}<tool_call>\n<function=f>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (CHATML, None),
        (LLAMA3, "llama"),
        (QWEN3, None),
        (HERMES, "json"),
        (CODER, "tags"),
        (HARMONY, "channels"),
        ("", None),
    ],
)
def test_the_templates_of_families_are_known(template: str, style: Style | None) -> None:
    assert style_of([template]) == style_of([CHATML, template]) == style


def test_special_tokens_that_separate_the_parts_of_an_answer_are_shown() -> None:
    hidden = {OPEN: True, CLOSE: True}
    styles: list[Style | None] = ["json", "tags", None, "llama", "channels"]
    assert [shows_special(style, hidden, has_tools=True) for style in styles] == [True, True, True, False, True]
    assert [shows_special(style, hidden, has_tools=False) for style in styles] == [*[False] * 4, True]
    assert not shows_special("json", {OPEN: False, CLOSE: False}, has_tools=True)


def test_answer_is_parsed_only_when_needed() -> None:
    assert reader_of("json", [], None, are_certain=False) is None
    assert reader_of("llama", [], None, are_certain=False) is None
    kinds: list[tuple[Style | None, type]]
    kinds = [(None, ToolCallReader), ("json", ToolCallReader), ("tags", ToolCallReader), ("llama", LlamaCallReader)]
    for style, kind in kinds:
        assert isinstance(reader_of(style, [TOOL], None, are_certain=False), kind)
    assert isinstance(reader_of("channels", [], None, are_certain=False), ChannelReader)
