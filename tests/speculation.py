"""Greedy speculative decoding with a simple reference round, for comparison with engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from peagle.graphs.drafters import DrafterSpec
from peagle.graphs.drafters.torch_reference import Weights, draft_logits, target_pass, to_target_ids
from peagle.graphs.targets import TargetSpec
from peagle.plugins.ops import OPS


def speculate(
    model: Any,
    target: TargetSpec,
    weights: Weights,
    head: DrafterSpec,
    prompt: Sequence[int],
    k: int,
    new_tokens: int,
) -> tuple[list[int], list[int]]:
    """Greedy speculative decoding; returns the new tokens and how many drafts each round accepted."""
    ids, accepted = list(prompt), []
    logits, features = target_pass(model, target, ids)
    ids.append(int(logits[-1].argmax()))
    while len(ids) - len(prompt) < new_tokens:
        drafts = to_target_ids(weights, draft_logits(weights, head, ids, features[: len(ids) - 1], k).argmax(-1))
        logits, features = target_pass(model, target, [*ids, *drafts])
        tokens = _accept(logits[-k - 1 :], [ids[-1], *drafts])
        ids += tokens
        accepted.append(len(tokens) - 1)
    return ids[len(prompt) : len(prompt) + new_tokens], accepted


def _accept(logits: Tensor, window: Sequence[int]) -> list[int]:
    """The greedy rule through the op's own reference: a row whose every column but the first is a draft."""
    i64, i32, f32 = np.int64, np.int32, np.float32
    count = len(window)
    off = [np.zeros(1, f32), np.zeros(1, i32), np.ones(1, f32), np.zeros(1, f32), np.zeros(1, f32)]
    tokens, number = OPS["AcceptPrefix"].reference(
        logits.numpy()[None],
        np.array([window], i64),
        np.array([count], i32),
        np.array([count - 1], i32),
        np.array([-1], i64),
        np.zeros((1, count), f32),
        *off,
    )
    return [int(t) for t in tokens[0, : number[0]]]
