"""Answers in channels, as written by GPT-OSS (harmony): reasoning, visible text and tool calls.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

``analysis`` is reasoning. ``final`` is visible text, and so is ``commentary`` without a recipient. The separators are
special tokens, which decoding must not omit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plugins.errors import UsageError
from .calls import Thought, ToolCall, json_object, well_formed
from .json_calls import quoted
from .record import AnswerStyle

CHANNEL, MESSAGE, START, END, CALL, RETURN = (
    f"<|{name}|>" for name in ("channel", "message", "start", "end", "call", "return")
)
CONSTRAIN, FUNCTIONS = "<|constrain|>", "functions."
_MARKERS = (START, END, CALL, RETURN, CHANNEL)  # end a message
_NEXT = re.compile("|".join(re.escape(each) for each in _MARKERS))
_CHANNEL, _TO = re.compile(r"<\|channel\|>\s*(\w+)"), re.compile(r"\bto=([^\s<]+)")
_LONGEST = 300  # characters of a message header


class ChannelReader:
    """Splits the text of one answer, as it grows, into reasoning, visible text and tool calls.

    Text outside the channels is visible; messages to programs other than the tools count as reasoning. Calls are
    returned when complete.
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]] = (), max_calls: int | None = None, *, are_certain: bool = False
    ) -> None:
        """``tools`` have OpenAI's format; at most ``max_calls`` calls are returned."""
        del are_certain
        self._names = {each["function"]["name"] for each in tools}
        self._most, self._held, self._thoughts = max_calls, "", list[Thought]()
        self._said = 0  # visible characters returned so far
        self._header: str | None = None  # of the current message, None between two
        self.count = 0  # calls returned so far

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Add ``text``, and return the new visible text and complete calls."""
        self._held += text
        visible, calls = "", list[ToolCall]()
        while self._held:
            if self._header is None:
                if not self._begin(is_last=is_last):
                    break
                continue
            found = _NEXT.search(self._held)
            if self._name is not None:  # a call, which is returned when complete
                if found is None and not is_last:
                    break
                body = self._held[: found.start()] if found else self._held
                visible += self._called(body, calls, self._said + len(visible))
            else:
                body = self._held[: found.start()] if found else self._held[: self._shown(is_last=is_last)]
                visible += self._visible_text(body, self._said + len(visible))
            self._held = self._held[len(body) :]
            if found is None:
                break
            self._header = None
        self._said += len(visible)
        return visible, calls

    def take_thoughts(self) -> list[Thought]:
        """Return the reasoning since the last call."""
        thoughts, self._thoughts = self._thoughts, []
        return thoughts

    @property
    def _name(self) -> str | None:
        """The tool that the current message calls, or None for other messages."""
        to = _TO.search(self._header or "")
        name = to[1].removeprefix(FUNCTIONS) if to and to[1].startswith(FUNCTIONS) else None
        return name if name in self._names else None

    def _begin(self, *, is_last: bool) -> bool:
        """Read a message header; return False if it is incomplete."""
        for marker in (END, CALL, RETURN):
            if self._held.startswith(marker):
                self._held = self._held.removeprefix(marker)
                return True
        begun = self._held.lstrip()
        is_header = any(each.startswith(begun) or begun.startswith(each) for each in (START, CHANNEL, "to="))
        header, found, rest = self._held.partition(MESSAGE)
        if is_last and not found and not begun.startswith((START, CHANNEL, f"to={FUNCTIONS}")):
            is_header = False  # a short text without channels
        if not is_header:
            self._header = ""
        elif len(header) > _LONGEST:
            self._header, self._held = "", begun.removeprefix(START).removeprefix(CHANNEL)
        elif found:
            self._header, self._held = header, rest
        else:
            self._held = "" if is_last else self._held  # an incomplete header at the end contains no text
            return False
        return True

    def _visible_text(self, body: str, after: int) -> str:
        """Return the visible part of a message's text, after so many characters; store the reasoning."""
        header = self._header or ""
        channel = _CHANNEL.search(header)
        if (channel and channel[1] == "analysis") or _TO.search(header):
            self._thoughts += [Thought(body, after, self.count)] if body else []
            return ""
        return body

    def _called(self, body: str, calls: list[ToolCall], after: int) -> str:
        """Add the call in a message; return an invalid one as visible text."""
        name, arguments = self._name, json_object(body)
        if name is None or arguments is None:
            return body
        try:
            text = well_formed(body.strip(), arguments)
        except ValueError:
            return body
        if self._most is None or self.count < self._most:
            calls.append(ToolCall(self.count, name, text, after))
            self.count += 1
        return ""

    def _shown(self, *, is_last: bool) -> int:
        """Return the length of the buffered text that cannot be the start of a marker."""
        at = self._held.rfind("<")
        is_begun = at >= 0 and any(each.startswith(self._held[at:]) for each in _MARKERS)
        return at if is_begun and not is_last else len(self._held)


def _frame(*, repeats: bool, must_call: bool) -> list[str]:
    del repeats, must_call  # the template writes one call, after reasoning if there is any
    return [
        f"start: thought? {CHANNEL} call",
        f'thought: {CHANNEL} "analysis" {MESSAGE} TEXT {END} {START} "assistant"',
        "TEXT: /(?s:.*)/",
    ]


def _calls(name: str, function: str, path: str, schema: Mapping[str, Any], json_of: Callable[[Any], str]) -> list[str]:
    """Return the rules of a message to the function. Raises ``UsageError`` for characters that would end its name."""
    if not function or any(sign.isspace() or sign == "<" for sign in function):
        raise UsageError(
            f"{path}.function.name cannot be used as a recipient: {function[:60]!r}",
            fix="use letters, digits, _ and -",
        )
    to = quoted(f"commentary to={FUNCTIONS}{function} ")
    return [f'{name}: {to} {CONSTRAIN} "json" {MESSAGE} {name}_a', f"{name}_a: {json_of(schema)}"]


def _is_of(templates: Sequence[str]) -> bool:
    return any(CHANNEL in template and MESSAGE in template for template in templates)


STYLE = AnswerStyle(
    "channels",
    _is_of,
    ChannelReader,
    _frame,
    _calls,
    marks_reasoning=True,
    ends=(CALL, RETURN),  # the token after an answer in a conversation ends every message
    efforts=("low", "medium", "high"),
    thought_key="thinking",
    may_be_json=False,
)
