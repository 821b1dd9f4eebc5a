"""Experts that the samples reached seldom or never, and the range that one without tokens gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FEWEST = 64  # tokens: the largest of fewer numbers says little of those that come later
_NAMED = 5


@dataclass(frozen=True)
class SeldomExpert:
    """One expert of a layer, and how many tokens it saw: fewer than ``FEWEST``."""

    module: str
    expert: int
    tokens: int


def seldom_experts(tokens: Mapping[str, Array]) -> list[SeldomExpert]:
    """The experts of all layers that saw few tokens, those that saw fewest first. ``tokens`` are counts by module."""
    few = [
        SeldomExpert(module, int(expert), int(counts[expert]))
        for module, counts in tokens.items()
        for expert in np.flatnonzero(counts < FEWEST)
    ]
    return sorted(few, key=lambda each: each.tokens)


def fill_unseen(inputs: Mapping[str, Array], tokens: Mapping[str, Array]) -> dict[str, Array]:
    """Give experts that saw no token their layer's largest range of the same input.

    Whatever reaches such an expert later was then seen at that size by another one of its layer: the steps are coarser
    than they had to be, and nothing is cut off.
    """
    filled = dict(inputs)
    for module, counts in tokens.items():
        for name in (name for name in inputs if name.startswith(f"{module}.")):
            filled[name] = np.where(counts == 0, inputs[name].max(), inputs[name]).astype(np.float32)
    return filled


def say_seldom(tokens: Mapping[str, Array]) -> list[str]:
    """One warning, if any expert saw few tokens: how many, which, and what to do."""
    few = seldom_experts(tokens)
    if not few:
        return []
    of = f"of {sum(map(len, tokens.values()))} experts"
    unseen = sum(not each.tokens for each in few)
    parts = [f"{unseen} {of} saw no token and take their layer's largest range"] if unseen else []
    if rest := len(few) - unseen:
        parts.append(f"{rest} {of} saw fewer than {FEWEST} tokens")
    named = [f"{each.module} {each.expert} ({each.tokens})" for each in few[:_NAMED]]
    named += [f"{len(few) - _NAMED} more, which the report lists"] if len(few) > _NAMED else []
    return [
        f"{', '.join(parts)}: {', '.join(named)}; more samples (--calib-samples), or texts like those that will be "
        "served (--calib-data), reach more of them"
    ]
