"""Batches with draft trees, and the tokens that may differ by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from peagle.plugins.ops.accept_tree.reference import parent_of
from tests.plugins.emission_cases import could_emit, nearly_tolerable
from tests.plugins.plugin_cases import Arrays, own_tokens, reference, windows

OP = "AcceptTree"


def chains(batch: Arrays) -> Arrays:
    """The batch with each window a chain."""
    rows, width = batch["input_ids"].shape
    return batch | {"ancestors": np.tile(np.tri(width, k=-1, dtype=bool), (rows, 1, 1))}


def with_parents(batch: Arrays, b: int, parents: list[int]) -> None:
    """Hangs the drafts of a row, 1 and on, on ``parents``, where 0 is the newest committed token."""
    newest = batch["window_len"][b] - 1 - batch["draft_len"][b]
    ancestors = batch["ancestors"][b]
    for i, parent in enumerate(parents, start=1):
        ancestors[newest + i] = ancestors[newest + parent]
        ancestors[newest + i, newest + parent] = True


def skipped_of(parents: list[int]) -> list[int]:
    """``skipped`` of a window of drafts that hang on ``parents``, where 0 is the newest token."""
    skipped = [0]
    for i, parent in enumerate(parents, start=1):
        skipped.append(skipped[parent] | sum(1 << other for other in range(parent + 1, i)))
    return skipped


@st.composite
def trees(draw: Any, tolerances: tuple[float, ...] = (0.0,)) -> Arrays:
    """Rows as the runtime feeds them, drafts in trees; siblings are different ids, and a depth has one number."""
    batch = chains(draw(windows(tolerances=tolerances)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.3, 0.9]))
    vocab = batch["logits"].shape[2]
    families = []
    for b, drafts in enumerate(batch["draft_len"]):
        parents = [int(rng.integers(max(0, i - 3), i)) for i in range(1, drafts + 1)]
        with_parents(batch, b, parents)
        depths = [0]
        for parent in parents:
            depths.append(depths[parent] + 1)
        batch["uniform"][b, : len(depths)] = batch["uniform"][b, depths]
        families.append(parents)
    y = own_tokens(batch)
    for b, parents in enumerate(families):
        taken: set[tuple[int, int]] = set()
        for i, parent in enumerate(parents, start=1):
            id_ = int(y[b, parent]) if rng.random() < share else int(rng.integers(vocab))
            free = [each for each in (id_, *rng.permutation(vocab).tolist(), vocab + i) if (parent, each) not in taken]
            taken.add((parent, free[0]))
            batch["input_ids"][b, batch["window_len"][b] - 1 - len(parents) + i] = free[0]
    return batch


def with_any_ancestors(batch: Arrays, seed: int) -> Arrays:
    """The batch with ancestors that name anything: no parent, columns behind, themselves, half a path."""
    rng = np.random.default_rng(seed)
    shape = batch["ancestors"].shape
    return batch | {"ancestors": rng.random(shape) < rng.choice([0.0, 0.2, 0.8, 1.0], (shape[0], 1, 1))}


def family(batch: Arrays, b: int) -> tuple[int, list[int]]:
    """The window column of the newest committed token of a row, and of each draft the parent's place behind it."""
    window = min(max(int(batch["window_len"][b]), 0), batch["input_ids"].shape[1])
    drafts = max(min(int(batch["draft_len"][b]), batch["logits"].shape[1] - 1, window - 1), 0)
    newest = window - 1 - drafts
    parents = [parent_of(batch["ancestors"][b], newest, column) - newest for column in range(newest + 1, window)]
    return newest, parents


def assert_straight(batch: Arrays, path: Any, num_tokens: Any) -> None:
    """The path of a chain: one column after the other, from the newest token on."""
    told = chains(batch)
    for b, n in enumerate(num_tokens):
        newest, parents = family(told, b)
        first = newest if batch["forced_next"][b] < 0 else newest + len(parents)
        assert path[b].tolist() == [*range(first, first + n), *[-1] * (len(path[b]) - n)]


def paths(parents: list[int]) -> list[list[int]]:
    """From the root, without it, to every leaf."""
    leaves = [i for i in range(len(parents) + 1) if i not in parents]
    found = []
    for leaf in leaves:
        path: list[int] = []
        while leaf:
            path.insert(0, leaf)
            leaf = parents[leaf - 1]
        found.append(path)
    return found


def partings(batch: Arrays, got: list[Any], name: str = OP) -> int:
    """How many rows differ from the reference. Each must part where rounding decides."""
    tokens, num_tokens, path = reference(name, batch)
    parted = 0
    for b in range(len(tokens)):
        differing = np.flatnonzero(tokens[b] != got[0][b])
        if len(differing) == 0:
            assert got[1][b] == num_tokens[b]
            np.testing.assert_array_equal(got[2][b], path[b])
            continue
        newest, parents = family(batch, b)
        ids = [int(batch["input_ids"][b, newest + 1 + i]) for i in range(len(parents))]
        here = 0
        for token in tokens[b, : int(differing[0])]:
            here = next(i for i, parent in enumerate(parents, 1) if parent == here and ids[i - 1] == token)
        children = [ids[i] for i, parent in enumerate(parents) if parent == here]
        near = any(nearly_tolerable(batch, b, here, each) for each in children if 0 <= each < batch["logits"].shape[2])
        assert near or len(could_emit(batch, b, here)) > 1, (b, here, tokens[b], got[0][b])
        parted += 1
    return parted
