"""The drafter graph drafts the same as the cache-free reference, and each of its features has an effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peagle.graphs.drafters import torch_reference
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import VOCAB
from tests.speculation import speculate


class Loop:
    """Both graphs of one row, driven by hand."""

    def __init__(self, traced: Traced, lowering: str, k: int) -> None:
        self.k = k
        self.target = Graph(traced.built("target", lowering), traced.target.caches, CACHE)
        self.drafter = Graph(traced.built("drafter", lowering), traced.head.caches, CACHE)

    def feed(self, ids: np.ndarray, start: int, drafts: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        window = target_inputs(ids[None], start, drafts, self.k + 1)
        verified = self.target(**window)
        verified.pop("logits")
        names = ("input_ids", "start", "window_len", "draft_len")
        return verified, self.drafter(**{n: window[n] for n in names}, **verified)


@pytest.mark.parametrize("lowering", ["std", "ort"])
@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_cached_drafting_equals_full_recompute(traced: Traced, lowering: str, k: int, rng: np.random.Generator) -> None:
    model = traced.reference()
    weights = traced.pair.head_weights()
    loop = Loop(traced, lowering, k)
    ids = rng.integers(2, VOCAB, 11)
    verified, drafted = loop.feed(ids, 0, 0)
    text = [int(i) for i in ids]
    for _ in range(4):
        text += [int(t) for t in verified["tokens"][0, : verified["num_tokens"][0]]]
        _, features = torch_reference.target_pass(model, traced.target, text)
        expected = torch_reference.draft_logits(weights, traced.head, text, features[: len(text) - 1], k)
        np.testing.assert_allclose(drafted["draft_logits"][0], expected.numpy(), atol=1e-4)
        assert drafted["draft_ids"][0].tolist() == torch_reference.to_target_ids(weights, expected.argmax(-1))
        assert drafted["next_input_ids"][0].tolist() == [text[-1], *drafted["draft_ids"][0].tolist()]
        assert drafted["next_start"].tolist() == [len(text) - 1]
        window = drafted["next_input_ids"][0]
        verified, drafted = loop.feed(window, int(drafted["next_start"][0]), k)


def test_the_first_drafts_do_not_depend_on_how_many_follow(qwen3: Traced, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 9)
    longest = Loop(qwen3, "ort", 8).feed(ids, 0, 0)[1]["draft_logits"][0]
    for k in (1, 3, 5):
        np.testing.assert_allclose(Loop(qwen3, "ort", k).feed(ids, 0, 0)[1]["draft_logits"][0], longest[:k], atol=1e-5)


def test_chunked_prefill_drafts_like_one_pass(qwen3: Traced, rng: np.random.Generator) -> None:
    ids = rng.integers(2, VOCAB, 12)
    whole = Loop(qwen3, "ort", 4).feed(ids, 0, 0)[1]
    loop = Loop(qwen3, "ort", 4)
    window = target_inputs(ids[None, :7], 0, 0, 5)
    window["forced_next"] = ids[None, 7]
    verified = loop.target(**window)
    verified.pop("logits")
    loop.drafter(**{n: window[n] for n in ("input_ids", "start", "window_len", "draft_len")}, **verified)
    np.testing.assert_allclose(loop.feed(ids[7:], 7, 0)[1]["draft_logits"], whole["draft_logits"], atol=1e-5)


def test_mask_hidden_moves_every_draft_but_the_first(qwen3: Traced, rng: np.random.Generator) -> None:
    weights = qwen3.pair.head_weights()
    features = torch.tensor(rng.standard_normal((8, 3 * 48)), dtype=torch.float32)
    ids = [int(i) for i in rng.integers(2, VOCAB, 9)]
    before = torch_reference.draft_logits(weights, qwen3.head, ids, features, 4)
    after = torch_reference.draft_logits(
        weights | {"mask_hidden": -weights["mask_hidden"]}, qwen3.head, ids, features, 4
    )
    assert torch.equal(before[0], after[0])
    assert ((before[1:] - after[1:]).abs().amax(-1) > 1e-3).all()


@pytest.mark.parametrize("change", ["halves swapped", "tokens unshifted", "no context"])
def test_a_wrong_recipe_is_noticed(qwen3: Traced, change: str, rng: np.random.Generator) -> None:
    weights = qwen3.pair.head_weights()
    features = torch.tensor(rng.standard_normal((8, 3 * 48)), dtype=torch.float32)
    ids = [int(i) for i in rng.integers(2, VOCAB, 9)]
    right = torch_reference.draft_logits(weights, qwen3.head, ids, features, 4)
    if change == "halves swapped":
        swapped = {
            n: torch.cat(w.chunk(2, -1)[::-1], -1)
            for n, w in weights.items()
            if n.startswith("layers.0.self_attn") and "o_proj" not in n
        }
        wrong = torch_reference.draft_logits(weights | swapped, qwen3.head, ids, features, 4)
    elif change == "tokens unshifted":
        wrong = torch_reference.draft_logits(weights, qwen3.head, [0, *ids[:-1]], features, 4)
    else:
        wrong = torch_reference.draft_logits(weights, qwen3.head, ids[-2:], features[-1:], 4)
    assert (right - wrong).abs().max() > 1e-2


def test_greedy_speculation_in_the_reference_is_plain_greedy(qwen3: Traced, rng: np.random.Generator) -> None:
    model = qwen3.reference()
    prompt = [int(i) for i in rng.integers(2, VOCAB, 6)]
    plain = list(prompt)
    for _ in range(20):
        logits, _ = torch_reference.target_pass(model, qwen3.target, plain)
        plain.append(int(logits[-1].argmax()))
    tokens, accepted = speculate(model, qwen3.target, qwen3.pair.head_weights(), qwen3.head, prompt, 3, 20)
    assert tokens == plain[6:]
    assert all(0 <= a <= 3 for a in accepted)
