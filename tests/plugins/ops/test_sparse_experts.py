"""SparseExperts: each token through its own experts, weighted by their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from peagle.plugins.ops.sparse_experts.spec import GELU
from tests.plugins.plugin_cases import Arrays, few

OP = "SparseExperts"
NAMES = [operand.name for operand in OPS[OP].inputs]
SILU = {"alpha": 1.0, "beta": 0.0, "limit": 0.0}
CLAMPED = {"alpha": 1.702, "beta": 1.0, "limit": 0.5}
GATES = [SILU, CLAMPED, GELU]


def inputs_of(case: Arrays) -> list[Any]:
    return [case.get(name) for name in NAMES]


def make(rng: np.random.Generator, tokens: int, count: int, active: int, *, biased: bool, dtype: Any) -> Arrays:
    hidden, inner = 6, 4
    case = {
        "x": rng.normal(size=(tokens, hidden)).astype(dtype),
        "experts": np.stack([rng.permutation(count)[:active] for _ in range(tokens)]),
        "scores": rng.uniform(0.05, 1, (tokens, active)).astype(dtype),
        "gate_up": rng.normal(size=(count, 2 * inner, hidden)).astype(dtype),
        "down": rng.normal(size=(count, hidden, inner)).astype(dtype),
    }
    if biased:
        case["gate_up_bias"] = rng.normal(size=(count, 2 * inner)).astype(dtype)
        case["down_bias"] = rng.normal(size=(count, hidden)).astype(dtype)
    return case


@st.composite
def cases(draw: Any) -> Arrays:
    count = draw(st.integers(1, 5))
    active = draw(st.integers(1, count))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    return make(rng, draw(st.integers(1, 6)), count, active, biased=draw(st.booleans()), dtype=dtype)


@few
@given(cases(), st.sampled_from(GATES))
def test_body_matches_the_reference(run_body: Any, case: Arrays, attributes: dict[str, float]) -> None:
    (ours,), (theirs,) = run_body(OP, inputs_of(case), **attributes), OPS[OP].reference(*inputs_of(case), **attributes)
    tolerance = 5e-2 if ours.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=tolerance, rtol=tolerance)


@few
@given(cases(), st.sampled_from(GATES), st.sampled_from(["float8_e4m3fn", "int8"]), st.floats(1e-3, 0.3))
def test_body_and_reference_round_the_input_of_the_second_product(
    run_body: Any, case: Arrays, terms: dict[str, float], codes: str, scale: float
) -> None:
    """To codes of which neighbours may differ where the last digit of a number decides: only few may."""
    case = {name: x if x.dtype.kind == "i" else x.astype(np.float32) for name, x in case.items()}
    attributes = terms | {"inner_codes": codes, "inner_scale": scale}
    (ours,), (theirs,) = run_body(OP, inputs_of(case), **attributes), OPS[OP].reference(*inputs_of(case), **attributes)
    assert np.mean(np.abs(ours - theirs).max(axis=1) < 1e-4) >= 0.5
    (unrounded,) = OPS[OP].reference(*inputs_of(case), **terms)
    clipped = {"float8_e4m3fn": 448, "int8": 127}[codes] * scale
    step = max(clipped / 448, 1e-3)
    assert np.abs(theirs - unrounded).max() > 0 or np.abs(unrounded).max() < step


def test_scale_below_float16_is_kept(run_body: Any) -> None:
    case = make(np.random.default_rng(0), 3, 2, 1, biased=False, dtype=np.float16)
    case["gate_up"] = (case["gate_up"] * 1e-3).astype(np.float16)
    attributes = SILU | {"inner_codes": "float8_e4m3fn", "inner_scale": 1e-8}
    (ours,), (theirs,) = run_body(OP, inputs_of(case), **attributes), OPS[OP].reference(*inputs_of(case), **attributes)
    assert np.abs(theirs).max() > 0
    np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=3e-6)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "gemma4"])
def test_the_reference_is_the_experts_of_transformers(family: str) -> None:
    import torch
    from transformers import Gemma4TextConfig, GptOssConfig, Qwen3MoeConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    rng = np.random.default_rng(3)
    case = make(rng, 5, 4, 2, biased=family == "gpt_oss", dtype=np.float32)
    weights = {name: torch.from_numpy(array) for name, array in case.items()}
    if family in ("qwen3_moe", "gemma4"):
        sizes = {"hidden_size": 6, "moe_intermediate_size": 4, "num_experts": 4}
        is_gemma = family == "gemma4"
        module = Gemma4TextExperts(Gemma4TextConfig(**sizes)) if is_gemma else Qwen3MoeExperts(Qwen3MoeConfig(**sizes))
        gate_up = torch.cat([weights["gate_up"][:, 0::2], weights["gate_up"][:, 1::2]], 1)
        state, attributes = {"gate_up_proj": gate_up, "down_proj": weights["down"]}, GELU if is_gemma else SILU
    else:
        module = GptOssExperts(GptOssConfig(hidden_size=6, intermediate_size=4, num_local_experts=4, swiglu_limit=0.5))
        state = {"gate_up_proj": weights["gate_up"].mT, "down_proj": weights["down"].mT}
        state |= {"gate_up_proj_bias": weights["gate_up_bias"], "down_proj_bias": weights["down_bias"]}
        attributes = CLAMPED
    module.load_state_dict({name: tensor.contiguous() for name, tensor in state.items()})
    module.config._experts_implementation = "eager"
    with torch.no_grad():
        expected = module(weights["x"], weights["experts"], weights["scores"]).numpy()
    np.testing.assert_allclose(OPS[OP].reference(*inputs_of(case), **attributes)[0], expected, atol=1e-5)


def test_every_misfit_is_refused_by_name() -> None:
    spec = OPS[OP]
    with pytest.raises(BuildError, match="not twice the 4 columns of down"):
        spec.infer_shapes([(3, 6), (3, 2), (3, 2), (4, 7, 6), (4, 6, 4)])
    with pytest.raises(BuildError, match="5 different experts of 4"):
        spec.infer_shapes([(3, 6), (3, 5), (3, 5), (4, 8, 6), (4, 6, 4)])
    with pytest.raises(BuildError, match="limit must be finite and 0 or more"):
        spec.check_attributes({"limit": -1.0})
    with pytest.raises(BuildError, match=r"inner_codes must be empty or one of float8_e4m3fn, int8; inner_scale must"):
        spec.check_attributes({"inner_codes": "int4", "inner_scale": 0.0})
