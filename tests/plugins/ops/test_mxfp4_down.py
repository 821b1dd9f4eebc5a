"""Mxfp4Down: the sum over a token's experts. Tests of both products are in test_mxfp4_gate_up.py."""

from __future__ import annotations

import numpy as np
import pytest

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.mxfp4_gate_up.blocks import matrix
from tests.plugins.plugin_cases import reference
from tests.plugins.routed_experts import DOWN, down_batch


def test_experts_are_added_in_their_order_and_rounded_once() -> None:
    """In FP16 the sum of 2048 and 1 and 1 is 2048 if every sum is rounded, and 2050 if the last one is."""
    batch = down_batch(np.random.default_rng(0), np.float16, tokens=1, chosen=3, count=3, columns=32, width=1)
    batch["codes"][:], batch["bias"][:] = 0, np.array([[2048], [1], [1]], np.float16)
    batch["scores"][:], batch["experts"][:] = 1, [[0, 1, 2]]
    assert reference(DOWN, batch)[0].tolist() == [[2050]]


def test_two_choices_of_one_expert_are_two_terms() -> None:
    batch = down_batch(np.random.default_rng(1), np.float32, tokens=2, chosen=2, count=2, width=5)
    batch["experts"][:] = 1
    exact = np.einsum("nai,hi->nah", batch["inner"], matrix(batch["codes"], batch["exponents"])[1]) + batch["bias"][1]
    wanted = (exact * batch["scores"][..., None]).sum(axis=1)
    np.testing.assert_allclose(reference(DOWN, batch)[0], wanted, atol=1e-4)


def test_blocks_must_fit_the_inner_columns() -> None:
    batch = down_batch(np.random.default_rng(0), np.float32)
    shapes = [(5, 2, 96) if name == "inner" else array.shape for name, array in batch.items()]
    with pytest.raises(BuildError, match="2 blocks of 32 do not have the 96 columns of the other factor") as caught:
        OPS[DOWN].infer_shapes(shapes)
    assert "64 blocks" not in caught.value.what
