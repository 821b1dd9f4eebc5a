"""How ModelOpt lists in its configuration which modules stay wide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


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
