"""Fabricated outputs of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


def outputs(*texts: tuple[Sequence[int], int, int]) -> list[Any]:
    """Each: its tokens, rounds, accepted drafts."""
    return [
        SimpleNamespace(token_ids=tuple(ids), acceptance=SimpleNamespace(rounds=rounds, accepted=accepted))
        for ids, rounds, accepted in texts
    ]
