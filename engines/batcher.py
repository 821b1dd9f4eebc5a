"""Requests in and out of slots: admission in order, one round for all that run, results as they finish."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .results import Acceptance, RequestOutput
from .round import Round
from .sampling import SamplingParams, uniform_stream
from .transcript import Transcript


@dataclass
class Request:
    """One prompt on its way. ``seed`` is the one in effect, drawn if the params leave it open."""

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    transcript: Transcript
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefill_seconds: float = 0.0
    decode_began: float = 0.0

    def output(self, now: float) -> RequestOutput:
        """The result; ``now`` is when the last token came."""
        text = self.transcript
        if text.finish_reason is None:
            raise ValueError("the request has not finished")
        return RequestOutput(
            self.prompt,
            tuple(text.token_ids),
            text.text,
            text.finish_reason,
            self.acceptance,
            self.seed,
            self.prefill_seconds,
            now - self.decode_began,
        )


class Batcher:
    """Runs requests through a ``Round``; more than there are slots wait. What one emits depends on no other."""

    def __init__(self, round_: Round, max_seq_len: int) -> None:
        self._round, self._max_seq_len = round_, max_seq_len
        self._slots: list[Request | None] = [None] * round_.backend.num_slots

    def run(self, requests: list[Request]) -> Iterator[Request]:
        """Yields a request after each of its tokens-bearing rounds; it is done when its transcript has finished."""
        waiting = deque(requests)
        try:
            while waiting or any(self._slots):
                for slot, running in enumerate(self._slots):
                    if running is None and waiting:
                        yield self._admit(slot, waiting.popleft())
                yield from self._step()
        finally:
            for slot in range(len(self._slots)):
                self._free(slot)

    def _admit(self, slot: int, request: Request) -> Request:
        began = time.perf_counter()
        numbers = uniform_stream(request.seed, self._max_seq_len + 1)
        first = self._round.prefill(slot, request.prompt, request.params, numbers)
        request.decode_began = time.perf_counter()
        request.prefill_seconds = request.decode_began - began
        request.transcript.extend([first])
        if request.transcript.finish_reason:
            self._free(slot)
        else:
            self._slots[slot] = request
        return request

    def _step(self) -> Iterator[Request]:
        if not any(self._slots):
            return
        drafted = self._round.window.draft_len.copy()
        tokens, num_tokens = self._round.step()
        for slot, request in enumerate(self._slots):
            if request is None:
                continue
            count = int(num_tokens[slot])
            if drafted[slot]:
                request.acceptance.add_round(int(drafted[slot]), count - 1)
            request.transcript.extend(int(t) for t in tokens[slot, :count])
            if request.transcript.finish_reason:
                self._free(slot)
            yield request

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._round.retire(slot)
