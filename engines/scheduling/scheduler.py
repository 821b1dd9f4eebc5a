"""Scheduler: admission by priority and in order, slots, and chunked prefill between rounds.

Each step launches one pass. While requests run, a limited number of prompt tokens is prefilled between two rounds, so
that a long prompt delays each of their tokens only a little. One prompt is prefilled at a time, oldest first.
"""

from __future__ import annotations

import time
from bisect import insort_right
from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter

import numpy as np

from ..backends.base import Backend
from ..policy.misfit import Misfits
from ..requests.random_numbers import uniform_stream
from ..requests.results import FinishReason
from ..running.request import Request
from .passes import Flight, PromptReading
from .prefix_cache import BLOCK, PrefixCache
from .round_policies import choose_drafts, draft_limits, first_k, most_emitted
from .shared_rounds import SharedRounds

PREFILL_CHUNK = 512  # columns; longer passes are not faster
MAX_PREFILL_TOKENS = 128  # prompt tokens between two rounds of running requests


class Scheduler:
    """Runs requests in the slots of a backend; further requests wait. The output of a request depends on no other.

    Results may be read late: the backend says how many passes are launched before the oldest is read, so that a GPU
    gets its next round before the host knows the result of the last one. A new scheduler ends whatever ran on the
    backend. While ``admits`` is False, no waiting request starts.
    """

    def __init__(
        self,
        backend: Backend,
        max_seq_len: int,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        prefixes: PrefixCache | None = None,
        misfits: Misfits | None = None,
    ) -> None:
        self.admits = True
        self._prefixes, self._misfits = prefixes or PrefixCache(0, 0), misfits or Misfits()
        self._backend, self._max_seq_len, self._most_read = backend, max_seq_len, max_prefill_tokens
        self._waiting: list[Request] = []  # the next one first
        self._slots: list[Request | None] = [None] * backend.num_slots
        self._reading: PromptReading | None = None
        self._read_since = 0  # prompt tokens read since the last round
        self._flights: deque[Flight] = deque()
        self._read_at = 0.0  # when the last pass was known to have ended
        self._rounds = SharedRounds(self._slots)
        backend.begin()

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits or runs."""
        return self.is_empty and not self._waiting

    @property
    def is_empty(self) -> bool:
        """Return whether no request runs."""
        return self._reading is None and not any(self._slots)

    @property
    def requests(self) -> list[Request]:
        """All waiting and running requests."""
        reading = [self._reading.request] if self._reading else []
        return [*filter(None, self._slots), *reading, *self._waiting]

    @property
    def num_running(self) -> int:
        """Number of requests in a slot."""
        return sum(request is not None for request in self._slots) + (self._reading is not None)

    @property
    def num_committed(self) -> int:
        """Number of tokens in the caches of running requests."""
        running = [request for request in [*self._slots] if request is not None]
        reading = self._reading
        return sum(len(each.prompt) + each.num_written for each in running) + (reading.position if reading else 0)

    def submit(self, request: Request) -> None:
        """Queue a request for a slot, behind those of the same priority and of lower numbers."""
        insort_right(self._waiting, request, key=attrgetter("priority"))

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Remove a request, waiting or running; it ends with the tokens that it has."""
        request.transcript.abort(reason)
        if self._reading is not None and self._reading.request is request:
            self._backend.retire(self._reading.slot)
            self._reading = None
        elif request in self._slots:
            self._free(self._slots.index(request))
        elif request in self._waiting:
            self._waiting.remove(request)

    def step(self) -> list[Request]:
        """Launch one pass, if there is one, and deliver the oldest tokens that are due.

        Returns the requests that received tokens, and those that were cancelled or timed out. A request is done when
        its transcript has finished.
        """
        if ended := self._end_early():
            return ended
        unread = self._lag if self._launch() else 0
        return list(self._read()) if len(self._flights) > unread else []

    def _end_early(self) -> list[Request]:
        now, ended = time.perf_counter(), []
        for request in self.requests:
            if request.delivery.is_unwanted or request.deadline <= now:
                self.abort(request, "abort" if request.delivery.is_unwanted else "timeout")
                ended.append(request)
        return ended

    @property
    def _lag(self) -> int:
        """Number of passes that may be unread."""
        return self._backend.lag if self._only_enqueues else 0

    @property
    def _only_enqueues(self) -> bool:
        """Return whether no round waits for the host, so that one may be launched before the last one has been read.

        A round waits if its strategy does, or if the host chooses the tokens of one of its requests.
        """
        chooses = any(request is not None and request.choice is not None for request in self._slots)
        return self._rounds.running_strategy().enqueues_only and not chooses

    def _launch(self) -> bool:
        """Enqueue a prompt chunk, or a round for all running requests, unless tokens must be read first."""
        self._admit()
        running = [request for request in self._slots if request is not None]
        # A row that may have reached the end of its cache in an unread round must not continue from there.
        has_room = all(request.most_committed < self._max_seq_len for request in running)
        can_go_on = has_room and not all(request.completes_next_round for request in running)
        if self._reading is not None:
            width = min(PREFILL_CHUNK, self._backend.prefill_columns, self._reading.most)
            if can_go_on:
                width = min(width, self._most_read)
            if self._reading.is_scored:
                width = min(width, self._backend.scored_columns)
            if not can_go_on or not self._read_since or self._read_since + width <= self._most_read:
                self._launch_piece(self._reading, width)
                return True
        if not can_go_on or (self._flights and not self._only_enqueues):
            return False
        self._launch_round()
        return True

    def _admit(self) -> None:
        """Assign a slot to the first waiting request if one is free, no other prompt is being read, and its method
        may join."""
        free = next((slot for slot, request in enumerate(self._slots) if request is None), None)
        if not (self._waiting and self.admits) or self._reading is not None or free is None:
            return
        request, strategy = self._waiting[0], self._rounds.of(self._waiting[0].method)
        if not self._rounds.may_join(request.method):
            return
        del self._waiting[0]
        if self.is_empty and strategy.enqueues_only:
            for k in request.policy.counts:
                self._backend.warm(strategy.round, k)
        request.prefill_began = time.perf_counter()
        numbers = uniform_stream(request.seed, self._max_seq_len + 1)
        self._backend.admit(free, request.params, numbers, request.choice, request.drafter)
        self._reading = PromptReading(request, free, first_k(request, self.num_running))
        drafts = request.method.needs_head
        # Caches contain no logits, so prompts with prompt_logprobs are read completely.
        found = []
        if not request.prompt_logprobs:
            found = self._prefixes.find(request.prompt, drafts=drafts, salt=request.salt)
        if found:
            self._backend.restore(free, found)
            self._reading.position = request.cached = len(found) * BLOCK

    def _launch_piece(self, reading: PromptReading, width: int) -> None:
        request, slot, piece = reading.request, reading.slot, reading.next(width)
        self._read_since += width
        self._backend.prompt(slot, piece, self._rounds.of(request.method).prompt, reading.k)
        if not piece.is_last:
            self._flights.append(Flight())
            return
        self._reading, self._slots[slot] = None, request
        self._launched(Flight(self._backend.first(slot), [request], [slot], most=[1]))
        self._keep(request, slot, request.prompt)

    def _keep(self, request: Request, slot: int, text: Sequence[int]) -> None:
        """Keep the slot's cache entries of a text that has been read up to its last token."""
        self._prefixes.keep(
            text,
            lambda start, end: self._backend.keep(slot, start, end),
            drafts=request.method.needs_head,
            salt=request.salt,
        )

    def _launch_round(self) -> None:
        self._read_since = 0
        policies, began = choose_drafts(self._slots), time.perf_counter()
        limits = draft_limits(policies, len(self._slots))
        strategy = self._rounds.running_strategy()
        emission = self._backend.round(strategy.round, max(limits), replay=self._only_enqueues, limits=limits)
        owners = tuple(self._slots)
        most = most_emitted(policies, len(owners))
        self._launched(Flight(emission, owners, range(len(owners)), most, policies, began))

    def _launched(self, flight: Flight) -> None:
        self._flights.append(flight)
        for request, most in zip(flight.owners, flight.most, strict=True):
            if request is not None:
                request.launched += 1
                request.ahead += most

    def _read(self) -> Iterator[Request]:
        """Read the oldest emission and deliver its tokens."""
        flight = self._flights.popleft()
        if flight.emission is None:
            self._read_at = inf if self._backend.lag else self._read_at  # it may still run
            return
        tokens, num_tokens = flight.emission.read()
        self._tell(flight, num_tokens)
        for row, request in enumerate(flight.owners):
            slot = flight.slots[row]
            if request is None or self._slots[slot] is not request:
                continue
            request.launched -= 1
            request.ahead -= flight.most[row]
            count = int(num_tokens[row])
            if request.decode_began:
                drafted, seconds = flight.emission.drafted[row], flight.emission.pass_seconds
                request.acceptance.add_round(drafted, count - 1, seconds)
                if _shows_fit(request):
                    self._misfits.of(request.drafter_name, request.drafter).add(drafted, count - 1)
            else:
                request.decode_began = time.perf_counter()
            request.extend(tokens[row, :count].tolist(), accepted=count - 1)
            if request.is_done:
                self._keep(request, slot, (*request.prompt, *request.transcript.token_ids))
                self._free(slot)
            yield request

    def _tell(self, flight: Flight, num_tokens: np.ndarray) -> None:
        """Report a round to its policies; it lasted from its launch, or from the end of the previous pass, until
        now."""
        began, self._read_at = max(flight.launched_at, self._read_at), time.perf_counter()
        if flight.emission is not None:
            for each in flight.policies:
                each.learn(flight.emission, num_tokens, self._read_at - began if began < inf else None)

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._backend.retire(slot)


def _shows_fit(request: Request) -> bool:
    """Return whether its acceptance shows if the drafter fits the target: a head drafts, and the text is
    predictable."""
    return request.method.needs_head and request.params.temperature <= 1 and request.choice is None
