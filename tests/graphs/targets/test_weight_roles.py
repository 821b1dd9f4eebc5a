"""Every weight has the role of its module, and all weights are counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import peagle.compiler
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.targets.weight_roles import RoledWeight
from tests.graphs.traced import Traced
from tests.models import CONFIGS, LAYERS, VOCAB

MODELS = Path(peagle.compiler.__file__).parent / "bundled" / "models"


def _counts(weights: tuple[RoledWeight, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for weight in weights:
        counts[weight.role] += weight.count
    return counts


def _role_of(family: str) -> dict[str, str]:
    return {weight.name: weight.role for weight in Skeleton(CONFIGS[family]).weights}


@pytest.mark.parametrize("family", CONFIGS)
def test_every_weight_is_counted_once(family: str) -> None:
    stored = Skeleton(CONFIGS[family]).modules_for_tracing().state_dict()
    tied = family_for(CONFIGS[family]).tied(CONFIGS[family])
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items() if name not in tied}
    assert {weight.name: weight.shape for weight in Skeleton(CONFIGS[family]).weights} == shapes


def test_census_matches_the_lowered_graph(every: Traced) -> None:
    planned = 4 * sum(weight.count for weight in Skeleton(every.pair.config).weights)
    assert planned == every.lowered("target", "ort").total_bytes


def test_the_numbers_of_qwen3_coder_are_exact() -> None:
    weights = Skeleton(json.loads((MODELS / "qwen3-coder-30b" / "config.json").read_text())).weights
    layer = _counts(tuple(weight for weight in weights if weight.name.startswith("model.layers.17.")))
    assert layer == {"attention": 18_874_368, "experts": 603_979_776, "router": 262_144, "other": 4_352}
    whole = _counts(weights)
    assert whole["embedding"] == whole["lm_head"] == 311_164_928
    assert whole["other"] == 48 * 4_352 + 2_048  # and the last norm
    assert whole.total() == 30_532_122_624


def test_a_tied_head_is_counted_as_embedding() -> None:
    for family in ("qwen3", "gemma-4"):
        counts = _counts(Skeleton(CONFIGS[family]).weights)
        assert counts["embedding"] == 48 * VOCAB
        assert "lm_head" not in counts


def test_a_dense_layer_among_sparse_ones_is_mlp() -> None:
    roles = _role_of("qwen3-moe")
    assert roles["model.layers.3.mlp.gate_proj.weight"] == "mlp"
    assert roles["model.layers.2.mlp.experts.gate_up_proj"] == "experts"
    assert roles["model.layers.2.mlp.gate.weight"] == "router"
    assert list(roles.values()).count("mlp") == 3


def test_a_router_of_linear_modules_is_a_router_without_ranges() -> None:
    """It is not quantized, so nothing is measured for it."""
    roles, ranges = _role_of("gemma-4-moe"), Skeleton(CONFIGS["gemma-4-moe"]).range_shapes
    assert roles["model.layers.0.router.proj.weight"] == "router"
    assert roles["model.layers.0.experts.down_proj"] == "experts"
    assert "model.layers.0.mlp.down_proj.weight" in ranges.inputs
    assert ranges.inputs["model.layers.0.experts.gate_up_proj"] == (6,)
    assert not any(".router." in name for name in ranges.inputs)


def test_biases_sinks_norms_and_scalars_are_other() -> None:
    roles = _role_of("gpt-oss") | {f"gemma {name}": role for name, role in _role_of("gemma-4-moe").items()}
    for name in (
        "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.sinks", "model.layers.0.mlp.router.bias",
        "model.layers.0.mlp.experts.gate_up_proj_bias", "model.norm.weight", "gemma model.layers.0.layer_scalar",
        "gemma model.layers.0.self_attn.q_norm.weight", "gemma model.layers.0.router.scale",
        "gemma model.layers.0.router.per_expert_scale",
    ):  # fmt: skip
        assert roles[name] == "other", name


def test_experts_are_gate_up_and_down_matrices_each() -> None:
    weights = Skeleton(CONFIGS["gpt-oss"]).weights
    assert sum(weight.matrices for weight in weights if weight.role == "experts") == LAYERS * 6 * 3
    assert sum(weight.matrices for weight in weights if weight.role == "attention") == LAYERS * 4
    assert not any(weight.matrices for weight in weights if weight.role == "other")
