"""The target graph equals transformers, for any lowering and any division of tokens into windows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.graphs.drafters import torch_reference
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced, target_graph
from tests.models import CONFIGS, VOCAB


def _reference(traced: Traced, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits, features = torch_reference.target_pass(traced.reference(), traced.target, [int(i) for i in ids])
    return logits.numpy(), features.numpy()


@pytest.mark.parametrize("lowering", ["std", "ort"])
def test_logits_and_features_match_transformers(every: Traced, lowering: str, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 23)
    logits, features = _reference(every, ids)
    graph = Graph(every.built("target", lowering), every.target.caches, CACHE)
    out = graph(**target_inputs(ids[None], 0, 22, 23))
    np.testing.assert_allclose(out["logits"][0], logits, atol=1e-4)
    np.testing.assert_allclose(out["aux_hidden"][0], features, atol=1e-4)


@pytest.mark.parametrize("lowering", ["std", "ort"])
def test_windows_over_the_cache_equal_one_pass(every: Traced, lowering: str, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 23)
    logits, features = _reference(every, ids)
    graph = Graph(every.built("target", lowering), every.target.caches, CACHE)
    for begin, end in ((0, 9), (9, 10), (10, 16), (16, 23)):
        width = end - begin
        out = graph(**target_inputs(ids[None, begin:end], begin, width - 1, width))
        np.testing.assert_allclose(out["logits"][0], logits[begin:end], atol=1e-4)
        np.testing.assert_allclose(out["aux_hidden"][0], features[begin:end], atol=1e-4)


def test_rejected_positions_are_overwritten_without_clearing(every: Traced, rng: np.random.Generator) -> None:
    ids, wrong = rng.integers(2, VOCAB, 12), rng.integers(2, VOCAB, 6)
    logits, _ = _reference(every, ids)
    graph = Graph(every.built("target", "ort"), every.target.caches, CACHE)
    graph(**target_inputs(ids[None, :6], 0, 0, 1))
    graph(**target_inputs(wrong[None], 6, 5, 6))
    out = graph(**target_inputs(ids[None, 6:], 6, 5, 6))
    np.testing.assert_allclose(out["logits"][0], logits[6:], atol=1e-4)


def test_garbage_in_unused_cache_slots_changes_nothing(every: Traced, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 12)
    clean = Graph(every.built("target", "ort"), every.target.caches, CACHE)
    poisoned = Graph(every.built("target", "ort"), every.target.caches, CACHE)
    for cache in poisoned.caches.values():
        cache[:] = 1e6
    inputs = target_inputs(ids[None], 0, 3, 4)
    np.testing.assert_array_equal(clean(**inputs)["logits"], poisoned(**inputs)["logits"])


def test_std_rows_of_a_batch_equal_each_row_alone(every: Traced, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, (3, 7))
    path = every.built("target", "std")
    inputs = target_inputs(ids, 0, 3, 4)
    inputs["window_len"] = np.array([7, 5, 6], np.int32)
    together = Graph(path, every.target.caches, CACHE, rows=3)(**inputs)
    for row in range(3):
        alone = Graph(path, every.target.caches, CACHE)(**{n: a[row : row + 1] for n, a in inputs.items()})
        np.testing.assert_allclose(together["logits"][row], alone["logits"][0], atol=1e-5)
        assert together["tokens"][row].tolist() == alone["tokens"][0].tolist()


def test_a_known_next_token_takes_the_place_of_the_sampled_one(qwen3: Traced, rng: np.random.Generator) -> None:
    inputs = target_inputs(rng.integers(2, VOCAB, (1, 6)), 0, 0, 4)
    inputs["forced_next"] = np.array([17], np.int64)
    out = Graph(qwen3.built("target", "ort"), qwen3.target.caches, CACHE)(**inputs)
    assert out["tokens"].tolist() == [[17, -1, -1, -1]]
    assert out["num_tokens"].tolist() == [1]


def test_features_are_the_streams_entering_the_taps(every: Traced, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 9)
    model = every.reference()
    states = model.model(torch.from_numpy(ids[None]), output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[i] for i in every.target.taps], -1)[0].detach().numpy()
    out = Graph(every.built("target", "ort"), every.target.caches, CACHE)(**target_inputs(ids[None], 0, 0, 1))
    np.testing.assert_allclose(out["aux_hidden"][0], expected, atol=1e-4)
    shifted = torch.cat([states[i + 1] for i in every.target.taps], -1)[0].detach().numpy()
    assert np.abs(out["aux_hidden"][0] - shifted).max() > 0.01


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        pytest.param("qwen3", {"attention_bias": True}, marks=pytest.mark.slow),  # as Llama's, and gpt-oss has it
        ("qwen3-moe", {"attention_bias": True, "num_experts": 1, "num_experts_per_tok": 1, "mlp_only_layers": []}),
        pytest.param("gpt-oss", {"attention_bias": False}, marks=pytest.mark.slow),
        ("gemma-4", {"attention_bias": True}),  # a norm behind the attention's bias: no residual stream is added there
    ],
)
def test_variants_of_a_family_match_transformers(
    family: str, changes: dict[str, Any], rng: np.random.Generator, tmp_path: Path
) -> None:
    config = copy.deepcopy(CONFIGS[family])
    text = config.get("text_config", config)
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "layer_types" in text else {}
    text |= {"num_hidden_layers": 2 if "sliding_window" in text else 1} | kinds | changes  # a layer of each kind
    graph, target = target_graph(tmp_path, config, "ort")
    ids = rng.integers(2, VOCAB, 20)
    with torch.no_grad():
        model = target.family.load(target.folder, target.config)
        expected = model(torch.from_numpy(ids[None]), use_cache=False).logits[0].numpy()
    assert np.ptp(expected, axis=-1).min() > 0.5
    np.testing.assert_allclose(graph(**target_inputs(ids[None], 0, 19, 20))["logits"][0], expected, atol=1e-4)
