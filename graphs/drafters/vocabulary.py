"""Check the vocabulary of a drafter: ``d2t`` and ``t2d`` must map draft ids to target ids consistently."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plugins.problems import Problems
from .drafter_spec import DrafterSpec, drafter_problems, trained_head


def check_vocabulary(drafter: DrafterSpec, d2t: NDArray[Any] | None, t2d: NDArray[Any] | None) -> None:
    """Check ``d2t`` [Vd] (target id = draft id + d2t) and ``t2d`` [V] (mask of the target ids in the draft vocabulary).

    Draft ids must follow the order of target ids, so that arg-max breaks ties equally in both vocabularies. Raises
    ``BuildError`` listing all contradictions.
    """
    problems = drafter_problems()
    problems.fix = trained_head(drafter.strategy)
    offsets = np.zeros(drafter.draft_vocab_size, np.int64) if d2t is None else np.asarray(d2t).reshape(-1)
    marked = None if t2d is None else np.flatnonzero(np.asarray(t2d).reshape(-1))
    if not np.issubdtype(offsets.dtype, np.integer):
        problems.add(f"d2t must be integers, not {offsets.dtype}")
        problems.raise_any()
    ids = np.arange(len(offsets)) + offsets.astype(np.int64)
    outside = (ids < 0) | (ids >= drafter.vocab_size)
    if outside.any():
        i = int(outside.argmax())
        problems.add(
            f"{outside.sum()} draft ids map outside the vocabulary of {drafter.vocab_size}; {i} maps to {ids[i]}"
        )
    disorder = np.diff(ids) <= 0
    if disorder.any():
        i = int(disorder.argmax())
        problems.add(f"d2t is not ascending: draft ids {i} and {i + 1} map to target ids {ids[i]} and {ids[i + 1]}")
    if marked is not None:
        _compare(ids, marked, problems)
        if d2t is not None and problems and np.array_equal(marked, offsets):
            problems.add("d2t contains target ids; it must contain offsets from draft ids")
    problems.raise_any()


def _compare(ids: NDArray[Any], marked: NDArray[Any], problems: Problems) -> None:
    if len(ids) != len(marked):
        problems.add(f"t2d marks {len(marked)} target ids, but d2t maps to {len(ids)}")
    elif (wrong := ids != marked).any():
        i = int(wrong.argmax())
        problems.add(f"d2t and t2d differ for {wrong.sum()} draft ids: draft id {i} maps to {ids[i]} and {marked[i]}")
