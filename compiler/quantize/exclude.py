"""Which modules stay wide: what a user's patterns name, and how ModelOpt lists all of them in its configuration."""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ...plugins.errors import UsageError

_ROOT = "model."


def excluded(modules: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    """The keys of ``modules`` that a pattern names, such as ``layers.0.*`` or ``*.down_proj``.

    ``modules`` are names in the files, each with its name in the graph; either may be meant, with or without the
    ``model.`` before it, and what lies below a named module is meant too. Raises ``UsageError`` for a pattern that
    names nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        named = {stored for stored, graph in modules.items() if _names(pattern, stored) or _names(pattern, graph)}
        if not named:
            near = difflib.get_close_matches(pattern, modules, 3, cutoff=0.3) or sorted(modules)[:3]
            raise UsageError(
                f"--exclude {pattern!r} names none of the matrices that would be quantised",
                why=f"they have names like {', '.join(near)}",
                fix="give a name or a pattern of names, for example 'layers.0.*' or '*.down_proj'",
            )
        found |= named
    return found


def listed_modules(wide: Iterable[str], narrow: Iterable[str]) -> list[str]:
    """ModelOpt's ``exclude_modules``: for each wide module the shortest prefix that no quantised one has, and ``*``.

    Prefixes end before a dot. Where ``a.b.1*`` would also be the beginning of ``a.b.10``, it is ``a.b.1.*``.
    """
    ordered = sorted(narrow)
    return sorted({_shortest(name, ordered) for name in wide})


def _shortest(name: str, narrow: Sequence[str]) -> str:
    for dot in (at for at, letter in enumerate(name) if letter == "."):
        prefix = name[:dot]
        if not _begins_any(prefix, narrow):
            return f"{prefix}*"
        if prefix not in narrow and not _begins_any(f"{prefix}.", narrow):
            return f"{prefix}.*"
    return name


def _begins_any(prefix: str, ordered: Sequence[str]) -> bool:
    at = bisect_left(ordered, prefix)
    return at < len(ordered) and ordered[at].startswith(prefix)


def _names(pattern: str, module: str) -> bool:
    candidates = (module, module.removeprefix(_ROOT))
    return any(fnmatchcase(name, form) for name in candidates for form in (pattern, f"{pattern}.*"))
