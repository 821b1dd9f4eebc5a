"""The scheduler: requests in and out of slots, admitted in order, one round for all that run, results as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..backends.base import Backend, Chunk, Emission
from ..policy.drafts_per_round import Policy
from ..requests.random_numbers import uniform_stream
from ..requests.request import Request
from ..strategies.base import Strategy

PREFILL_CHUNK = 512  # columns; a longer pass is no faster, and other rows wait for it


@dataclass(frozen=True)
class _Flight:
    """A pass that was launched: what it emits, for whom by row, and in which slots those were then.

    ``most`` is how many tokens it may bring a row. A request that has ended meanwhile drops what comes late, and who
    was given its slot is not among ``owners``.
    """

    emission: Emission
    owners: Sequence[Request | None]
    slots: Sequence[int]
    most: int
    began: float


class Scheduler:
    """Runs requests through the slots of a backend; more than there are slots wait. What one emits depends on no other.

    Results may be read late: the backend says how many passes are launched before the oldest is looked at, so that a
    GPU has its next round before the host knows of the last one. A new scheduler ends whatever ran on the backend.
    """

    def __init__(self, backend: Backend, strategy: Strategy, policy: Policy, max_seq_len: int) -> None:
        self._backend, self._policy, self._max_seq_len = backend, policy, max_seq_len
        self._waiting: deque[Request] = deque()
        self._slots: list[Request | None] = [None] * backend.num_slots
        self._flights: deque[_Flight] = deque()
        self._strategy = strategy.over(self._slots)
        self._lag = backend.lag if strategy.enqueues_only else 0  # one that reads every token gains nothing by it
        backend.begin()
        if strategy.enqueues_only:
            backend.warm(strategy.round, policy.most)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._waiting and not any(self._slots)

    def submit(self, request: Request) -> None:
        """Let a request wait for a slot."""
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request, wherever it is; it gets no more tokens, and ends with those that it has."""
        request.transcript.abort()
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._slots:
            self._free(self._slots.index(request))

    def step(self) -> list[Request]:
        """Launch one pass, where there is one to launch, and hand out the oldest tokens that are due.

        Returns the requests that got some, and those that nobody wants any more; one is done when its transcript has
        finished.
        """
        unwanted = [request for request in (*self._slots, *self._waiting) if request and request.is_unwanted]
        for request in unwanted:
            self.abort(request)
        if unwanted:
            return unwanted
        unread = self._lag if self._launch() else 0
        return list(self._read()) if len(self._flights) > unread else []

    def _launch(self) -> bool:
        """Enqueue the next prompt, or a round for all that run, unless tokens must be read first."""
        free = next((slot for slot, request in enumerate(self._slots) if request is None), None)
        if self._waiting and free is not None:
            self._launch_prompt(free, self._waiting.popleft())
            return True
        running = [request for request in self._slots if request is not None]
        # A row that came to the end of its cache in a round nobody has read yet would go on from there.
        fits = all(request.most_committed < self._max_seq_len for request in running)
        if not fits or all(request.will_be_done for request in running):
            return False
        self._launch_round()
        return True

    def _launch_prompt(self, slot: int, request: Request) -> None:
        began, backend = time.perf_counter(), self._backend
        backend.admit(slot, request.params, uniform_stream(request.seed, self._max_seq_len + 1))
        k = self._policy.choose()
        self._slots[slot] = request
        for chunk in chunks(request.prompt, min(PREFILL_CHUNK, backend.prefill_columns)):
            if request.is_unwanted:
                return  # the next step ends it
            backend.prompt(slot, chunk, self._strategy.prompt, k)
        self._launched(_Flight(backend.first(slot), [request], [slot], most=1, began=began))

    def _launch_round(self) -> None:
        owners, k, began = tuple(self._slots), self._policy.choose(), time.perf_counter()
        emission = self._backend.round(self._strategy.round, k, replay=self._strategy.enqueues_only)
        self._launched(_Flight(emission, owners, range(len(owners)), most=k + 1, began=began))

    def _launched(self, flight: _Flight) -> None:
        self._flights.append(flight)
        for request in flight.owners:
            if request is not None:
                request.launched += 1
                request.ahead += flight.most

    def _read(self) -> Iterator[Request]:
        """Read the oldest emission and hand out its tokens."""
        flight = self._flights.popleft()
        tokens, num_tokens = flight.emission.read()
        for row, request in enumerate(flight.owners):
            slot = flight.slots[row]
            if request is None or self._slots[slot] is not request:
                continue
            request.launched -= 1
            request.ahead -= flight.most
            count = int(num_tokens[row])
            if request.decode_began:
                request.acceptance.add_round(flight.emission.drafted[row], count - 1)
            else:
                request.decode_began = time.perf_counter()
                request.prefill_seconds = request.decode_began - flight.began
            request.transcript.extend((int(t) for t in tokens[row, :count]), accepted=count - 1)
            if request.is_done:
                self._free(slot)
            yield request

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._backend.retire(slot)


def chunks(prompt: Sequence[int], width: int) -> Iterator[Chunk]:
    """Cut ``prompt`` into pieces of ``width``; each knows the token after it, so that the drafter's slot gets that."""
    for start in range(0, len(prompt), width):
        end = start + width
        yield Chunk(prompt[start:end], start, prompt[end] if end < len(prompt) else -1)
