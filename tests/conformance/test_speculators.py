"""Our drafter's graphs give the logits of the ``speculators`` package's own P-EAGLE class, given the same weights.

The golden files were recorded from that package by ``tools/golden_speculators.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from peagle.graphs import graph_files, stream_weights
from peagle.graphs.drafters import DrafterSpec, read_drafter, torch_reference
from peagle.graphs.lowering import LOWERINGS, lower
from peagle.graphs.targets import CacheSpec, TargetSpec
from tests.graphs.running import Graph
from tests.graphs.traced import traced_drafter

TOLERANCE = 1e-4
VOCAB, DEPTHS = 64, 6
CACHE = 64


@dataclass(frozen=True)
class Golden:
    """One recorded head: its spec, weights by module name, and the package's logits [A, K, V] of whole chains."""

    head: DrafterSpec
    target: TargetSpec
    weights: dict[str, np.ndarray]
    ids: np.ndarray
    features: np.ndarray
    anchors: list[int]
    logits: np.ndarray


def _load(path: Path) -> Golden:
    """The head is read from the config and the tensor names that the package wrote itself."""
    tensors = load_file(path)
    with safe_open(path, "np") as file:
        config = json.loads(file.metadata()["config"])
    stored = {n.removeprefix("head."): t for n, t in tensors.items() if n.startswith("head.")}
    taps = tuple(config["eagle_aux_hidden_state_layer_ids"])
    hidden = len(stored["norm.weight"])
    target = TargetSpec("qwen3", "Qwen3ForCausalLM", hidden, 8, VOCAB, 256, (CacheSpec(2, 8),) * 8, (0,) * 8, taps)
    head = read_drafter(config, {n: t.shape for n, t in stored.items()}, target)
    rows = {(int(a), int(d)): i for i, (a, d) in enumerate(zip(tensors["anchor"], tensors["depth"], strict=True))}
    anchors = [a for a in range(len(tensors["ids"])) if all((a, d) in rows for d in range(DEPTHS))]
    logits = np.stack([[tensors["logits"][rows[a, d]] for d in range(DEPTHS)] for a in anchors])
    weights = {name: stored[key] for name, key in head.keys.items()}
    return Golden(head, target, weights, tensors["ids"], tensors["features"], anchors, logits)


FILES = sorted(Path(__file__).parent.glob("speculators_*.safetensors"))


@pytest.fixture(scope="module", params=FILES, ids=[path.stem for path in FILES])
def golden(request: pytest.FixtureRequest) -> Golden:
    return _load(request.param)


@pytest.fixture(scope="module")
def semantic(golden: Golden) -> Path:
    """The graph of a golden head."""
    return traced_drafter(golden.head, golden.target)


def test_golden_files_cover_the_package_switches() -> None:
    heads = [_load(path).head for path in FILES]
    assert [head.parts.fc_norms for head in heads if head.parts.fc_norms] == [4]
    assert {head.norm_before_residual for head in heads} == {True, False}
    assert any(head.parts.input_norm for head in heads)
    assert any(head.parts.qk_norm and head.windows == (0, 8) for head in heads)
    assert any(len(head.parts.biases) == 7 for head in heads)
    assert {head.rope["rope_type"] for head in heads} == {"default", "llama3"}
    assert all(head.trained_depth == DEPTHS and head.mask_token_id == 1 for head in heads)


def test_there_is_something_to_compare(golden: Golden) -> None:
    assert len(golden.anchors) >= 10
    assert np.abs(golden.logits).max() > 1


@pytest.mark.parametrize("lowering", ["std", "ort"])
def test_the_compiled_drafter_agrees(golden: Golden, semantic: Path, lowering: str, tmp_path: Path) -> None:
    lowered = lower(graph_files.load(semantic), LOWERINGS[lowering], cache_length=CACHE)
    path = tmp_path / "model.onnx"
    stream_weights.attach(lowered, golden.weights.__getitem__, path)
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
        found = torch_reference.draft_logits(head_weights, golden.head, ids, features, DEPTHS)
        np.testing.assert_allclose(found.numpy(), expected, atol=TOLERANCE)
