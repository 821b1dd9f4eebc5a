"""The EAGLE-3 drafter graph, run pass by pass over its caches, drafts the same as the cache-free reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.graphs import graph_files, stream_weights
from peagle.graphs.drafters import torch_reference
from peagle.graphs.lowering import LOWERINGS, lower
from tests.graphs.running import Graph
from tests.graphs.traced import CACHE, traced_drafter
from tests.models import VOCAB, Pair, eagle3_head

H, TAPS = 48, 3


class Passes:
    """The graph of one row with a head of this form, driven by hand over features that stand for a target's."""

    def __init__(self, folder: Path, pair: Pair, lowering: str, **form: Any) -> None:
        self.pair = Pair(pair.target, eagle3_head(folder / "head", pair, **form))
        target, self.head = self.pair.specs()
        semantic = graph_files.load(traced_drafter(self.head, target))
        lowered = lower(semantic, LOWERINGS[lowering], cache_length=CACHE)
        self.weights = self.pair.head_weights()
        stream_weights.attach(lowered, lambda name: self.weights[name].numpy(), folder / "model.onnx")
        self.graph = Graph(folder / "model.onnx", self.head.caches, CACHE)

    def round(self, ids: list[int], fed: int, features: np.ndarray, k: int, emitted: int) -> np.ndarray:
        """Draft ``k`` tokens after ``ids``, of which the drafter saw ``fed`` before, and return their logits [k,Vd].

        ``emitted`` columns carry what a target would say; features [len,F] of all tokens but the last.
        """
        window, news = ids[fed:-1], ids[fed + 1 :]
        count = min(len(news), emitted)  # of the tokens are emitted, and those before are of the window
        tokens = np.full((1, emitted), -1, np.int32)
        tokens[0, :count] = news[-count:]
        made = self._pass(window, fed, tokens, count, features[None, fed : len(ids) - 1], np.zeros((1, H), np.float32))
        assert made["next_start"].tolist() == [len(ids) - 1]
        logits, text = [made["draft_logits"][0, 0]], list(ids)
        for _ in range(k - 1):
            assert made["next_input_ids"][0].tolist() == [text[-1], int(made["draft_ids"][0, 0])]
            assert (made["next_window_len"].tolist(), made["next_draft_len"].tolist()) == ([2], [1])
            text.append(int(made["draft_ids"][0, 0]))
            tokens = np.array([[text[-1], -1]], np.int32)
            nothing = np.zeros((1, 0, TAPS * H), np.float32)
            made = self._pass([0], len(text) - 2, tokens, 1, nothing, made["next_draft_hidden"])
            logits.append(made["draft_logits"][0, 0])
        return np.stack(logits)

    def _pass(
        self, window: list[int], start: int, tokens: np.ndarray, count: int, aux: np.ndarray, hidden: np.ndarray
    ) -> dict[str, np.ndarray]:
        i32 = np.int32
        return self.graph(
            input_ids=np.array([window], np.int64),
            start=np.array([start], np.int64),
            window_len=np.array([len(window)], i32),
            draft_len=np.array([count - 1], i32),
            tokens=tokens,
            num_tokens=np.array([count], i32),
            aux_hidden=aux,
            draft_hidden=hidden,
        )

    def reference(self, ids: list[int], features: np.ndarray, k: int) -> np.ndarray:
        wide = torch.tensor(features[: len(ids) - 1])
        return torch_reference.draft_logits(self.weights, self.head, ids, wide, k).numpy()


FORMS: dict[str, dict[str, Any]] = {
    "one layer": {"draft_vocab": VOCAB - 40},
    "two layers": {"layers": 2},
    "features normed": {"norm_before_residual": True, "norm_output": True},
}


@pytest.mark.parametrize("lowering", ["std", "ort"])
@pytest.mark.parametrize("form", FORMS)
def test_passes_over_caches_equal_a_full_recompute(
    tiny_pair: Pair, tmp_path: Path, rng: np.random.Generator, lowering: str, form: str
) -> None:
    """Rounds of any K, each after some of the tokens drafted before were rejected and others were not."""
    passes = Passes(tmp_path, tiny_pair, lowering, **FORMS[form])
    features = rng.standard_normal((60, TAPS * H)).astype(np.float32)
    ids, fed = [int(i) for i in rng.integers(2, VOCAB, 9)], 0
    for k, committed in ((4, 3), (6, 1), (1, 7), (3, 2), (5, 4)):
        logits = passes.round(ids, fed, features, k, emitted=8)
        np.testing.assert_allclose(logits, passes.reference(ids, features, k), atol=1e-4)
        fed = len(ids) - 1
        accepted = torch_reference.to_target_ids(passes.weights, torch.tensor(logits).argmax(-1))[: committed - 1]
        ids += [*accepted, *(int(i) for i in rng.integers(2, VOCAB, committed - len(accepted)))]


def test_a_further_draft_reads_the_state_that_the_last_was_drafted_from(
    tiny_pair: Pair, tmp_path: Path, rng: np.random.Generator
) -> None:
    """With any other input in its place, the drafts differ."""
    features = rng.standard_normal((9, TAPS * H)).astype(np.float32)
    ids = [int(i) for i in rng.integers(2, VOCAB, 9)]
    passes = Passes(tmp_path, tiny_pair, "ort")
    right = passes.round(ids, 0, features, 2, emitted=3)
    run = passes._pass
    passes._pass = lambda *given: run(*given[:5], -given[5])  # type: ignore[method-assign, call-arg]
    wrong = passes.round(ids, 0, features, 2, emitted=3)
    np.testing.assert_array_equal(right[0], wrong[0])
    assert abs(right[1] - wrong[1]).max() > 1e-2
