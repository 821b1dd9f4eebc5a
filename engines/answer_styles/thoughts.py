"""Reasoning between tags at the start of an answer, as written by Qwen3 and DeepSeek-R1: ``<think>...</think>``.

The tags do not depend on the format of calls, so they are a part of every style whose template has them. Some templates
write the first tag themselves, and the answer begins inside the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .calls import Thought, ToolCall, begun_size

_BLANK = "\n"  # templates write it around the tags


class CallReader(Protocol):
    """Splits text into visible text and calls; ``count`` is the number of calls returned so far."""

    count: int

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        ...


@dataclass(frozen=True)
class ThoughtTags:
    """The tags around reasoning.

    Args:
        begin: The tag before it.
        end: The tag after it.
        switch: The template variable that, if False, turns reasoning off; empty if the template has none.
        is_opened: True if the template's start of an answer ends with ``begin``, unless a variable prevents that.
    """

    begin: str
    end: str
    switch: str = ""
    is_opened: bool = False

    def is_open_after(self, prompt: str) -> bool:
        """Return True if the text of a prompt, up to the start of the answer, opens the reasoning."""
        return prompt.rstrip().endswith(self.begin)

    def is_open_in(self, message: str) -> bool:
        """Return True if a text that an answer continues is reasoning without its end."""
        return message.lstrip().startswith(self.begin) and self.end not in message

    def closed(self, prompt: str) -> str:
        """Return a prompt that ends inside the reasoning with the end of the reasoning, as templates write it."""
        begun = prompt.rstrip()
        thought = _BLANK if begun.endswith(self.begin) else ""
        return f"{begun}{thought}{_BLANK}{self.end}{_BLANK}{_BLANK}"

    def no_thought(self, *, in_thought: bool) -> str:
        """Return the Lark expression of any text that does not end inside the reasoning.

        If ``in_thought``, the text begins there.
        """
        begin = "" if in_thought else f"\\s*{_escaped(self.begin)}"
        return f"/(?s:.*)/ & ~(/{begin}(?s:.*)/ & ~/(?s:.*){_escaped(self.end)}(?s:.*)/)"


class ThoughtReader:
    """Splits off the reasoning at the start of an answer; another reader reads what follows it.

    The blank lines after both tags, and before the second one, are dropped. An answer that ends before the second tag
    is reasoning only.
    """

    def __init__(self, tags: ThoughtTags, after: CallReader | None, *, in_thought: bool) -> None:
        """``after`` reads the text behind the reasoning, None if it is all visible.

        If ``in_thought``, the answer begins inside the reasoning; the first tag may be repeated.
        """
        self._tags, self._after, self._in_thought = tags, after, in_thought
        self._held, self._thoughts = "", list[Thought]()
        self._has_begun = False  # False until it is clear whether the answer begins with the tag
        self._trims = False  # blank lines are dropped until other text follows
        self.count = 0  # calls returned so far

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        self._held += text
        if not (self._has_begun or self._begin(is_last=is_last)):
            return "", []
        if self._trims:
            self._held = self._held.lstrip(_BLANK)
            self._trims = not self._held
        if self._in_thought and not self._think(is_last=is_last):
            return "", []
        visible, self._held = self._held, ""
        if self._after is None:
            return visible, []
        visible, calls = self._after.push(visible, is_last=is_last)
        self.count = self._after.count
        return visible, calls

    def take_thoughts(self) -> list[Thought]:
        """Return the reasoning since the last call."""
        thoughts, self._thoughts = self._thoughts, []
        return thoughts

    def _begin(self, *, is_last: bool) -> bool:
        """Read the first tag, if there is one; return False if that is not clear yet."""
        begun = self._held.lstrip()
        if self._tags.begin.startswith(begun) and begun != self._tags.begin and not is_last:
            return False
        if begun.startswith(self._tags.begin):
            self._held, self._in_thought = begun.removeprefix(self._tags.begin), True
        self._has_begun, self._trims = True, self._in_thought
        return True

    def _think(self, *, is_last: bool) -> bool:
        """Move reasoning out of the buffered text; return True if it ends there."""
        thought, ended, rest = self._held.partition(self._tags.end)
        shown = thought if ended or is_last else thought[: len(thought) - begun_size(thought, self._tags.end)]
        shown = shown.rstrip(_BLANK)
        self._thoughts += [Thought(shown)] if shown else []
        self._held = rest.lstrip(_BLANK) if ended else "" if is_last else self._held[len(shown) :]
        if ended:
            self._in_thought, self._trims = False, not self._held
        return bool(ended)


def _escaped(tag: str) -> str:
    """Return a tag as a part of a Lark expression."""
    return re.escape(tag).replace("/", "\\/")


TAGS = (ThoughtTags("<think>", "</think>", switch="enable_thinking"),)


def tags_of(templates: Sequence[str]) -> ThoughtTags | None:
    """Return the tags of a model with these templates, with the switch only if a template reads it, or None."""
    for tags in TAGS:
        if any(tag in template for template in templates for tag in (tags.begin, tags.end)):
            has_switch = any(tags.switch in template for template in templates)
            return tags if has_switch else replace(tags, switch="")
    return None
