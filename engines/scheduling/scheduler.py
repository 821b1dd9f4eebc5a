"""Scheduler: admission by priority and in order, slots, and chunked prefill between rounds.

Each step launches one pass. While requests run, prompts are prefilled in pieces between two rounds, so that a long
prompt delays each of their tokens only a little. The oldest prompt and the one with the fewest tokens left take turns,
so that a short prompt does not wait for the whole of a long one.
"""

from __future__ import annotations

import time
from bisect import insort_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from operator import attrgetter

from ..backends.base import Backend, KeptEntries
from ..policy.misfit import Misfits
from ..policy.prompt_pieces import FixedPieces, PromptPieces, TimedPieces
from ..requests.random_numbers import uniform_stream
from ..requests.results import FinishReason
from ..running.request import Request
from .passes import Flight, PromptReading
from .prefix_cache import BLOCK, PrefixCache
from .round_policies import RoundPolicies, draft_limits, first_k, max_emitted
from .shared_rounds import SharedRounds

PREFILL_CHUNK = 512  # columns; longer passes are not faster
COPIED = 512  # cached tokens that are copied between two rounds; about as fast as a round
KEPT_TOGETHER = 32  # tokens of a prompt whose cache entries are kept at once; all of a long prompt would delay rounds
JOINING_TOKENS = 256  # prompts that end within so many tokens join the running requests soon
UNTIMED_PREFILL_TOKENS = 128  # between two rounds of running requests, where pieces are not sized by time


