"""Rows of every sampling policy for ``AcceptPrefix``, and the tokens that rounding permits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.plugins.plugin_cases import POLICIES, Arrays, own_tokens, race, reference

ACCEPT = "AcceptPrefix"

# Sums of float32 exponentials, and exponentials and logarithms themselves, may differ by this share.
ROUNDING = 2e-6


def floors(z: Any, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The smallest z that a draw may keep, in float64: one value, or several near a rounding boundary.

    z, float32 [V], is exact in every program, and so is the k-th of it; the exponentials and the logarithm are not.
    """
    wide = z.astype(np.float64)
    best = wide.max()
    clipped = np.clip(np.float64(np.float32(min_p)), 0, 1)
    log_min_p = np.log(clipped) if clipped > 0 else -np.inf
    slack = ROUNDING * (1 + abs(best) + (abs(log_min_p) if clipped > 0 else 0))
    results = []
    for floor in (best + log_min_p - slack, best + log_min_p + slack * (clipped < 1)):
        floor = min(floor, best)
        if 0 < top_k < len(z):
            floor = max(floor, np.sort(wide)[-top_k])
        if top_p >= 1:
            results.append(floor)
            continue
        descending = np.sort(wide)[::-1]
        left = descending[descending >= floor]
        before = np.cumsum(np.exp(left - best)) - np.exp(left - best)
        goal = np.exp(left - best).sum() * max(np.float64(np.float32(top_p)), 0)
        edges = (goal * (1 - ROUNDING), goal * (1 + ROUNDING))
        results += [max(floor, left[before < edge].min(initial=best)) for edge in edges]
    return results


def could_emit(batch: Arrays, b: int, j: int) -> set[int]:
    """All tokens that a correct program may draw for a column: one, unless rounding can decide."""
    logits = batch["logits"][b, j].astype(np.float32)
    if batch["temperature"][b] == 0:
        return {int(np.argmax(logits))}
    z = logits / batch["temperature"][b]
    score = z.astype(np.float64) + race(batch["uniform"][b, j], len(z))
    tokens: set[int] = set()
    for floor in floors(z, int(batch["top_k"][b]), float(batch["top_p"][b]), float(batch["min_p"][b])):
        kept = np.where(z >= floor, score, -np.inf)
        tokens |= set(np.flatnonzero(kept >= kept.max() - ROUNDING * (16 + abs(kept.max()))).tolist())
    return tokens


def nearly_tolerable(batch: Arrays, b: int, j: int, draft: int | None = None) -> bool:
    """Whether rounding decides if the lossy policy takes a draft after column j, the next of the window unless told."""
    if not batch["tolerance"][b] > 0:
        return False
    heat = batch["temperature"][b] or 1
    z = batch["logits"][b, j].astype(np.float32) / heat
    if draft is None:
        draft = int(batch["input_ids"][b, batch["window_len"][b] - batch["draft_len"][b] + j])
    least = z.max() + np.log1p(-min(float(batch["tolerance"][b]), 0.999999))
    return bool(abs(z[draft] - least) < ROUNDING * (16 + abs(least)))


def partings(batch: Arrays, got: list[Any]) -> int:
    """How many rows differ from the reference. Each must part where rounding decides, and by a token it may choose."""
    tokens, num_tokens = reference(ACCEPT, batch)
    parted = 0
    for b in range(len(tokens)):
        differing = np.flatnonzero(tokens[b] != got[0][b])
        if len(differing) == 0:
            assert got[1][b] == num_tokens[b]
            continue
        j = int(differing[0])
        choices = could_emit(batch, b, j)
        assert len(choices) > 1 or nearly_tolerable(batch, b, j), (b, j, tokens[b], got[0][b])
        assert nearly_tolerable(batch, b, j) or {int(tokens[b, j]), int(got[0][b, j])} <= choices
        parted += 1
    return parted


def batch_of(
    seed: int, policies: list[str], *, vocab: int, k: int, dtype: Any, spread: float = 4.0, ties: bool = False
) -> Arrays:
    """A decode row for each policy, whose drafts agree with the target for a while."""
    rng = np.random.default_rng(seed)
    rows = len(policies)
    logits = rng.normal(size=(rows, k + 1, vocab)) * spread
    values = np.array([POLICIES[name] for name in policies])
    batch: Arrays = {
        "logits": (np.round(logits) if ties else logits).astype(dtype),
        "input_ids": rng.integers(0, vocab, (rows, k + 3)),
        "window_len": np.full(rows, k + 2, np.int32),
        "draft_len": np.full(rows, k, np.int32),
        "forced_next": np.full(rows, -1),
        "uniform": rng.random((rows, k + 1), np.float32),
        "temperature": values[:, 0].astype(np.float32),
        "top_k": values[:, 1].astype(np.int32),
        "top_p": values[:, 2].astype(np.float32),
        "min_p": values[:, 3].astype(np.float32),
        "tolerance": np.zeros(rows, np.float32),
    }
    y = own_tokens(batch)
    for b in range(rows):
        agreeing = int(rng.integers(0, k + 1))
        batch["input_ids"][b, 2 : 2 + agreeing] = y[b, :agreeing]
    return batch


def column(logits: Any, policy: str = "greedy", **changes: float) -> Arrays:
    """One row that emits one token from these logits."""
    batch = batch_of(9, [policy], vocab=len(logits), k=1, dtype=np.float32)
    batch["logits"] = np.repeat(np.asarray(logits)[None, None], 2, 1)
    batch["draft_len"][:] = 0
    for name, value in changes.items():
        batch[name][:] = value
    return batch
