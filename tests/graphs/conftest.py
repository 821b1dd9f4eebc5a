"""Traced once per session: a tiny Qwen3 and a tiny Llama with a P-EAGLE head each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from peagle.graphs import store, trace, weights
from peagle.graphs.families import TargetSpec
from peagle.graphs.heads import HeadSpec
from peagle.graphs.lowering import Lowered, Lowering, lower
from tests.models import VOCAB, Pair, make_pair

CACHE = 80


@dataclass(frozen=True)
class Traced:
    """A pair and its semantic graphs on disk."""

    pair: Pair
    target: TargetSpec
    head: HeadSpec
    folder: Path

    def lowered(self, part: str, lowering: Lowering) -> Lowered:
        return lower(store.load(self.folder / f"{part}.onnx"), lowering, cache_length=CACHE)

    def built(self, part: str, lowering: Lowering) -> Path:
        """The part's graph with weights, for ONNX Runtime."""
        path = self.folder / lowering / part / "model.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True)
            tensors = {k: t.numpy() for k, t in self.pair.head_weights().items()}
            read = self.pair.target_tensor if part == "target" else tensors.__getitem__
            weights.attach(self.lowered(part, lowering), read, path)
        return path


def _traced(folder: Path, family: str, draft_vocab: int) -> Traced:
    pair = make_pair(folder, family, draft_vocab=draft_vocab)
    target, head = pair.specs()
    store.save(trace.trace_target(pair.config, target), folder / "target.onnx")
    store.save(trace.trace_drafter(head, target), folder / "drafter.onnx")
    return Traced(pair, target, head, folder)


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return _traced(tmp_path_factory.mktemp("qwen3"), "qwen3", VOCAB)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """With a draft vocabulary smaller than the target's."""
    return _traced(tmp_path_factory.mktemp("llama"), "llama", VOCAB - 40)


@pytest.fixture(scope="session", params=["qwen3", "llama"])
def traced(request: pytest.FixtureRequest) -> Traced:
    return request.getfixturevalue(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)
