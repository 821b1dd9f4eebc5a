"""Gemma-4: the sizes of its layers equal transformers', for all forms of its configuration."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.compiler.checkpoints.target import Target
from peagle.graphs.targets import CacheSpec, family_for
from tests.graphs.running import target_inputs
from tests.graphs.traced import target_graph
from tests.models import CONFIGS, VOCAB, save_target

SLIDING, FULL = CacheSpec(2, 16), CacheSpec(1, 32)


def config_of(layers: int, **changes: Any) -> dict[str, Any]:
    """A configuration whose layers are sliding and full in turn, the last one full."""
    config = copy.deepcopy(CONFIGS["gemma-4"])
    kinds = ["full_attention" if i % 2 or i == layers - 1 else "sliding_attention" for i in range(layers)]
    config["text_config"] |= {"num_hidden_layers": layers, "layer_types": kinds} | changes
    return config


def test_more_than_ten_layers_as_transformers_saves_them(tmp_path: Path) -> None:
    """Their numbers are padded with zeros then; the tensors have the shapes that follow from each layer's."""
    target = Target.open(save_target(tmp_path / "target", config_of(11)))
    target.check()
    assert "05" in target.config["text_config"]["per_layer_config"]
    assert target.spec.caches == tuple(FULL if i % 2 or i == 10 else SLIDING for i in range(11))


@pytest.mark.slow
def test_logits_of_more_than_ten_layers_match_transformers(tmp_path: Path, rng: np.random.Generator) -> None:
    graph, target = target_graph(tmp_path, config_of(11), "ort")
    ids = rng.integers(2, VOCAB, 20)
    model = target.family.load(target.folder, target.config)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids[None]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(graph(**target_inputs(ids[None], 0, 19, 20))["logits"][0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({}, FULL),
        ({"attention_k_eq_v": False}, CacheSpec(2, 32)),
        ({"num_global_key_value_heads": None}, CacheSpec(2, 32)),
        ({"per_layer_config": {}}, SLIDING),
        ({"per_layer_config": {"03": {"head_dim": 48}}}, CacheSpec(2, 48)),
    ],
)
def test_caches_match_transformers(changes: dict[str, Any], full: CacheSpec) -> None:
    config = config_of(4, **changes)
    family = family_for(config)
    caches = family.describe(config).caches
    assert caches[3] == full
    settings = family.settings(copy.deepcopy(config))
    layers = [settings.per_layer_config[i] for i in range(4)]
    assert caches == tuple(CacheSpec(layer.num_key_value_heads, layer.head_dim) for layer in layers)


def test_last_layer_is_always_full_attention() -> None:
    config = config_of(4, layer_types=["sliding_attention"] * 4)
    assert family_for(config).describe(config).caches == (SLIDING, SLIDING, SLIDING, FULL)
