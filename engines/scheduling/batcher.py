"""Requests in and out of slots: admission in order, one round for all that run, results as they finish."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from ..backends.base import Emission
from ..requests.params import SamplingParams, uniform_stream
from ..requests.results import Acceptance, RequestOutput
from ..strategies.round import Round
from ..text.transcript import Transcript


@dataclass
class Request:
    """One prompt on its way. ``seed`` is the one in effect, drawn if the params leave it open.

    ``room`` is the most tokens it may get. ``launched`` counts passes whose tokens have not been read, ``ahead`` how
    many tokens those may bring at most.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    transcript: Transcript
    room: int
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefill_seconds: float = 0.0
    decode_began: float = 0.0
    launched: int = 0
    ahead: int = 0

    @property
    def is_done(self) -> bool:
        """Whether its text has ended."""
        return self.transcript.finish_reason is not None

    @property
    def will_be_done(self) -> bool:
        """Whether it ends, whatever comes, with what was launched: a pass brings a token or more."""
        return len(self.transcript.token_ids) + self.launched >= self.room

    @property
    def most_committed(self) -> int:
        """Prompt and tokens together, if all that was launched is accepted."""
        return len(self.prompt) + len(self.transcript.token_ids) + self.ahead

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


@dataclass(frozen=True)
class _Flight:
    """A pass that was launched: what it emits, for whom by row, and in which slots those were then.

    ``drafted`` drafts were verified, 0 in a prompt's pass. A request that has ended meanwhile drops what comes late,
    and who was given its slot is not among ``owners``.
    """

    emission: Emission
    owners: Sequence[Request | None]
    slots: Sequence[int]
    drafted: int
    most: int
    began: float


class Batcher:
    """Runs requests through a ``Round``; more than there are slots wait. What one emits depends on no other.

    Results may be read late: the backend says how many passes are launched before the oldest is looked at, so that a
    GPU has its next round before the host knows of the last one.
    """

    def __init__(self, round_: Round, max_seq_len: int) -> None:
        self._round, self._max_seq_len = round_, max_seq_len
        self._lag = round_.backend.lag
        self._slots: list[Request | None] = [None] * round_.backend.num_slots
        self._flights: deque[_Flight] = deque()

    def run(self, requests: list[Request]) -> Generator[Request, None, None]:
        """Yields a request after each of its tokens-bearing rounds; it is done when its transcript has finished."""
        waiting = deque(requests)
        try:
            while waiting or any(self._slots):
                for slot, running in enumerate(self._slots):
                    if running is None and waiting:
                        self._launch_prompt(slot, waiting.popleft())
                        yield from self._read(self._lag)
                while self._flights and not self._fits():
                    yield from self._read(len(self._flights) - 1)
                if all(request is None or request.will_be_done for request in self._slots):
                    yield from self._read(0)
                else:
                    self._launch_round()
                    yield from self._read(self._lag)
        except Exception:
            self._slots = [None] * len(self._slots)  # what failed would fail again here, and hide the reason
            raise
        finally:
            for slot, request in enumerate(self._slots):
                if request is not None:
                    self._free(slot)

    def _fits(self) -> bool:
        """Whether no row can stand past the end of its cache when the next round runs.

        A row that came to its end in a round nobody has read yet would go on from there.
        """
        return all(r is None or r.most_committed < self._max_seq_len for r in self._slots)

    def _launch_prompt(self, slot: int, request: Request) -> None:
        began = time.perf_counter()
        numbers = uniform_stream(request.seed, self._max_seq_len + 1)
        emission = self._round.prefill(slot, request.prompt, request.params, numbers)
        self._slots[slot] = request
        self._launched(_Flight(emission, [request], [slot], drafted=0, most=1, began=began))

    def _launch_round(self) -> None:
        owners, k = tuple(self._slots), self._round.k
        began = time.perf_counter()
        self._launched(_Flight(self._round.step(), owners, range(len(owners)), drafted=k, most=k + 1, began=began))

    def _launched(self, flight: _Flight) -> None:
        self._flights.append(flight)
        for request in flight.owners:
            if request is not None:
                request.launched += 1
                request.ahead += flight.most

    def _read(self, unread: int) -> Iterator[Request]:
        """Read the oldest emissions until so many are left, and hand out their tokens."""
        while len(self._flights) > unread:
            flight = self._flights.popleft()
            tokens, num_tokens = flight.emission.read()
            for row, request in enumerate(flight.owners):
                if request is None or request.transcript.finish_reason:
                    continue
                request.launched -= 1
                request.ahead -= flight.most
                count = int(num_tokens[row])
                if flight.drafted:
                    request.acceptance.add_round(flight.drafted, count - 1)
                if not request.decode_began:
                    request.decode_began = time.perf_counter()
                    request.prefill_seconds = request.decode_began - flight.began
                request.transcript.extend(int(t) for t in tokens[row, :count])
                if request.is_done:
                    self._free(flight.slots[row])
                yield request

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._round.retire(slot)
