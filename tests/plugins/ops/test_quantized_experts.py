"""QuantizedExperts: a token's bits depend only on that token, in any window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_experts.cpu_cases import cpu_cases, random_stack
from peagle.plugins.ops.quantized_linear.packed_weights import FORMATS, code_shape, scale_shape, unpack
from peagle.plugins.ops.sparse_experts.spec import CLAMPED, GELU
from tests.plugins.cpu.sessions import paths_here
from tests.plugins.ops.expert_windows import (
    Case,
    kernel,
    reference,
    require_independent_tokens,
    require_nan_for_unknown_experts,
)
from tests.plugins.same_bits import same_bits

OP = "QuantizedExperts"
EXPERTS = 5
GATES: dict[str, dict[str, float]] = {"silu": {}, "clamped": CLAMPED, "gelu": GELU}  # with biases where clamped
few = settings(max_examples=15, deadline=None)


def make(
    rng: Any,
    formats: tuple[str, str] = ("q4_1", "q8_0"),
    *,
    tokens: int = 6,
    chosen: int = 3,
    gate: str = "silu",
    hidden: int = 40,
) -> Case:
    columns, inner = 256, 256
    stacks = [*random_stack(formats[0], 2 * inner, columns), *random_stack(formats[1], hidden, inner)]
    biases = [
        rng.normal(size=(EXPERTS, n)).astype(np.float32) if gate == "clamped" else None for n in (2 * inner, hidden)
    ]
    attributes = {"gate_up_format": formats[0], "down_format": formats[1], "inner": inner, "hidden": hidden}
    attributes |= GATES[gate]
    x = rng.normal(size=(tokens, columns)).astype(np.float32)
    experts = np.array([rng.permutation(EXPERTS)[:chosen] for _ in range(tokens)], np.int64).reshape(tokens, chosen)
    return attributes, [*stacks, *biases], [x, experts, rng.random((tokens, chosen), np.float32)]


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    formats=st.tuples(st.sampled_from(FORMATS), st.sampled_from(FORMATS)),
    tokens=st.integers(0, 12),
    chosen=st.integers(1, EXPERTS),
    gate=st.sampled_from([*GATES]),
    wild=st.sampled_from([None, np.nan, np.inf, 1e30]),
)
def test_the_kernel_gives_the_bits_of_the_reference_on_every_path(
    cpu_library: Path, seed: int, formats: tuple[str, str], tokens: int, chosen: int, gate: str, wild: float | None
) -> None:
    rng = np.random.default_rng(seed)
    case = make(rng, formats, tokens=tokens, chosen=chosen, gate=gate)
    if wild is not None and tokens:
        case[2][0][rng.integers(tokens), rng.integers(256)] = wild
    expected = reference(OP, case)
    for path in paths_here(cpu_library):
        same_bits(kernel(OP, cpu_library, case, path)(*case[2]), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_token_is_independent_of_other_tokens(cpu_library: Path, name: str) -> None:
    rng = np.random.default_rng(1)
    require_independent_tokens(OP, cpu_library, make(rng, (name, name), tokens=150, chosen=2), rng)


@few
@given(
    choices=st.lists(st.tuples(st.integers(-1, EXPERTS), st.integers(-1, EXPERTS)), min_size=1, max_size=60),
    threads=st.sampled_from([1, 3]),
)
def test_uneven_choices_change_no_token(cpu_library: Path, choices: list[tuple[int, int]], threads: int) -> None:
    """Experts that all tokens chose, or none; the same one twice; ids of experts that do not exist."""
    case = make(np.random.default_rng(3), tokens=len(choices), chosen=2)
    case[2][1][:] = choices
    alone = kernel(OP, cpu_library, case, "portable")
    expected = np.concatenate([alone(*(each[i : i + 1] for each in case[2])) for i in range(len(choices))])
    assert np.isnan(expected).any(axis=1).tolist() == [not all(0 <= e < EXPERTS for e in pair) for pair in choices]
    for path in paths_here(cpu_library):
        same_bits(kernel(OP, cpu_library, case, path, threads)(*case[2]), expected)


def test_expert_that_does_not_exist_makes_its_row_nan(cpu_library: Path) -> None:
    require_nan_for_unknown_experts(OP, cpu_library, make(np.random.default_rng(2)), EXPERTS)


def _unpacked(name: str, codes: Any, scales: Any, rows: int) -> Any:
    return np.stack([unpack(name, *each, rows) for each in zip(codes, scales, strict=True)])


def test_experts_match_sparse_experts_on_unpacked_matrices(cpu_library: Path) -> None:
    for gate in GATES:
        case = make(np.random.default_rng(3), gate=gate, hidden=256)
        attributes, (codes, scales, down_codes, down_scales, *biases), tokens = case
        tokens[0] *= np.float32(0.02)  # where the gate is not all or nothing
        gate_up = _unpacked(attributes["gate_up_format"], codes, scales, 2 * attributes["inner"])
        down = _unpacked(attributes["down_format"], down_codes, down_scales, attributes["hidden"])
        shared = {name: attributes[name] for name in GELU if name in attributes}
        terms = OPS["SparseExperts"].check_attributes(shared)
        exact = OPS["SparseExperts"].reference(*tokens, gate_up, down, *biases, **terms)[0]
        error = np.abs(kernel(OP, cpu_library, case, "portable")(*tokens) - exact)
        assert error.max() < 0.05 * np.abs(exact).max()  # inputs are rounded to int8
        assert error.max() > 0


@pytest.mark.parametrize("case", [*cpu_cases()], ids=lambda case: case.attributes["gate_up_format"])
def test_body_matches_the_reference_except_last_digits(run_body: Any, case: Any) -> None:
    (body,) = run_body(OP, [*case.inputs], **case.attributes)
    (expected,) = OPS[OP].reference(*case.inputs, **OPS[OP].check_attributes(dict(case.attributes)))
    # A last digit can move a code of the rounded inner values by one.
    np.testing.assert_allclose(body, expected, rtol=0, atol=0.01 * np.abs(expected).max())
    assert np.abs(body - expected).mean() < 1e-3 * np.abs(expected).mean()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"gate_up_format": "q4_0"}, "scales .* do not match q4_0"),
    "an unknown format": ({"down_format": "q9"}, "format is 'q9'"),
    "more rows": ({"hidden": 60}, "3 tiles per expert do not match 60 rows"),
    "another inner size": ({"inner": 128}, "32 tiles per expert do not match 256 rows"),
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
    with pytest.raises(Exception, match="x has 224 columns, but gate_up has 256"):
        run(x[:, :224].copy(), experts, scores)
    with pytest.raises(Exception, match="a row for each of the 6 tokens"):
        run(x, experts[:5], scores[:5])
    with pytest.raises(Exception, match="a row for each of the 6 tokens"):
        run(x, experts, scores[:, :2].copy())


def test_the_spec_knows_the_shapes() -> None:
    attributes, (codes, scales, down_codes, down_scales, *_), tokens = make(np.random.default_rng(6))
    assert codes.shape == (EXPERTS, *code_shape("q4_1", 512, 256))
    assert scales.shape == (EXPERTS, *scale_shape("q4_1", 512, 256))
    stacks = [each.shape for each in (codes, scales, down_codes, down_scales)]
    spec = OPS[OP]
    given = spec.check_attributes(attributes)
    assert spec.infer_shapes([*(each.shape for each in tokens), *stacks], given) == [(6, 40)]
    with pytest.raises(BuildError, match="gate_up: x has 96 columns, but the matrix has 256"):
        spec.infer_shapes([(6, 96), (6, 3), (6, 3), *stacks], given)
    with pytest.raises(BuildError, match="a token cannot have 6 different experts of 5"):
        spec.infer_shapes([(6, 256), (6, 6), (6, 6), *stacks], given)
