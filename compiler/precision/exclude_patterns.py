"""Patterns of ``--exclude``: modules to leave unquantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ...plugins.errors import UsageError, nearest

_ROOT = "model."


def excluded(modules: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    """Return the keys of ``modules`` that a pattern matches, such as ``layers.0.*`` or ``*.down_proj``.

    ``modules`` maps names in the files to names in the graph. A pattern may match either, with or without the leading
    ``model.``, and covers everything below a matching module. Raises ``UsageError`` for a pattern that matches
    nothing.
    """
    keys: set[str] = set()
    for pattern in patterns:
        matches = {stored for stored, graph in modules.items() if _names(pattern, stored) or _names(pattern, graph)}
        if not matches:
            near = nearest(pattern, modules, cutoff=0.3) or sorted(modules)[:3]
            raise UsageError(
                f"--exclude {pattern!r} matches no matrix that would be quantized",
                why=f"these matrices have names such as {', '.join(near)}",
                fix="pass a name or a pattern, for example 'layers.0.*' or '*.down_proj'",
            )
        keys |= matches
    return keys


def _names(pattern: str, module: str) -> bool:
    candidates = (module, module.removeprefix(_ROOT))
    return any(fnmatchcase(name, glob) for name in candidates for glob in (pattern, f"{pattern}.*"))
