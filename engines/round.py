"""The speculative round (P-EAGLE, arXiv 2602.01469): verify, accept the agreeing prefix, draft K in one pass.

    tokens = target(newest, draft_1 .. draft_K)        # one pass; y_0..y_a are emitted, a drafts were right
    draft  = drafter(y_0..y_a, [mask] * (K - 1))       # one pass; real features for what is committed
    window = [y_a, draft]

With K = 0 there is no drafter and this is plain decoding of the same target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .backends.base import Backend, Window
from .sampling import Policy, SamplingParams

PREFILL_CHUNK = 512


_NO_NUMBERS = np.zeros(0, np.float32)


class Round:
    """The state of the loop for every slot: the window each row is fed next, and how its tokens are chosen.

    Rollback is free: a cache is never cleared, the start of the next window decides what counts, and later writes
    overwrite what was rejected.
    """

    def __init__(self, backend: Backend, num_speculative_tokens: int) -> None:
        self.backend, self.k = backend, num_speculative_tokens
        slots = backend.num_slots
        self.window = Window.idle(slots, self.k + 1)
        self.policy = Policy.of([SamplingParams()] * slots, self.k + 1)
        self.numbers = [_NO_NUMBERS] * slots

    def prefill(self, slot: int, prompt: Sequence[int], params: SamplingParams, numbers: np.ndarray) -> int:
        """Run ``prompt`` through both models, in chunks, into ``slot``; returns the first token after it.

        ``numbers`` f32 [>= any position]: entry p decides the token at absolute position p. A chunk that is not the
        last is told the known next token, so that the drafter's slot gets it.
        """
        rows = range(slot, slot + 1)
        self.policy.set_row(slot, params)
        self.numbers[slot] = numbers
        for begin in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[begin : begin + PREFILL_CHUNK]
            end = begin + len(chunk)
            known = prompt[end] if end < len(prompt) else -1
            window = Window(
                np.array([chunk], np.int64),
                np.array([begin], np.int64),
                np.array([len(chunk)], np.int32),
                np.zeros(1, np.int32),
                np.array([known], np.int64),
            )
            self._choose_numbers(rows, window)
            verified = self.backend.verify(rows, window, self.policy.rows(slice(slot, slot + 1)))
            if self.k:
                self._place(slot, self.backend.draft(rows, window, verified))
        first = int(verified.tokens[0, 0])
        if not self.k:
            self._place(slot, _plain(window, verified.tokens, verified.num_tokens))
        return first

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """One round for every busy slot: ``tokens`` i32 [B,K+1] (then -1) and ``num_tokens`` i32 [B] (0 if idle)."""
        slots = range(self.backend.num_slots)
        self._choose_numbers(slots, self.window)
        verified = self.backend.verify(slots, self.window, self.policy)
        if self.k:
            self.window = self.backend.draft(slots, self.window, verified)
        else:
            self.window = _plain(self.window, verified.tokens, verified.num_tokens)
        return verified.tokens, verified.num_tokens

    def retire(self, slot: int) -> None:
        """Make a row idle."""
        self.window.window_len[slot] = self.window.draft_len[slot] = 0
        self.numbers[slot] = _NO_NUMBERS

    def _place(self, slot: int, window: Window) -> None:
        for name in ("input_ids", "start", "window_len", "draft_len", "forced_next"):
            getattr(self.window, name)[slot] = getattr(window, name)[0]

    def _choose_numbers(self, slots: range, window: Window) -> None:
        """Column p decides position p + 1: put the numbers of the positions that can be emitted into the policy."""
        first = window.start + window.window_len - window.draft_len
        for i, slot in enumerate(slots):
            numbers = self.numbers[slot][first[i] : first[i] + self.k + 1]
            self.policy.uniform[slot, : len(numbers)] = numbers


def _plain(window: Window, tokens: np.ndarray, num_tokens: np.ndarray) -> Window:
    """The next window without a drafter: the one new token."""
    busy = num_tokens > 0
    return Window(
        np.where(busy, tokens[:, 0], 0)[:, None].astype(np.int64),
        window.start + window.window_len,
        busy.astype(np.int32),
        np.zeros_like(window.draft_len),
        np.full_like(window.forced_next, -1),
    )
