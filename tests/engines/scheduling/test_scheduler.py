"""With results that arrive late, text, ends and acceptance equal those of a backend without a lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.base import Steps
from peagle.engines.backends.onnxruntime.backend import OnnxRuntimeBackend
from peagle.engines.draft_methods import peagle_chain
from peagle.engines.draft_methods.lanes import Emission
from peagle.engines.policy.drafts_per_round import Fixed, ObservedRound, Policy, RoundAhead
from peagle.engines.policy.prompt_pieces import FixedPieces, TimedPieces
from peagle.engines.running.request import Request
from peagle.engines.scheduling import scheduler as scheduling
from peagle.engines.scheduling.prefix_cache import BLOCK, PrefixCache
from peagle.engines.scheduling.scheduler import Scheduler
from peagle.engines.text.transcript import Transcript
from tests.models import VOCAB


class Late:
    """ONNX Runtime's backend, whose emissions are wanted late; it fails when a row runs past its cache."""

    def __init__(self, backend: OnnxRuntimeBackend, lag: int) -> None:
        self._backend, self.lag = backend, lag
        self.num_slots, self.prefill_columns = backend.num_slots, backend.prefill_columns
        self.scored_columns = backend.scored_columns
        self.unread = self.most_unread = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def begin(self) -> None:
        self.unread = 0
        self._backend.begin()

    def first(self, slot: int) -> Emission:
        return _Unread(self, self._backend.first(slot))

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> Emission:
        shapes = self._backend.manifest.shapes
        for window in self._backend._lanes.windows():
            assert window.start + max(2 * k, 1) <= shapes.cache_length
            assert window.start < shapes.max_seq_len - 1
        return _Unread(self, self._backend.round(steps, k, replay=replay, limits=limits))


class _Unread:
    def __init__(self, backend: Late, emission: Emission) -> None:
        self._backend, self._emission = backend, emission
        backend.unread += 1
        backend.most_unread = max(backend.most_unread, backend.unread)

    @property
    def drafted(self) -> Sequence[int]:
        return self._emission.drafted

    @property
    def nodes(self) -> Mapping[int, Sequence[int]]:
        return self._emission.nodes

    @property
    def pass_seconds(self) -> tuple[float, float] | None:
        return self._emission.pass_seconds

    def read(self) -> Sequence[Sequence[int]]:
        self._backend.unread -= 1
        return self._emission.read()


def _late(engine: Engine, lag: int) -> tuple[Engine, Late]:
    backend = Late(engine._backend, lag)  # type: ignore[arg-type]
    return Engine(engine.folder, engine.manifest, backend, engine.tokenizer), backend


def _told(engine: Engine, prompts: list[list[int]], params: list[SamplingParams], k: int) -> list[object]:
    outputs = engine.generate(prompts, params, num_speculative_tokens=k)
    return [(o.token_ids, o.text, o.finish_reason, o.acceptance) for o in outputs]


POLICIES = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([1, 2, 5, 14, 200]),
    temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 99),
    ignore_eos=st.booleans(),
    stop=st.sampled_from([(), ("!",), ("%&", "'")]),
)
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12) | st.builds(
    lambda length, token: [token] * length, st.integers(70, 95), st.integers(0, VOCAB - 1)
)
REQUESTS = st.lists(st.tuples(PROMPTS, POLICIES), min_size=1, max_size=7)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.tuples(PROMPTS, POLICIES), min_size=1, max_size=7), k=st.integers(0, 6), lag=st.integers(1, 3)
)
def test_late_reads_match_immediate_reads(
    tiny_engine: Engine, requests: list[tuple[list[int], SamplingParams]], k: int, lag: int
) -> None:
    prompts, params = [p for p, _ in requests], [s for _, s in requests]
    late, backend = _late(tiny_engine, lag)
    assert _told(late, prompts, params, k) == _told(tiny_engine, prompts, params, k)
    assert backend.most_unread <= lag + 1


@pytest.mark.parametrize("lag", [1, 2])
def test_the_next_round_is_launched_before_the_last_is_read(tiny_engine: Engine, lag: int) -> None:
    late, backend = _late(tiny_engine, lag)
    late.generate([[5, 6]], SamplingParams(max_tokens=20, ignore_eos=True))
    assert backend.most_unread == lag + 1


def test_a_round_that_no_request_needs_is_not_launched(tiny_engine: Engine) -> None:
    late, backend = _late(tiny_engine, 1)
    late.generate([[5, 6], [7], [8], [9]], SamplingParams(max_tokens=1, ignore_eos=True))
    assert backend.most_unread == 2  # prompts follow each other
    late.generate([[5, 6]], SamplingParams(max_tokens=1, ignore_eos=True))
    assert backend.unread == 0


