"""JSON objects with unique keys: of a repeated key, Python's parser keeps the last value and drops the others."""

from __future__ import annotations

from typing import Any


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; the ``object_pairs_hook`` of ``json.loads``. Raises ``ValueError`` for a repeated key."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} appears twice")
        found[key] = value
    return found
