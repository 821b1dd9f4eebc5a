"""Experts that the samples rarely or never reached, and the range of an expert without tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FEWEST = 64  # tokens: the maximum over fewer values says little about later ones
_NAMED = 5


@dataclass(frozen=True)
class RarelyUsedExpert:
    """One expert of a layer with its number of tokens, below ``FEWEST``."""

    module: str
    expert: int
    tokens: int


def rarely_used_experts(tokens: Mapping[str, Array]) -> list[RarelyUsedExpert]:
    """List experts of all layers with few tokens, fewest first. ``tokens`` are counts by module."""
    rare = [
        RarelyUsedExpert(module, int(expert), int(counts[expert]))
        for module, counts in tokens.items()
        for expert in np.flatnonzero(counts < FEWEST)
    ]
    return sorted(rare, key=lambda each: each.tokens)


def fill_unseen(inputs: Mapping[str, Array], tokens: Mapping[str, Array]) -> dict[str, Array]:
    """Give experts without tokens their layer's largest range of the same input.

    Later inputs of such an expert then have a range that another expert of the layer reached: the resolution is coarser
    than necessary, but nothing is clipped.
    """
    filled = dict(inputs)
    for module, counts in tokens.items():
        for name in (name for name in inputs if name.startswith(f"{module}.")):
            filled[name] = np.where(counts == 0, inputs[name].max(), inputs[name]).astype(np.float32)
    return filled


def warn_rarely_used(tokens: Mapping[str, Array]) -> list[str]:
    """Return one warning if any expert had few tokens: how many, which, and the remedy."""
    rare = rarely_used_experts(tokens)
    if not rare:
        return []
    of = f"of {sum(map(len, tokens.values()))} experts"
    unseen = sum(not each.tokens for each in rare)
    parts = [f"{unseen} {of} saw no tokens and use their layer's largest range"] if unseen else []
    if rest := len(rare) - unseen:
        parts.append(f"{rest} {of} saw fewer than {FEWEST} tokens")
    listed_experts = [f"{each.module} {each.expert} ({each.tokens})" for each in rare[:_NAMED]]
    listed_experts += [f"{len(rare) - _NAMED} more, listed in the report"] if len(rare) > _NAMED else []
    return [
        f"{', '.join(parts)}: {', '.join(listed_experts)}; use more samples (--calib-samples), or texts like those "
        "that the model will process (--calib-data)"
    ]
