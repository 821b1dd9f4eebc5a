"""The CPU kernel of AcceptTree emits the reference's tokens, the same for all instruction sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tests.plugins.cpu.sessions import paths_here, run_op
from tests.plugins.emission_cases import batch_of
from tests.plugins.ops.accept_tree.trees import OP, chains, partings, trees, with_any_ancestors, with_parents
from tests.plugins.plugin_cases import POLICIES, Arrays, inputs_of, own_tokens, with_wild_lengths

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference computes with NaN on purpose

LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kernel(library: Path, batch: Arrays) -> list[Any]:
    """Return the kernel's output, after checking that all instruction sets and thread counts agree."""
    inputs = inputs_of(OP, batch)
    every = [run_op(library, OP, inputs, path) for path in paths_here(library)]
    every.append(run_op(library, OP, inputs, paths_here(library)[-1], threads=3))
    for other in every[1:]:
        for one, two in zip(every[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    return every[0]


@few
@given(trees(tolerances=LOSSY))
def test_any_tree(cpu_library: Path, batch: Arrays) -> None:
    partings(batch, kernel(cpu_library, batch))


@few
@given(trees(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_any_ancestors_lengths_and_ids(cpu_library: Path, batch: Arrays, seed: int) -> None:
    wild = with_any_ancestors(with_wild_lengths(batch, seed), seed)
    rng = np.random.default_rng(seed)
    extremes = [np.iinfo(np.int64).min, -1, 2**31, np.iinfo(np.int64).max]
    wild["input_ids"] = np.where(rng.random(wild["input_ids"].shape) < 0.3, rng.choice(extremes), wild["input_ids"])
    partings(wild, kernel(cpu_library, wild))


def test_threads_that_each_decide_a_part_of_a_large_tree_agree(cpu_library: Path) -> None:
    """Over a vocabulary that is worth a piece a column; the tree forks everywhere, and one path is the target's."""
    rng = np.random.default_rng(5)
    batch = chains(batch_of(3, sorted(POLICIES), vocab=30_000, k=12, dtype=np.float32))
    parents = [0, 0, 1, 1, 2, 2, 3, 5, 5, 8, 9, 9]
    depths = [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    batch["uniform"] = batch["uniform"][:, depths]
    y = own_tokens(batch)
    for b in range(len(y)):
        with_parents(batch, b, parents)
        path = {2, 5, 8, 10} if b % 2 else {1, 3, 7}
        for i, parent in enumerate(parents, 1):
            batch["input_ids"][b, 1 + i] = y[b, parent] if i in path else rng.integers(30_000)
    emission = kernel(cpu_library, batch)
    assert partings(batch, emission) == 0
    assert {5, 4} <= {*emission[1].tolist()}


def test_ancestors_that_do_not_fit_are_refused(cpu_library: Path) -> None:
    batch = chains(batch_of(1, ["greedy"] * 2, vocab=8, k=1, dtype=np.float32))
    for wrong in (batch["ancestors"][:1], batch["ancestors"][:, 1:], batch["ancestors"][:, :, 1:]):
        with pytest.raises(Fail, match="ancestors must have a matrix"):
            kernel(cpu_library, batch | {"ancestors": wrong})
