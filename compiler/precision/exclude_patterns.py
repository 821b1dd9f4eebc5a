"""Patterns of ``--exclude``: which modules a user means to leave wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ...plugins.errors import UsageError, nearest

_ROOT = "model."


def excluded(modules: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    """The keys of ``modules`` that a pattern names, such as ``layers.0.*`` or ``*.down_proj``.

    ``modules`` are names in the files, each with its name in the graph; either may be meant, with or without the
    ``model.`` before it, and what lies below a named module is meant too. Raises ``UsageError`` for a pattern that
    names nothing.
    """
    keys: set[str] = set()
    for pattern in patterns:
        named = {stored for stored, graph in modules.items() if _names(pattern, stored) or _names(pattern, graph)}
        if not named:
            near = nearest(pattern, modules, cutoff=0.3) or sorted(modules)[:3]
            raise UsageError(
                f"--exclude {pattern!r} names none of the matrices that would be quantised",
                why=f"they have names like {', '.join(near)}",
                fix="give a name or a pattern of names, for example 'layers.0.*' or '*.down_proj'",
            )
        keys |= named
    return keys


def _names(pattern: str, module: str) -> bool:
    candidates = (module, module.removeprefix(_ROOT))
    return any(fnmatchcase(name, form) for name in candidates for form in (pattern, f"{pattern}.*"))
