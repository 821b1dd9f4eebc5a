"""Tool calls and reasoning as parts of an answer, and the JSON of arguments."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class ToolCall:
    """A function call, at index ``at`` in its answer; ``arguments`` are a JSON object as text.

    ``after`` is the number of visible characters of the answer that precede the call.
    """

    at: int
    name: str
    arguments: str
    after: int = field(default=0, compare=False)

    @property
    def place(self) -> tuple[int, int, int]:
        """The call's sort key among the calls and thoughts of an answer."""
        return self.after, self.at, 1


@dataclass(frozen=True)
class Thought:
    """A piece of reasoning, which ``after`` visible characters and ``calls`` calls of the answer precede."""

    text: str
    after: int = 0
    calls: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """The thought's sort key among the calls and thoughts of an answer."""
        return self.after, self.calls, 0


def begun_size(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the start of ``mark``."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _finite(number: str) -> float:
    """Return a number, clipped to the finite range because JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(number)))


DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)  # of valid JSON, as finite numbers


def has_half_pair(text: str) -> bool:
    """Return True if a text has half of a surrogate pair, which cannot be sent to a client."""
    return _SURROGATE.search(text) is not None


def _encoded(arguments: Any) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:  # values can be read a little deeper than written
        raise ValueError("the arguments are nested too deeply") from None


def arguments_text(arguments: Any) -> str:
    """Return arguments as JSON, with U+FFFD for half of a surrogate pair: clients fail on it, escaped or not.

    Raises ``ValueError`` for arguments that are nested too deeply.
    """
    text = _encoded(arguments)
    if not has_half_pair(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # joins both halves


def well_formed(text: str, arguments: Any) -> str:
    """Return the JSON ``text`` of ``arguments``, written again only if it has half of a surrogate pair.

    Raises ``ValueError`` for arguments that are nested too deeply.
    """
    return arguments_text(arguments) if has_half_pair(_encoded(arguments)) else text


def json_value(text: str) -> Any:
    """Return the value of a JSON text, with numbers clipped to the finite range. Raises ``ValueError``."""
    try:
        return DECODER.decode(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object in a JSON text, or None for any other text."""
    try:
        found = json_value(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
