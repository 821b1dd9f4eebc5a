"""Answers in channels, as GPT-OSS writes them (harmony): what is thought, what is said, and calls of tools.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

``analysis`` is thought; ``final`` is said, and ``commentary`` too where it is to nobody. The tokens between are special
ones, which the text must show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .tool_calls import ToolCall, json_object

CHANNEL, MESSAGE, START, END, CALL, RETURN = (
    f"<|{name}|>" for name in ("channel", "message", "start", "end", "call", "return")
)
CONSTRAIN, FUNCTIONS = "<|constrain|>", "functions."
ENDS = (CALL, RETURN)  # of an answer
_MARKERS = (START, END, CALL, RETURN, CHANNEL)  # that end a message
_NEXT = re.compile("|".join(re.escape(each) for each in _MARKERS))
_CHANNEL, _TO = re.compile(r"<\|channel\|>\s*(\w+)"), re.compile(r"\bto=([^\s<]+)")
_LONGEST = 300  # characters, of what stands before a message


class ChannelReader:
    """Parts the text of one answer, as it grows, into what is thought, what is said and which calls are made.

    What is in no channel is said, and what is for a program that is none of the tools is thought. A call is told when
    it is whole.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = (), most: int | None = None) -> None:
        """``tools`` are as OpenAI has them; no more than ``most`` calls are told."""
        self._names = {each["function"]["name"] for each in tools}
        self._most, self._held, self._thought = most, "", ""
        self._header: str | None = None  # of the message that is read, None between two
        self.count = 0  # of the calls that were told

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return what is said, and the calls that are whole, with ``text`` after what came before."""
        self._held += text
        said, calls = "", list[ToolCall]()
        while self._held:
            if self._header is None:
                if not self._begin(is_last=is_last):
                    break
                continue
            found = _NEXT.search(self._held)
            if self._name is not None:  # of a call, which is told as a whole
                if found is None and not is_last:
                    break
                body = self._held[: found.start()] if found else self._held
                said += self._called(body, calls)
            else:
                body = self._held[: found.start()] if found else self._held[: self._shown(is_last=is_last)]
                said += self._told(body)
            self._held = self._held[len(body) :]
            if found is None:
                break
            self._header = None
        return said, calls

    def take_thought(self) -> str:
        """Return what was thought since the last call."""
        thought, self._thought = self._thought, ""
        return thought

    @property
    def _name(self) -> str | None:
        """The tool that the message is for, None for one that is read by people, and for another program."""
        to = _TO.search(self._header or "")
        name = to[1].removeprefix(FUNCTIONS) if to and to[1].startswith(FUNCTIONS) else None
        return name if name in self._names else None

    def _begin(self, *, is_last: bool) -> bool:
        """Read what stands before a message; False where it has not all come yet."""
        for marker in (END, CALL, RETURN):
            if self._held.startswith(marker):
                self._held = self._held.removeprefix(marker)
                return True
        begun = self._held.lstrip()
        is_header = any(each.startswith(begun) or begun.startswith(each) for each in (START, CHANNEL, "to="))
        header, found, rest = self._held.partition(MESSAGE)
        if not is_header:
            self._header = ""
        elif len(header) > _LONGEST:
            self._header, self._held = "", begun.removeprefix(START).removeprefix(CHANNEL)
        elif found:
            self._header, self._held = header, rest
        else:
            self._held = "" if is_last else self._held  # where a text ends within a header nothing more was said
            return False
        return True

    def _told(self, body: str) -> str:
        """What is said of a message's text; what is thought is kept."""
        header = self._header or ""
        channel = _CHANNEL.search(header)
        if (channel and channel[1] == "analysis") or _TO.search(header):
            self._thought += body
            return ""
        return body

    def _called(self, body: str, calls: list[ToolCall]) -> str:
        """Add the call that a message is; what is none is said."""
        name, is_object = self._name, json_object(body) is not None
        if name is None or not is_object:
            return body
        if self._most is None or self.count < self._most:
            calls.append(ToolCall(self.count, name, body.strip()))
            self.count += 1
        return ""

    def _shown(self, *, is_last: bool) -> int:
        """How much of what is held can be no beginning of a marker."""
        at = self._held.rfind("<")
        is_begun = at >= 0 and any(each.startswith(self._held[at:]) for each in _MARKERS)
        return at if is_begun and not is_last else len(self._held)


def spoken(text: str) -> str:
    """What a whole answer says, without what was thought."""
    return ChannelReader().push(text, is_last=True)[0]
