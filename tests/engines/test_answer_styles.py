"""The answer style of a model, from the templates of families, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerStyle, style_of
from peagle.engines.answer_styles.channels import ChannelReader
from peagle.engines.answer_styles.llama_calls import LlamaCallReader
from peagle.engines.answer_styles.tagged_calls import CLOSE, OPEN, ToolCallReader
from peagle.engines.answer_styles.thoughts import TAGS
from tests.chat_templates import CHATML, LLAMA3, QWEN3

TOOL = {"type": "function", "function": {"name": "f"}}
HERMES = "{% for tool in tools %}{{ tool }} in <tool_call></tool_call>{% endfor %}"
HARMONY = "{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|return|>' }}"
CODER = "{% for t in tools %}<tool_call>\n<function=f>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (CHATML, DEFAULT),
        (LLAMA3, STYLES["llama"]),
        (QWEN3, replace(DEFAULT, thoughts=TAGS[0])),
        (HERMES, STYLES["json"]),
        (CODER, STYLES["tags"]),
        (HARMONY, STYLES["channels"]),
        ("", DEFAULT),
    ],
)
def test_the_templates_of_families_are_known(template: str, style: AnswerStyle) -> None:
    assert style_of([template]) == style_of([CHATML, template]) == style


def test_special_tokens_that_separate_the_parts_of_an_answer_are_shown() -> None:
    hidden = {OPEN: True, CLOSE: True}
    styles = [STYLES["json"], STYLES["tags"], DEFAULT, STYLES["llama"], STYLES["channels"]]
    assert [style.shows_special(hidden, has_tools=True) for style in styles] == [True, True, True, False, True]
    assert [style.shows_special(hidden, has_tools=False) for style in styles] == [*[False] * 4, True]
    assert not STYLES["json"].shows_special({OPEN: False, CLOSE: False}, has_tools=True)


def test_answer_is_parsed_only_when_needed() -> None:
    kinds = {"json": ToolCallReader, "tags": ToolCallReader, "llama": LlamaCallReader}
    for style, kind in [(DEFAULT, ToolCallReader), *((STYLES[name], kind) for name, kind in kinds.items())]:
        assert style.reader_of([]) is None
        assert style.spoken("text") == "text"
        assert isinstance(style.reader_of([TOOL]), kind)
    assert isinstance(STYLES["channels"].reader_of([]), ChannelReader)
