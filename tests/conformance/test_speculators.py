"""Our drafter's graphs give the logits of the ``speculators`` package's own P-EAGLE class, given the same weights.

The golden files were recorded from that package by ``tools/golden_speculators.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from peagle.graphs import reference, trace, weights
from peagle.graphs.families import CacheSpec, TargetSpec
from peagle.graphs.heads import HeadSpec
from peagle.graphs.lowering import Lowering, lower
from tests.graphs.running import Graph

TOLERANCE = 1e-4
HIDDEN, VOCAB, DEPTHS = 32, 64, 6
CACHE = 64


@dataclass(frozen=True)
class Golden:
    """One recorded head: its spec, weights by module name, and the package's logits [A, K, V] of whole chains."""

    head: HeadSpec
    target: TargetSpec
    weights: dict[str, np.ndarray]
    ids: np.ndarray
    features: np.ndarray
    anchors: list[int]
    logits: np.ndarray


def _load(name: str) -> Golden:
    tensors = load_file(Path(__file__).parent / f"speculators_{name}.safetensors")
    stored = {n.removeprefix("head."): t for n, t in tensors.items() if n.startswith("head.")}
    config = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "vocab_size": VOCAB,
        "mask_token_id": 1, "norm_before_residual": name == "normed_residual",
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    }  # fmt: skip
    target = TargetSpec("qwen3", "Qwen3ForCausalLM", HIDDEN, 8, VOCAB, 256, (CacheSpec(2, 8),) * 8, (2, 4, 5))
    head = HeadSpec.read(config, {n: t.shape for n, t in stored.items()}, target)
    rows = {(int(a), int(d)): i for i, (a, d) in enumerate(zip(tensors["anchor"], tensors["depth"], strict=True))}
    anchors = [a for a in range(len(tensors["ids"])) if all((a, d) in rows for d in range(DEPTHS))]
    logits = np.stack([[tensors["logits"][rows[a, d]] for d in range(DEPTHS)] for a in anchors])
    return Golden(head, target, stored, tensors["ids"], tensors["features"], anchors, logits)


@pytest.fixture(scope="module", params=["residual", "normed_residual"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return _load(request.param)


def test_there_is_something_to_compare(golden: Golden) -> None:
    assert len(golden.anchors) >= 10
    assert np.abs(golden.logits).max() > 1


@pytest.mark.parametrize("lowering", ["std", "ort"])
def test_the_compiled_drafter_agrees(golden: Golden, lowering: Lowering, tmp_path: Path) -> None:
    lowered = lower(trace.trace_drafter(golden.head, golden.target), lowering, cache_length=CACHE)
    path = tmp_path / "model.onnx"
    weights.attach(lowered, golden.weights.__getitem__, path)
    for anchor, expected in zip(golden.anchors, golden.logits, strict=True):
        count = anchor + 1
        tokens = np.full((1, DEPTHS + 1), -1, np.int32)
        tokens[0, 0] = golden.ids[count]
        out = Graph(path, golden.head.caches, CACHE)(
            input_ids=golden.ids[None, :count].astype(np.int64),
            start=np.zeros(1, np.int64),
            window_len=np.array([count], np.int32),
            draft_len=np.zeros(1, np.int32),
            tokens=tokens,
            num_tokens=np.ones(1, np.int32),
            aux_hidden=golden.features[None, :count],
        )
        np.testing.assert_allclose(out["draft_logits"][0], expected, atol=TOLERANCE)


def test_the_reference_agrees(golden: Golden) -> None:
    import torch

    head_weights = {n: torch.from_numpy(t) for n, t in golden.weights.items()}
    for anchor, expected in zip(golden.anchors, golden.logits, strict=True):
        ids = [int(i) for i in golden.ids[: anchor + 2]]
        features = torch.from_numpy(golden.features[: anchor + 1])
        found = reference.draft_logits(head_weights, golden.head, ids, features, DEPTHS)
        np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE)
