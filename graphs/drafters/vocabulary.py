"""The vocabulary of a drafter: whether the tensors ``d2t`` and ``t2d`` lead from draft ids to target ids, and agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...plugins.problems import Problems
from .drafter_spec import DrafterSpec, drafter_problems, trained_head


def check_vocabulary(drafter: DrafterSpec, d2t: NDArray[Any] | None, t2d: NDArray[Any] | None) -> None:
    """Check ``d2t`` [Vd] (target id = draft id + d2t) and ``t2d`` [V] (which target ids are among them).

    Draft ids are target ids in ascending order, so that ties of arg-max fall alike in both vocabularies. Raises
    ``BuildError`` naming everything that contradicts this.
    """
    problems = drafter_problems()
    problems.fix = trained_head(drafter.strategy)
    offsets = np.zeros(drafter.draft_vocab_size, np.int64) if d2t is None else np.asarray(d2t).reshape(-1)
    marked = None if t2d is None else np.flatnonzero(np.asarray(t2d).reshape(-1))
    if not np.issubdtype(offsets.dtype, np.integer):
        problems.add(f"d2t holds {offsets.dtype}, not integers")
        problems.raise_any()
    ids = np.arange(len(offsets)) + offsets.astype(np.int64)
    outside = (ids < 0) | (ids >= drafter.vocab_size)
    if outside.any():
        i = int(outside.argmax())
        problems.add(
            f"{outside.sum()} draft ids leave the vocabulary of {drafter.vocab_size}, the first {i} to {ids[i]}"
        )
    disorder = np.diff(ids) <= 0
    if disorder.any():
        i = int(disorder.argmax())
        problems.add(f"d2t does not ascend: draft ids {i} and {i + 1} are target ids {ids[i]} and {ids[i + 1]}")
    if marked is not None:
        _compare(ids, marked, problems)
        if d2t is not None and problems and np.array_equal(marked, offsets):
            problems.add("d2t holds target ids: it must hold what to add to a draft id")
    problems.raise_any()


def _compare(ids: NDArray[Any], marked: NDArray[Any], problems: Problems) -> None:
    if len(ids) != len(marked):
        problems.add(f"t2d marks {len(marked)} target ids, d2t leads to {len(ids)}")
    elif (wrong := ids != marked).any():
        i = int(wrong.argmax())
        problems.add(f"d2t and t2d differ for {wrong.sum()} draft ids, the first {i}: {ids[i]} and {marked[i]}")
