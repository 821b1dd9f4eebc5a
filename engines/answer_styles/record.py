"""The record of an answer style: how models write tool calls and reasoning, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from .calls import Thought, ToolCall
from .thoughts import CallReader, ThoughtReader, ThoughtTags

Tools = Sequence[Mapping[str, Any]]  # in OpenAI's format


class AnswerForm(Enum):
    """A kind of answer that a grammar ensures, so that the reader need not guess.

    ``ANY`` answer may contain calls. In ``TEXT_THEN_CALLS``, whatever begins a call is one, and only calls follow it.
    """

    ANY = auto()
    TEXT_THEN_CALLS = auto()
    CALLS = auto()
    JSON_OR_CALLS = auto()
    JSON = auto()


class AnswerReader(CallReader, Protocol):
    """Splits the text of one answer as it grows into visible text, calls and reasoning."""

    def take_thoughts(self) -> list[Thought]:
        """Return the reasoning since the last call, if the format marks it."""
        ...


class MakeReader(Protocol):
    """Creates the reader of one answer, which returns at most ``max_calls`` calls of ``tools``.

    If calls ``are_certain``, a grammar has enforced them.
    """

    def __call__(self, tools: Tools, max_calls: int | None, *, are_certain: bool) -> AnswerReader:
        """Return the reader."""
        ...


class WriteFrame(Protocol):
    """Writes the Lark rules around a call, which is the rule ``call``. The first one is ``start``.

    With ``repeats``, more calls may follow. Unless an answer ``must_call``, text (the rule ``BEFORE``) may precede the
    calls, or any text may replace them; only a style that ``follows_text`` is asked for that.
    """

    def __call__(self, *, repeats: bool, must_call: bool) -> list[str]:
        """Return the rules."""
        ...


class WriteCall(Protocol):
    """Writes the Lark rules of a call of one tool, which is the rule ``name``.

    ``function`` is the function's name, and ``path`` the place of the tool in the request. ``schema`` is an object
    schema, and ``json_of`` returns the rule for JSON of a schema. Raises ``UsageError`` for names and schemas that the
    style cannot express.
    """

    def __call__(
        self, name: str, function: str, path: str, schema: Mapping[str, Any], json_of: Callable[[Any], str]
    ) -> list[str]:
        """Return the rules."""
        ...


@dataclass(frozen=True)
class AnswerStyle:
    """A format of tool calls and reasoning that models are trained on.

    Args:
        name: The name, for messages and tests.
        is_of: Returns True for the chat templates of models with this style.
        reader: Creates the reader of one answer.
        frame: Writes the grammar around a call.
        calls: Writes the grammar of a call of one tool.
        markers: Texts around calls. An answer includes them even if they are special tokens.
        marks_reasoning: True if special tokens separate the parts of every answer, reasoning included.
        ends: Special tokens that end an answer; if empty, the template shows which one does.
        efforts: Levels of reasoning (``reasoning_effort``) that templates take.
        thought_key: The key of a message with calls under which templates take the reasoning before them.
        is_in_template: False if templates do not know tools, so that they get them as the text of messages.
        follows_text: True if calls may follow any text under a grammar. Models that were trained to call do without.
        may_be_json: True if a grammar may allow JSON in place of the calls.
        takes_any_arguments: True if arguments may be any object, whatever the schema.
        thoughts: The tags around reasoning at the start of an answer, or None. They are detected from the templates,
            whatever the style, so no record sets them.
    """

    name: str
    is_of: Callable[[Sequence[str]], bool]
    reader: MakeReader
    frame: WriteFrame
    calls: WriteCall
    markers: tuple[str, ...] = ()
    marks_reasoning: bool = False
    ends: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    thought_key: str = ""
    is_in_template: bool = True
    follows_text: bool = False
    may_be_json: bool = True
    takes_any_arguments: bool = True
    thoughts: ThoughtTags | None = None

    @property
    def thought_switch(self) -> str:
        """The template variable that turns reasoning off; empty if there is none."""
        return "" if self.thoughts is None else self.thoughts.switch

    @property
    def opens_thought(self) -> bool:
        """Return True if the template usually opens the reasoning, so that the answer begins there."""
        return self.thoughts is not None and self.thoughts.is_opened

    def reader_of(
        self,
        tools: Tools,
        max_calls: int | None = None,
        *,
        form: AnswerForm = AnswerForm.ANY,
        in_thought: bool = False,
    ) -> AnswerReader | None:
        """Return a reader for one answer, or None if the answer can only be text.

        A grammar has enforced the ``form``. If ``in_thought``, the prompt has opened the reasoning. The other arguments
        are the reader's.
        """
        if form is AnswerForm.JSON:
            return None
        is_marked_json = form is AnswerForm.JSON_OR_CALLS and bool(self.markers)  # otherwise, calls may be JSON too
        are_certain = is_marked_json or form in (AnswerForm.CALLS, AnswerForm.TEXT_THEN_CALLS)
        has_parts = tools or self.marks_reasoning
        reader = self.reader(tools, max_calls, are_certain=are_certain) if has_parts else None
        if reader is not None and is_marked_json:
            reader = _JsonOrCallsReader(self.markers[0], reader)
        return reader if self.thoughts is None else ThoughtReader(self.thoughts, reader, in_thought=in_thought)

    def spoken(self, answer: str, *, in_thought: bool) -> str:
        """Return the visible part of a whole answer, without reasoning if the style marks it.

        If the prompt has opened the reasoning (``in_thought``), an answer without its end is reasoning.
        """
        reader = self.reader_of((), in_thought=in_thought)
        return answer if reader is None else reader.push(answer, is_last=True)[0]

    def shows_special(self, hidden: Mapping[str, bool], *, has_tools: bool) -> bool:
        """Return True if the text of an answer must include special tokens, because they separate its parts.

        ``hidden`` maps added tokens to whether decoded text usually omits them.
        """
        markers = self.markers if has_tools else ()
        if self.thoughts is not None:
            markers = (*markers, self.thoughts.begin, self.thoughts.end)
        return self.marks_reasoning or any(hidden.get(each) for each in markers)


class _JsonOrCallsReader:
    """Reads an answer that is either JSON or calls without other text, as its first character shows."""

    def __init__(self, mark: str, calls: AnswerReader) -> None:
        """``calls`` reads an answer that begins with ``mark``, which JSON does not."""
        self._mark, self._calls = mark, calls
        self._is_json: bool | None = None  # None until there is text
        self.count = 0  # calls returned so far

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        if self._is_json is None and text:
            self._is_json = text[0] != self._mark[0]
        if self._is_json:
            return text, []
        _, calls = self._calls.push(text, is_last=is_last)
        self.count = self._calls.count
        return "", calls

    def take_thoughts(self) -> list[Thought]:
        """Return an empty list: such an answer has no reasoning."""
        return []
