"""Environment variables that switch something off."""

from __future__ import annotations

import os

from .errors import EnvironmentProblem


def is_off(variable: str, why: str) -> bool:
    """Whether ``$variable`` is ``off``; unset, empty and ``on`` mean that it is not.

    ``why`` says what off means. Raises ``EnvironmentProblem`` for any other word, which must not be misread.
    """
    value = os.environ.get(variable, "")
    if value in ("", "on"):
        return False
    if value == "off":
        return True
    raise EnvironmentProblem(
        f"${variable} is {value!r}", why=why, fix=f"set it to off, or unset it: `unset {variable}`"
    )
