"""Fields of an API that this server does not act on, and the values that it accepts for them.

Clients send fields at their defaults. A default requests no change, so it is accepted. Any other value would change the
answer and is refused by the field's name. docs/serving.md has the same lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from .problems import HttpRefusal


@dataclass(frozen=True)
class InertFields:
    """The fields of one API without effect.

    ``ignored`` fields never change the answer: any value is accepted. ``neutral`` has the values of the others that do
    not change the answer; null is always accepted.
    """

    ignored: Collection[str]
    neutral: Mapping[str, tuple[Any, ...]]

    def left_out(self, fields: Mapping[str, Any], honoured: Collection[str], path: str = "") -> dict[str, Any]:
        """Return the fields that are ``honoured`` or unknown; ``path`` is their path in the body.

        Raises ``HttpRefusal`` for a neutral field that has another value.
        """
        remaining = {}
        for name, value in fields.items():
            if name in honoured or not (name in self.ignored or name in self.neutral):
                remaining[name] = value
            elif name in self.neutral:
                self.require_neutral(name, value, path and f"{path}.{name}")
        return remaining

    def require_neutral(self, name: str, value: Any, path: str = "") -> None:
        """Raise ``HttpRefusal`` if the field's ``value`` requests something that this server does not support.

        ``path`` is the path of the field in the body, if it is not at the top.
        """
        if value is None or any(_is_same(value, each) for each in self.neutral[name]):
            return
        accepted = [msgspec.json.encode(each).decode() for each in self.neutral[name]]
        message = f"{path or name} is not supported by this server; fix: remove the field"
        if accepted:
            message += f", or set it to {' or '.join(accepted)}"
        raise HttpRefusal(400, message, param=path or name, code="unsupported_parameter")


def _is_same(value: Any, neutral: Any) -> bool:
    """Compare two JSON values; in Python, unlike JSON, ``True == 1``."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
