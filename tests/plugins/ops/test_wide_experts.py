"""WideExperts: a token's bits depend only on that token, in any window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.sparse_experts.spec import CLAMPED, GELU
from peagle.plugins.ops.wide_experts.cpu_cases import cpu_cases
from peagle.plugins.ops.wide_linear.packed_matrix import pack_matrix, packed_shape, unpack_matrix
from tests.plugins.cpu.sessions import paths_here
from tests.plugins.ops.expert_windows import (
    Case,
    kernel,
    reference,
    require_independent_tokens,
    require_nan_for_unknown_experts,
)
from tests.plugins.same_bits import same_bits

OP = "WideExperts"
EXPERTS, COLUMNS, INNER = 5, 33, 20
GATES: dict[str, dict[str, float]] = {"silu": {}, "clamped": CLAMPED, "gelu": GELU}  # with biases where clamped
few = settings(max_examples=15, deadline=None)


def make(rng: Any, *, tokens: int = 6, chosen: int = 3, gate: str = "silu", hidden: int = 41) -> Case:
    shapes = (EXPERTS, 2 * INNER, COLUMNS), (EXPERTS, hidden, INNER)
    wide = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    stacks = [np.stack([pack_matrix(matrix) for matrix in stack]) for stack in wide]
    biases = [rng.normal(size=shape[:2]).astype(np.float32) if gate == "clamped" else None for shape in shapes]
    attributes: dict[str, Any] = {"inner": INNER, "hidden": hidden}
    attributes |= GATES[gate]
    x = rng.normal(size=(tokens, COLUMNS)).astype(np.float32)
    experts = np.array([rng.permutation(EXPERTS)[:chosen] for _ in range(tokens)], np.int64).reshape(tokens, chosen)
    return attributes, [*stacks, *biases], [x, experts, rng.random((tokens, chosen), np.float32)]


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(0, 12),
    chosen=st.integers(1, EXPERTS),
    gate=st.sampled_from([*GATES]),
    wild=st.sampled_from([None, np.nan, np.inf, 1e30]),
)
def test_the_kernel_gives_the_bits_of_the_reference_on_every_path(
    cpu_library: Path, seed: int, tokens: int, chosen: int, gate: str, wild: float | None
) -> None:
    rng = np.random.default_rng(seed)
    case = make(rng, tokens=tokens, chosen=chosen, gate=gate)
    if wild is not None and tokens:
        case[2][0][rng.integers(tokens), rng.integers(COLUMNS)] = wild
    expected = reference(OP, case)
    for path in paths_here(cpu_library):
        same_bits(kernel(OP, cpu_library, case, path)(*case[2]), expected)


def test_token_is_independent_of_other_tokens(cpu_library: Path) -> None:
    rng = np.random.default_rng(1)
    require_independent_tokens(OP, cpu_library, make(rng, tokens=150, chosen=2), rng)


def test_expert_that_does_not_exist_makes_its_row_nan(cpu_library: Path) -> None:
    require_nan_for_unknown_experts(OP, cpu_library, make(np.random.default_rng(2)), EXPERTS)


@pytest.mark.parametrize("gate", GATES)
def test_experts_match_sparse_experts_on_the_unpacked_matrices(cpu_library: Path, gate: str) -> None:
    case = make(np.random.default_rng(3), gate=gate, hidden=COLUMNS)
    attributes, (gate_up, down, *biases), tokens = case
    rows = ((gate_up, 2 * INNER), (down, COLUMNS))
    stacks = [np.stack([unpack_matrix(matrix, count) for matrix in stack]) for stack, count in rows]
    shared = {name: attributes[name] for name in GELU if name in attributes}
    terms = OPS["SparseExperts"].check_attributes(shared)
    exact = OPS["SparseExperts"].reference(*tokens, *stacks, *biases, **terms)[0]
    y = kernel(OP, cpu_library, case, "portable")(*tokens)
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("case", [*cpu_cases()], ids=["plain", "biases and clamps", "gelu"])
def test_body_matches_the_reference_except_last_digits(run_body: Any, case: Any) -> None:
    (body,) = run_body(OP, [*case.inputs], **case.attributes)
    (expected,) = OPS[OP].reference(*case.inputs, **OPS[OP].check_attributes(dict(case.attributes)))
    np.testing.assert_allclose(body, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more rows": ({"hidden": 60}, "3 tiles per expert do not match 60 rows"),
    "another inner size": ({"inner": 30}, "3 tiles per expert do not match 60 rows"),
    "an inner size within the last tile": ({"inner": 21}, "5 experts of 20 columns"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_stacks_are_rejected_at_load(cpu_library: Path, what: str) -> None:
    change, complaint = REFUSED[what]
    attributes, constants, tokens = make(np.random.default_rng(4))
    with pytest.raises(Exception, match=complaint):
        kernel(OP, cpu_library, (attributes | change, constants, tokens), "portable")


def test_misfit_inputs_are_rejected_at_run(cpu_library: Path) -> None:
    case = make(np.random.default_rng(5))
    x, experts, scores = case[2]
    run = kernel(OP, cpu_library, case, "portable")
    with pytest.raises(Exception, match="x has 32 columns, but gate_up has 33"):
        run(x[:, :32].copy(), experts, scores)
    with pytest.raises(Exception, match="a row for each of the 6 tokens"):
        run(x, experts[:5], scores[:5])


def test_the_spec_knows_the_shapes() -> None:
    attributes, (gate_up, down, *_), tokens = make(np.random.default_rng(6))
    assert gate_up.shape == (EXPERTS, *packed_shape(2 * INNER, COLUMNS))
    assert down.shape == (EXPERTS, *packed_shape(41, INNER))
    spec, given = OPS[OP], OPS[OP].check_attributes(attributes)
    shapes = [each.shape for each in (*tokens, gate_up, down)]
    assert spec.infer_shapes(shapes, given) == [(6, 41)]
    with pytest.raises(BuildError, match="a token cannot have 6 different experts of 5"):
        spec.infer_shapes([(6, COLUMNS), (6, 6), (6, 6), gate_up.shape, down.shape], given)
