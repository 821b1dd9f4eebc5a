"""Prompts cut to what an engine holds, and how many tokens it has room to add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..bundled.prompts import Prompt


@dataclass(frozen=True)
class Beginnings:
    """Token ids of every prompt, by its name; ``max_tokens`` is generated after each. ``notes``: what was cut."""

    ids: tuple[tuple[str, tuple[int, ...]], ...]
    max_tokens: int
    notes: tuple[str, ...] = ()


def fitted(
    prompts: Sequence[Prompt], encode: Callable[[str], Sequence[int]], max_tokens: int, max_seq_len: int
) -> Beginnings:
    """Cut so that prompt and new tokens are at most ``max_seq_len``: first what is generated, to half of that."""
    most = max(min(max_tokens, max_seq_len // 2), 1)
    room = max(max_seq_len - most, 1)
    whole = [(prompt.id, tuple(encode(prompt.text))) for prompt in prompts]
    longer = sum(len(ids) > room for _, ids in whole)
    notes = []
    if most < max_tokens:
        notes.append(f"{most} tokens instead of {max_tokens} after each prompt: the engine holds {max_seq_len}")
    if longer:
        notes.append(f"{longer} of {len(whole)} prompts were cut to {room} tokens: the engine holds {max_seq_len}")
    return Beginnings(tuple((name, ids[:room]) for name, ids in whole), most, tuple(notes))
