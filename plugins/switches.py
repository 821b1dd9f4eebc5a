"""Environment variables that disable a feature."""

from __future__ import annotations

import os

from .errors import EnvironmentProblem


def is_off(variable: str, why: str) -> bool:
    """Return True if ``$variable`` is ``off``; False if it is unset, empty or ``on``.

    ``why`` explains the meaning of off. Raises ``EnvironmentProblem`` for any other value, so that no typo is misread.
    """
    value = os.environ.get(variable, "")
    if value in ("", "on"):
        return False
    if value == "off":
        return True
    raise EnvironmentProblem(
        f"${variable} is {value!r}", why=why, fix=f"set it to off, or unset it: `unset {variable}`"
    )