def test_a_slot_given_on_does_not_get_the_tokens_of_who_had_it(tiny_engine: Engine) -> None:
    """Many short requests through one slot: every one ends while a round of its is still to be read."""
    engine = Engine.load(tiny_engine.folder, threads=1, check="sizes")
    late, _ = _late(engine, 1)
    prompts = [[token, token + 1] for token in range(2, 14)]
    params = [SamplingParams(max_tokens=3 + i % 4, ignore_eos=True, temperature=0.9, seed=i) for i in range(12)]
    for k in (0, 5):
        assert _told(late, prompts, params, k) == _told(engine, prompts, params, k)


def test_an_abandoned_late_stream_leaves_the_engine_usable(tiny_engine: Engine) -> None:
    late, _ = _late(tiny_engine, 1)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = _told(tiny_engine, [[5, 6, 7]], [params], 4)
    next(iter(late.stream([9, 9], params)))
    assert _told(late, [[5, 6, 7]], [params], 4) == expected


@pytest.mark.parametrize("lag", [1, 2])
def test_generation_can_start_at_the_last_delta_of_a_late_stream(tiny_engine: Engine, lag: int) -> None:
    late, _ = _late(tiny_engine, lag)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    expected = _told(tiny_engine, [[5, 6, 7]], [params], 4)
    reasons = []
    for delta in late.stream([9, 9], params):
        if delta.finish_reason:
            reasons.append(delta.finish_reason)
            assert _told(late, [[5, 6, 7]], [params], 4) == expected
    assert reasons == ["length"]


def _request(engine: Engine, prompt: list[int], tokens: int, policy: Policy | None = None) -> Request:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    transcript = Transcript(params, engine.tokenizer, tokens, frozenset())
    return Request(tuple(prompt), params, 0, transcript, tokens, peagle_chain.METHOD, policy or Fixed(3))


def _scheduler(engine: Engine) -> Scheduler:
    return Scheduler(engine._backend, engine.max_seq_len)


def _finish(scheduler: Scheduler) -> None:
    while not scheduler.is_idle:
        scheduler.step()


def test_request_can_be_submitted_while_others_run(tiny_engine: Engine) -> None:
    prompts = [[5, 6, 7], [40], [9, 9]]
    expected = [o.token_ids for o in tiny_engine.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True))]
    scheduler = _scheduler(tiny_engine)
    requests = [_request(tiny_engine, prompt, 12) for prompt in prompts]
    for request in requests:
        scheduler.submit(request)
        scheduler.step()
    _finish(scheduler)
    assert [tuple(r.transcript.token_ids) for r in requests] == expected


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(priorities=st.lists(st.integers(-2, 2), min_size=1, max_size=12))
def test_waiting_requests_start_by_priority_and_then_as_they_came(tiny_engine: Engine, priorities: list[int]) -> None:
    scheduler = _scheduler(tiny_engine)
    requests = [_request(tiny_engine, [5, 6], 2) for _ in priorities]
    for request, priority in zip(requests, priorities, strict=True):
        request.priority = priority
        scheduler.submit(request)
    _finish(scheduler)
    started = sorted(range(len(requests)), key=lambda at: requests[at].prefill_began)
    assert started == sorted(range(len(requests)), key=lambda at: priorities[at])  # stable