class Scheduler:
    """Runs requests in the slots of a backend; further requests wait. The output of a request depends on no other.

    Results may be read late: the backend determines how many passes are launched before the oldest is read, so that a
    GPU gets its next round before the host has read the last result. A new scheduler ends everything that ran on the
    backend. While ``admits`` is False, no waiting request starts.

    ``max_prefill_tokens`` is the number of prompt tokens between two rounds of running requests. None sizes pieces by
    their time, if calls return after their pass has ended and results do not depend on the sizes of pieces in any bit.
    """

    def __init__(
        self,
        backend: Backend,
        max_seq_len: int,
        max_prefill_tokens: int | None = None,
        prefixes: PrefixCache | None = None,
        misfits: Misfits | None = None,
    ) -> None:
        self.admits = True
        self._prefixes, self._misfits = prefixes or PrefixCache(0, 0), misfits or Misfits()
        self._backend, self._max_seq_len = backend, max_seq_len
        if max_prefill_tokens is None and backend.keeps_exactly and not backend.lag:
            self._pieces: PromptPieces = TimedPieces()
        else:
            self._pieces = FixedPieces(max_prefill_tokens or UNTIMED_PREFILL_TOKENS)
        self._waiting: list[Request] = []  # the next one first
        self._slots: list[Request | None] = [None] * backend.num_slots
        self._readings: list[PromptReading] = []  # oldest first
        self._is_turn_of_oldest = True
        self._has_read = self._has_copied = False  # since the last round
        self._flights: deque[Flight] = deque()
        self._read_at = 0.0  # when the last pass was known to have ended
        self._rounds, self._policies = SharedRounds(self._slots), RoundPolicies(self._slots)
        backend.begin()

    @property
    def is_idle(self) -> bool:
        """Return True if no request waits or runs."""
        return self.is_empty and not self._waiting

    @property
    def is_empty(self) -> bool:
        """Return True if no request runs."""
        return not self._readings and not any(self._slots)

    @property
    def requests(self) -> list[Request]:
        """All waiting and running requests."""
        return [*filter(None, self._slots), *(each.request for each in self._readings), *self._waiting]

    @property
    def num_running(self) -> int:
        """Number of requests in a slot."""
        return sum(request is not None for request in self._slots) + len(self._readings)

    @property
    def num_committed(self) -> int:
        """Number of tokens in the caches of running requests."""
        running = [request for request in [*self._slots] if request is not None]
        read = sum(reading.position for reading in [*self._readings])
        return sum(len(each.prompt) + each.num_written for each in running) + read

    def submit(self, request: Request) -> None:
        """Queue a request for a slot, behind those of the same priority and of lower numbers."""
        insort_right(self._waiting, request, key=attrgetter("priority"))

    def abort(self, request: Request, reason: FinishReason = "abort") -> None:
        """Remove a request, waiting or running; it ends with the tokens that it has."""
        request.transcript.abort(reason)
        reading = next((each for each in self._readings if each.request is request), None)
        if reading is not None:
            self._readings.remove(reading)
            self._backend.retire(reading.slot)
        elif request in self._slots:
            self._free(self._slots.index(request))
        elif request in self._waiting:
            self._waiting.remove(request)

    def step(self) -> list[Request]:
        """Launch one pass or copy, if there is one, and deliver the oldest tokens that are due.

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
        lag = self._backend.lag
        return lag if lag and self._can_launch_ahead else 0

    @property
    def _can_launch_ahead(self) -> bool:
        """Return True if no round waits for the host, so that one may be launched before the last one has been read.

        A round waits if its strategy does, or if the host chooses the tokens of one of its requests.
        """
        return self._rounds.running_strategy().enqueues_only and not self._rounds.chooses_on_host

    def _launch(self) -> bool:
        """Enqueue a prompt chunk, or a round for all running requests, unless tokens must be read first."""
        while self._admit():
            pass
        running = [request for request in self._slots if request is not None]
        # A row that may have reached the end of its cache in an unread round must not continue from there.
        has_room = all(request.max_committed < self._max_seq_len for request in running)
        can_go_on = has_room and not all(request.completes_next_round for request in running)
        if self._readings and self._launch_piece(self._next_reading(), beside_rounds=can_go_on):
            return True
        if not can_go_on or (self._flights and not self._can_launch_ahead):
            return False
        self._launch_round()
        return True

    def _admit(self) -> bool:
        """Assign a slot to the first waiting request and return True, if one is free and its method may join."""
        if not (self._waiting and self.admits):
            return False
        taken = {reading.slot for reading in self._readings}
        free = next((at for at, each in enumerate(self._slots) if each is None and at not in taken), None)
        if free is None:
            return False
        request, strategy = self._waiting[0], self._rounds.of(self._waiting[0].method)
        if not self._rounds.may_join(request.method, (reading.request.method for reading in self._readings)):
            return False
        del self._waiting[0]
        if self.is_empty and strategy.enqueues_only:
            for k in request.policy.counts:
                self._backend.warm(strategy.round, k, request.drafter)
        request.prefill_began = time.perf_counter()
        numbers = uniform_stream(request.seed, self._max_seq_len + 1)
        drafts = request.method.needs_head
        self._backend.admit(free, request.params, numbers, request.choice, request.drafter, drafts=drafts)
        behind = self._prompts_with_prefix(request)
        joining = min(len(self._waiting), self._backend.num_slots - self.num_running - 1)
        self._readings.append(PromptReading(request, free, first_k(request, self.num_running + joining), behind))
        return True

    def _prompts_with_prefix(self, request: Request) -> list[PromptReading]:
        """Return the prompts being read from which at least half of what it must read will be copied."""
        if not self._readings or not self._prefixes.max_bytes or request.prompt_logprobs:
            return []
        known = len(self._found(request)) * BLOCK
        return [reading for reading in self._readings if reading.shares_prefix(request, known)]

    def _found(self, request: Request) -> list[KeptEntries]:
        """Return the cache entries of the beginning of its prompt.

        Caches contain no logits, so prompts with prompt_logprobs are read completely.
        """
        if request.prompt_logprobs:
            return []
        return self._prefixes.find(request.prompt, drafts=request.method.needs_head, salt=request.salt)

    def _next_reading(self) -> PromptReading:
        """Return the prompt whose turn it is: the oldest, or the one with the fewest tokens left.

        Both get half of the pieces, so neither waits for all of the other, and prompts of one length are read one after
        the other: pieces of all of them in turn would delay the first token of all.
        """
        if self._is_turn_of_oldest:
            return self._readings[0]
        ready = [each for each in self._readings if not any(other in self._readings for other in each.behind)]
        return min(ready, key=lambda reading: reading.rest)

    def _launch_piece(self, reading: PromptReading, *, beside_rounds: bool) -> bool:
        """Enqueue the next chunk of a prompt; with ``beside_rounds``, return False if a round is due before it."""
        request, slot = reading.request, reading.slot
        max_tokens, scored = min(PREFILL_CHUNK, self._backend.prefill_columns), reading.is_scored
        if scored:
            max_tokens = min(max_tokens, self._backend.scored_columns)
        if reading.found is None:
            reading.found = self._found(request)
        if reading.found:
            return self._copy(reading, beside_rounds=beside_rounds)
        at = reading.position
        if beside_rounds:
            max_tokens = min(max_tokens, self._pieces.max_tokens(at, scored=scored))
        width = min(max_tokens, reading.max_tokens)
        if beside_rounds and (self._has_copied or not self._pieces.fits(at, width, scored=scored)):
            return False
        piece, started = reading.next(width), time.perf_counter()
        self._is_turn_of_oldest, self._has_read = reading is not self._readings[0], True
        self._backend.prompt(slot, piece, self._rounds.of(request.method).prompt, reading.k)
        if piece.is_last:
            self._readings.remove(reading)
            self._assign_slot(slot, request)
            self._launched(Flight(self._backend.first(slot), [request], [slot], max_tokens=[1]))
            self._keep_prefix(request, slot, request.prompt)
        else:
            self._flights.append(Flight())
            if reading.position - reading.offered >= KEPT_TOGETHER:
                reading.offered = reading.position
                self._keep_prefix(request, slot, request.prompt[: reading.position + 1])
        self._pieces.add_piece(at, width, time.perf_counter() - started, scored=scored)
        return True

    def _copy(self, reading: PromptReading, *, beside_rounds: bool) -> bool:
        """Copy cache entries of the beginning of a prompt.

        With ``beside_rounds``, only some of them, and nothing else between the same two rounds.
        """
        if beside_rounds and (self._has_read or self._has_copied):
            return False
        found, count = reading.found or [], COPIED // BLOCK
        part, reading.found = (found[:count], found[count:]) if beside_rounds else (found, [])
        self._backend.restore(reading.slot, part)
        reading.position += len(part) * BLOCK
        reading.offered = reading.request.cached = reading.position
        self._is_turn_of_oldest, self._has_copied = reading is not self._readings[0], True
        return True

    def _keep_prefix(self, request: Request, slot: int, text: Sequence[int]) -> None:
        """Keep the slot's cache entries of a text that has been read up to its last token."""
        self._prefixes.keep(
            text,
            lambda start, end: self._backend.keep(slot, start, end),
            drafts=request.method.needs_head,
            salt=request.salt,
        )

    def _launch_round(self) -> None:
        self._pieces.begin_round()
        self._has_read = self._has_copied = False
        policies, started = self._policies.choose(self._num_joining()), time.perf_counter()
        limits = draft_limits(policies, len(self._slots))
        strategy = self._rounds.running_strategy()
        emission = self._backend.round(strategy.round, max(limits), replay=self._can_launch_ahead, limits=limits)
        owners = tuple(self._slots)
        max_tokens = max_emitted(policies, len(owners))
        self._launched(Flight(emission, owners, range(len(owners)), max_tokens, policies, started))

    def _num_joining(self) -> int:
        """Return the number of prompts that will soon have been read."""
        if not self._readings:
            return 0
        tokens = accumulate(sorted(reading.rest for reading in self._readings))
        return sum(each <= JOINING_TOKENS for each in tokens)

    def _launched(self, flight: Flight) -> None:
        self._flights.append(flight)
        for request, max_tokens in zip(flight.owners, flight.max_tokens, strict=True):
            if request is not None:
                request.launched += 1
                request.ahead += max_tokens

    def _read(self) -> Iterator[Request]:
        """Read the oldest emission and deliver its tokens."""
        flight = self._flights.popleft()
        if flight.emission is None:
            self._read_at = inf if self._backend.lag else self._read_at  # it may still run
            return
        tokens = flight.emission.read()
        self._report_round(flight, tokens)
        for row, request in enumerate(flight.owners):
            slot = flight.slots[row]
            if request is None or self._slots[slot] is not request:
                continue
            request.launched -= 1
            request.ahead -= flight.max_tokens[row]
            accepted = len(tokens[row]) - 1
            if request.decode_began:
                drafted, seconds = flight.emission.drafted[row], flight.emission.pass_seconds
                request.acceptance.add_round(drafted, accepted, seconds)
                if drafted and _shows_fit(request):
                    self._misfits.of(request.drafter_name, request.drafter).add(drafted, accepted)
            else:
                request.decode_began = time.perf_counter()
            request.extend(tokens[row], accepted)
            if request.is_done:
                self._keep_prefix(request, slot, (*request.prompt, *request.transcript.token_ids))
                self._free(slot)
            yield request

    def _report_round(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """Report a round to the policies; it lasted from its launch, or from the end of the previous pass, until
        now."""
        started, self._read_at = max(flight.launched_at, self._read_at), time.perf_counter()
        if flight.emission is not None and flight.policies:
            seconds = self._read_at - started if started < inf else None
            self._pieces.add_round(seconds)
            for each in flight.policies:
                each.learn(flight.emission, tokens, seconds)

    def _free(self, slot: int) -> None:
        self._assign_slot(slot, None)
        self._backend.retire(slot)

    def _assign_slot(self, slot: int, request: Request | None) -> None:
        self._slots[slot] = request
        self._rounds.slots_changed()
        self._policies.slots_changed()


def _shows_fit(request: Request) -> bool:
    """Return True if its acceptance shows if the drafter fits the target: a head drafts, and the text is
    predictable."""
    return request.method.needs_head and request.params.temperature <= 1 and request.choice is None
