"""The answer style of a model, from the templates of families, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerForm, AnswerStyle, style_of
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
        assert style.spoken("text", in_thought=False) == "text"
        assert isinstance(style.reader_of([TOOL]), kind)
    assert isinstance(STYLES["channels"].reader_of([]), ChannelReader)


QUOTED = '<tool_call>\n{"name": "f", "arguments": {"a": "x</tool_call>y"}}\n</tool_call>'
JSON = '{"t": "<tool_call><function=f></function></tool_call>"}'


def _read(style: AnswerStyle, form: AnswerForm, text: str, size: int) -> tuple[str, list[str]]:
    """Return the text and the arguments of the calls of an answer that arrives in pieces of this size."""
    reader, said, calls = style.reader_of([TOOL], form=form), "", list[str]()
    assert reader is not None
    for begin in range(0, len(text), size):
        visible, found = reader.push(text[begin : begin + size], is_last=begin + size >= len(text))
        said, calls = said + visible, calls + [each.arguments for each in found]
    return said, calls


@pytest.mark.parametrize("size", [1, 7, 200])
def test_a_call_that_a_grammar_enforces_is_complete_or_omitted(size: int) -> None:
    made = ['{"a": "x</tool_call>y"}']
    assert _read(DEFAULT, AnswerForm.TEXT_THEN_CALLS, f"I look.\n{QUOTED}", size) == ("I look.\n", made)
    for name in ("json", "tags"):
        assert _read(STYLES[name], AnswerForm.JSON_OR_CALLS, QUOTED, size) == ("", made)
    for end in range(len("<tool_call>"), QUOTED.index("}}") + 1):
        cut = QUOTED[:end]
        assert _read(DEFAULT, AnswerForm.TEXT_THEN_CALLS, f"I look.\n{cut}", size) == ("I look.\n", [])
        assert _read(DEFAULT, AnswerForm.JSON_OR_CALLS, cut, size) == ("", [])


@pytest.mark.parametrize("size", [1, 7, 200])
def test_no_calls_are_read_out_of_json_that_replaces_them(size: int) -> None:
    for name in ("json", "tags"):
        assert _read(STYLES[name], AnswerForm.JSON_OR_CALLS, JSON, size) == (JSON, [])
        assert _read(STYLES[name], AnswerForm.JSON_OR_CALLS, JSON[:30], size) == (JSON[:30], [])
    for style in STYLES.values():
        assert style.reader_of([TOOL], form=AnswerForm.JSON) is None


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("json", '<tool_call>{"name": "f", "arguments": {"a": VALUE}}</tool_call>'),
        ("tags", "<tool_call><function=f><parameter=a>VALUE</parameter></function></tool_call>"),
        ("llama", '{"name": "f", "parameters": {"a": VALUE}}'),
        ("channels", '<|channel|>commentary to=functions.f<|message|>{"a": VALUE}<|call|>'),
    ],
)
def test_a_call_nested_as_deeply_as_can_be_read_is_a_call_or_text(style: str, text: str) -> None:
    """JSON can be read a little deeper than it can be written."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}
    found = set[bool]()
    for levels in range(940, 1010):
        reader = STYLES[style].reader_of([tool])
        assert reader is not None
        said, calls = reader.push(text.replace("VALUE", "[" * levels + "]" * levels), is_last=True)
        found.add(bool(calls))
        assert bool(said) != bool(calls)
    assert True in found
