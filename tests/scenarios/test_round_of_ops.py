"""AcceptPrefix and PlaceholderDraft in a loop: the text is the target's own, and the drafter's slots follow.

The target is a toy: its logits are a random function of the whole prefix, so a single wrong token, position or column
anywhere changes the rest of the text.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from peagle.plugins.ops import OPS
from tests.plugins.plugin_cases import POLICIES, inputs_of

VOCAB, LENGTH, MASK = 7, 24, 98


def logits_after(prefix: list[int]) -> Any:
    return np.random.default_rng(zlib.crc32(bytes(prefix))).normal(size=VOCAB).astype(np.float32) * 2


class Request:
    """One row's text so far, and what it would be without speculation."""

    def __init__(self, prompt: list[int], policy: str, seed: int, run_op: Any) -> None:
        self.prompt, self.policy = prompt, POLICIES[policy]
        self.uniform = np.random.default_rng(seed).random(2 * LENGTH, np.float32)  # by absolute position
        self.wanted = list(prompt)
        while len(self.wanted) < LENGTH:
            batch = self.emission(self.wanted, len(self.wanted), columns=1)
            batch |= {"input_ids": [self.wanted[-1]], "window_len": 1, "draft_len": 0, "forced_next": -1}
            tokens, _ = run_op("AcceptPrefix", stack([batch]))
            self.wanted.append(int(tokens[0, 0]))

    def emission(self, fed: list[int], position: int, columns: int) -> dict[str, Any]:
        """Logits and policy for the columns that emit ``position`` and on, given all tokens fed so far."""
        temperature, top_k, top_p, min_p = self.policy
        logits = [logits_after(fed[: position + j]) for j in range(columns)]
        uniform = self.uniform[position : position + columns]
        filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        return {"logits": logits, "uniform": uniform, "temperature": temperature, "tolerance": 0.0, **filters}


DTYPES = {"input_ids": np.int64, "start": np.int64, "forced_next": np.int64}
DTYPES |= dict.fromkeys(("window_len", "draft_len", "top_k"), np.int32)


def stack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows], DTYPES.get(name, np.float32)) for name in rows[0]}


def generate(requests: list[Request], k: int, chunk: int, drafter: Any, run_op: Any) -> list[list[int]]:
    """All requests in one batch of slots: prefill in chunks, then rounds of K drafts. Checks the drafter's slots."""
    texts = [list(r.prompt) for r in requests]
    starts = [0] * len(requests)
    drafts: list[list[int]] = [[] for _ in requests]
    slots: list[dict[int, int]] = [{} for _ in requests]
    while any(len(text) < LENGTH for text in texts):
        windows = [text[start : start + chunk] + ds for text, start, ds in zip(texts, starts, drafts, strict=True)]
        width = max(k + 1, *map(len, windows))
        rows = []
        for r, text, start, window, ds in zip(requests, texts, starts, windows, drafts, strict=True):
            emits = start + len(window) - len(ds)  # the first position that this window can emit
            row = r.emission(text[:start] + window, emits, k + 1)
            ids = window + [97] * (width - len(window))  # 97 is no token: junk past the window
            row |= {"input_ids": ids, "start": start, "window_len": len(window) if len(text) < LENGTH else 0}
            rows.append(row | {"draft_len": len(ds), "forced_next": text[emits] if emits < len(text) else -1})
        batch = stack(rows)
        batch["tokens"], batch["num_tokens"] = run_op("AcceptPrefix", batch)
        row_ids, real, emit, newest, next_start, next_window, next_drafts = run_op("PlaceholderDraft", batch)
        for b, (text, n) in enumerate(zip(texts, batch["num_tokens"], strict=True)):
            if not n:
                continue
            slots[b] |= {starts[b] + c: int(token) for c, token in enumerate(row_ids[b])}  # all rows write
            assert real[b, emit[b, 0]]
            assert not real[b, emit[b, 1:]].any()
            if batch["forced_next"][b] < 0:
                text += batch["tokens"][b, :n].tolist()
            starts[b] = int(next_start[b])
            assert newest[b] == text[starts[b]]
            drafts[b] = drafter(text, k) if starts[b] == len(text) - 1 else []  # none inside the prompt
            assert (next_window[b], next_drafts[b]) == (k + 1, k)
    for text, written, start in zip(texts, slots, starts, strict=True):
        assert [written[p] for p in range(start)] == text[1 : start + 1], "slot p carries token p + 1"
    return [text[:LENGTH] for text in texts]


@pytest.fixture(params=["reference", "body"])
def run_op(request: pytest.FixtureRequest, run_body: Any) -> Any:
    def call(name: str, batch: dict[str, Any]) -> Any:
        attributes = {"mask_token_id": MASK} if name == "PlaceholderDraft" else {}
        if request.param == "body":
            return run_body(name, inputs_of(name, batch), **attributes)
        return OPS[name].reference(*inputs_of(name, batch), **attributes)

    return call


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("skill", [0.0, 0.6, 1.0])
def test_speculation_does_not_change_the_text(run_op: Any, k: int, skill: float) -> None:
    """For any K and any drafter, greedy and sampled, alone or in a batch, with prompts of any length."""
    prompts = [[1], [2, 3, 4, 5, 6, 0, 1], [5, 1, 2, 2]]
    policies = ["greedy", "all", "plain"]
    requests = [Request(p, policy, i, run_op) for i, (p, policy) in enumerate(zip(prompts, policies, strict=True))]
    rng = np.random.default_rng(k)

    def drafter(text: list[int], count: int) -> list[int]:
        """Knows the future with probability ``skill`` per token, else guesses."""
        future = next((r.wanted[len(text) :] for r in requests if r.wanted[: len(text)] == text), [])
        future = (future + [0] * count)[:count]
        return [t if rng.random() < skill else int(rng.integers(VOCAB)) for t in future]

    wanted = [r.wanted for r in requests]
    assert generate(requests, k, 3, drafter, run_op) == wanted
    assert generate(requests[1:2], k, 4, drafter, run_op) == wanted[1:2]