@pytest.mark.parametrize("lag", [0, 1])
def test_an_aborted_request_gets_no_more_tokens_and_the_others_do(tiny_engine: Engine, lag: int) -> None:
    engine = _late(tiny_engine, lag)[0] if lag else tiny_engine
    expected = engine.generate([[40]], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids
    scheduler = _scheduler(engine)
    running, waiting = _request(engine, [5, 6, 7], 30), _request(engine, [8], 30)
    others = [_request(engine, [40], 12) for _ in range(3)]
    for request in (running, others[0], others[1], waiting, others[2]):
        scheduler.submit(request)
    for _ in range(6):
        scheduler.step()
    scheduler.abort(running)
    scheduler.abort(waiting)
    got = list(running.transcript.token_ids)
    _finish(scheduler)
    assert running.transcript.token_ids == got
    assert got
    assert waiting.transcript.token_ids == []
    assert all(tuple(r.transcript.token_ids) == expected for r in others)


def _ends(requests: Sequence[Request], scheduler: Scheduler) -> list[int]:
    """Return the requests in the order in which they got their first tokens."""
    order: list[int] = []
    while not scheduler.is_idle:
        scheduler.step()
        order += [at for at, each in enumerate(requests) if each.decode_began and at not in order]
    return order


LONG = [3 + at % 7 for at in range(80)]
SHORT = [5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("others", [0, 1])  # a free row behind the long prompt, or none
@pytest.mark.parametrize("lag", [0, 1])
def test_a_short_prompt_does_not_wait_for_all_of_a_long_one(
    tiny_engine: Engine, lag: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "PREFILL_CHUNK", 8)
    prompts = [*([[40]] * others), LONG, SHORT]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = [tiny_engine.generate([each], params)[0].token_ids for each in prompts]
    engine = _late(tiny_engine, lag)[0] if lag else tiny_engine
    assert engine._backend.num_slots == 3
    requests = [_request(engine, prompt, 12) for prompt in prompts]
    scheduler = Scheduler(engine._backend, engine.max_seq_len, max_prefill_tokens=4)
    for request in requests:
        scheduler.submit(request)
    assert _ends(requests, scheduler)[-1] == others
    assert [tuple(each.transcript.token_ids) for each in requests] == expected


def test_prompts_of_one_length_are_read_one_after_the_other(tiny_engine: Engine) -> None:
    requests = [_request(tiny_engine, [*LONG[:40], token], 30) for token in (5, 6, 7)]
    scheduler = Scheduler(tiny_engine._backend, tiny_engine.max_seq_len, max_prefill_tokens=4)
    for request in requests:
        scheduler.submit(request)
    while not requests[0].decode_began:
        scheduler.step()
    assert scheduler.num_committed <= len(requests[0].prompt) + 2


class Recording:
    """A policy of three drafts that records the rounds for which it was asked."""

    max_drafts, counts = 3, (3,)

    def __init__(self) -> None:
        self.asked: list[RoundAhead] = []

    def choose(self, ahead: RoundAhead) -> int:
        self.asked.append(ahead)
        return 3

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return k

    def learn(self, observed: ObservedRound) -> None:
        pass


def test_policy_knows_which_requests_join_soon(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive together are counted from the first prompt on; one with many tokens left is not."""
    monkeypatch.setattr(scheduling, "JOINING_TOKENS", 40)
    policy = Recording()
    scheduler = Scheduler(tiny_engine._backend, tiny_engine.max_seq_len, max_prefill_tokens=4)
    for prompt in (SHORT, LONG[:20], LONG[:50]):
        scheduler.submit(_request(tiny_engine, prompt, 40, policy))
    scheduler.step()
    assert [ahead.busy for ahead in policy.asked] == [3, 3, 3]
    _finish(scheduler)
    rounds = [(ahead.busy, ahead.joining) for ahead in policy.asked[3:]]
    assert [each for each, _ in groupby(rounds)][:4] == [(1, 1), (2, 0), (2, 1), (3, 0)]


def test_a_prompt_waits_for_one_from_which_it_can_copy(tiny_engine: Engine) -> None:
    """The shorter prompt would be read first, and both completely."""
    backend, most = tiny_engine._backend, tiny_engine.max_seq_len
    requests = [_request(tiny_engine, prompt, 3) for prompt in (LONG, LONG[:60])]
    scheduler = Scheduler(backend, most, 4, PrefixCache(1 << 30, backend.kept_bytes))
    for request in requests:
        scheduler.submit(request)
    assert _ends(requests, scheduler) == [0, 1]
    assert [each.cached for each in requests] == [0, 48]


def test_a_copied_prompt_lets_rounds_run_between_its_blocks(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "COPIED", BLOCK)
    backend, most = tiny_engine._backend, tiny_engine.max_seq_len
    scheduler = Scheduler(backend, most, prefixes=PrefixCache(1 << 30, backend.kept_bytes))
    first, again, stream = (
        _request(tiny_engine, prompt, tokens) for prompt, tokens in ((LONG, 5), (LONG, 5), (SHORT, 60))
    )
    scheduler.submit(first)
    _finish(scheduler)
    scheduler.submit(stream)
    while stream.num_written < 2:
        scheduler.step()
    scheduler.submit(again)
    before = stream.acceptance.rounds
    while not again.decode_began:
        scheduler.step()
    assert again.cached == 64
    assert stream.acceptance.rounds - before >= again.cached // BLOCK - 1
    _finish(scheduler)
    assert again.transcript.token_ids == first.transcript.token_ids


def test_pieces_are_sized_by_time_only_where_results_do_not_depend_on_their_sizes(tiny_engine: Engine) -> None:
    late, backend = _late(tiny_engine, 1)[1], tiny_engine._backend
    assert isinstance(Scheduler(backend, 96)._pieces, TimedPieces)
    assert isinstance(Scheduler(late, 96)._pieces, FixedPieces)  # type: ignore[arg-type]
    assert isinstance(Scheduler(backend, 96, max_prefill_tokens=7)._pieces, FixedPieces)
    inexact = Late(backend, 0)  # type: ignore[arg-type]
    inexact.keeps_exactly = False  # type: ignore[attr-defined]
    assert isinstance(Scheduler(inexact, 96)._pieces, FixedPieces)  # type: ignore[arg-type]


def test_the_prefilled_part_of_an_abandoned_prompt_is_kept(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "PREFILL_CHUNK", 8)
    backend, most = tiny_engine._backend, tiny_engine.max_seq_len
    scheduler = Scheduler(backend, most, prefixes=PrefixCache(1 << 30, backend.kept_bytes))
    abandoned, again = (_request(tiny_engine, LONG, 5) for _ in range(2))
    scheduler.submit(abandoned)
    while scheduler.num_committed < 64:
        scheduler.step()
    scheduler.abort(abandoned)
    scheduler.submit(again)
    _finish(scheduler)
    assert again.cached == 64
    assert again.transcript.token_ids == [
        *tiny_engine.generate([LONG], again.params, num_speculative_tokens=3)[0].token_ids
    ]
