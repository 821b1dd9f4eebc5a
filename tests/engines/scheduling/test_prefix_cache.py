"""Prompts that begin alike: what was read once is copied, within a limit of memory, and no text or draft changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import backend as onnxruntime
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead
from peagle.engines.scheduling.prefix_cache import LEAST_TOKENS, PrefixCache
from peagle.plugins.errors import UsageError

SHARED = [[7, 9, 30] * 12, [7, 9, 30] * 7 + [40, 41] * 6, [3] * 50]


@pytest.fixture(scope="module")
def row_by_row(tiny_folder: Path) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "_OWN_KERNELS", "another")
        engine = Engine.load(tiny_folder, max_batch_size=3, threads=1, check="sizes")
    assert not engine._backend._lanes.takes_rows  # type: ignore[attr-defined]
    return engine


def _keeping(engine: Engine, num_bytes: int, **options: Any) -> Engine:
    return Engine(
        engine.folder, engine.manifest, engine._backend, engine.tokenizer, prefix_cache_bytes=num_bytes, **options
    )


PROMPTS = st.builds(
    lambda shared, cut, tail: [*shared[:cut], *tail],
    st.sampled_from(SHARED),
    st.integers(1, 50),
    st.lists(st.integers(0, 95), max_size=8),
)
DRAFTS = st.sampled_from([{}, {"num_speculative_tokens": 2}, {"draft": "none"}, {"draft": "ngram"}])


@pytest.mark.parametrize("lanes", ["tiny_engine", "row_by_row"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(PROMPTS, DRAFTS), min_size=2, max_size=9),
    tokens=st.sampled_from([40, 100, 10_000]),
    max_prefill_tokens=st.sampled_from([5, 64]),
)
def test_cached_prompt_gives_the_same_text_and_drafts(
    request: pytest.FixtureRequest, lanes: str, asked: list[Any], tokens: int, max_prefill_tokens: int
) -> None:
    params = SamplingParams(max_tokens=14, ignore_eos=True, temperature=0.8, seed=4)
    keeper: Engine = request.getfixturevalue(lanes)
    alone = [keeper.generate([prompt], params, **drafts)[0] for prompt, drafts in asked]
    limit = tokens * keeper._backend.kept_bytes
    with _keeping(keeper, limit, max_prefill_tokens=max_prefill_tokens) as engine:
        told = [engine.submit(prompt, params, **drafts) for prompt, drafts in asked]
        for submission, expected in zip(told, alone, strict=True):
            result = submission.result()
            assert (result.token_ids, result.acceptance) == (expected.token_ids, expected.acceptance)


class Says:
    """A policy that says this K until it is changed."""

    most, counts = 3, (0, 1, 2, 3)

    def __init__(self, k: int) -> None:
        self.k = k

    def choose(self, ahead: RoundAhead) -> int:
        return self.k

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return k

    def learn(self, seen: ObservedRound) -> None:
        pass


@pytest.mark.parametrize("lanes", ["tiny_engine", "row_by_row"])
@pytest.mark.parametrize("max_prefill_tokens", [5, 64])
def test_drafter_reads_a_prompt_it_skipped_before(
    request: pytest.FixtureRequest, lanes: str, max_prefill_tokens: int
) -> None:
    """It was kept while nothing was drafted; drafts are those of a prompt that the drafter read at once."""
    keeper, params = request.getfixturevalue(lanes), SamplingParams(max_tokens=30, ignore_eos=True)
    shared, longer = SHARED[0], [*SHARED[0][:30], 8, 9, 8, 9, 11]
    alone = [keeper.generate([each], params, num_speculative_tokens=3)[0] for each in (shared, longer)]
    policy = Says(0)
    with _keeping(keeper, 10**8, policy=policy, max_prefill_tokens=max_prefill_tokens) as engine:
        assert engine.generate([shared], params)[0].acceptance.drafted == 0
        policy.k = 3
        for prompt, expected in ((longer, alone[1]), (shared, alone[0]), (longer, alone[1])):
            result = engine.generate([prompt], params)[0]
            assert result.cached_tokens >= 29
            assert (result.token_ids, result.acceptance) == (expected.token_ids, expected.acceptance)
        assert alone[0].acceptance.drafted


def test_shared_prefix_is_read_once(tiny_engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    with _keeping(tiny_engine, 10**8) as engine:
        first, again = engine.generate([SHARED[0]], params)[0], engine.generate([SHARED[0]], params)[0]
        assert (first.cached_tokens, again.cached_tokens) == (0, len(SHARED[0]) - 1)
        assert engine.generate([SHARED[1]], params)[0].cached_tokens == 20  # of 21 that are the same
        assert engine.generate([[5, *SHARED[0]]], params)[0].cached_tokens == 0
        assert engine.generate([SHARED[2]], params, draft="none")[0].cached_tokens == 0
        assert engine.generate([SHARED[2]], params)[0].cached_tokens == 0  # the drafter has not read it
        assert engine.generate([SHARED[2]], params, draft="ngram")[0].cached_tokens == len(SHARED[2]) - 1
    assert tiny_engine.generate([SHARED[0]] * 2, params)[1].cached_tokens == 0  # off by default


@pytest.mark.parametrize("tail", [[], [40], [40, 41, 2], [30]])
def test_both_caches_match_a_full_prompt_pass(tiny_engine: Engine, tail: list[int]) -> None:
    """To the bit: the drafter's last shared slot was made from a token that the two prompts do not share."""
    params, prompt = SamplingParams(max_tokens=1), [*SHARED[0][:25], *tail]

    def caches() -> list[np.ndarray]:
        arrays: Any = tiny_engine._backend._caches  # type: ignore[attr-defined]
        return [cache[0, :, : len(prompt)] for cache in (*arrays.target.values(), *arrays.drafter.values())]

    tiny_engine.generate([prompt], params)
    whole = [cache.copy() for cache in caches()]
    with _keeping(tiny_engine, 10**8) as engine:
        engine.generate([SHARED[0]], params)
        for cache in caches():
            cache[:] = np.nan
        assert engine.generate([prompt], params)[0].cached_tokens >= 24
    assert all(np.array_equal(*pair) for pair in zip(caches(), whole, strict=True))


@dataclass(frozen=True)
class _Kept:
    num_bytes: int


@given(prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), max_size=30), limit=st.integers(0, 100))
def test_cache_memory_stays_within_its_limit(prompts: list[list[int]], limit: int) -> None:
    cache = PrefixCache(limit)
    for prompt in prompts:
        if (found := cache.find(prompt, drafts=True)) is not None:
            assert LEAST_TOKENS <= found[1] < len(prompt)
        if cache.takes(prompt, len(prompt), drafts=True):
            cache.add(prompt, _Kept(len(prompt)), drafts=True)
            assert cache.find(prompt, drafts=True) == (_Kept(len(prompt)), len(prompt) - 1)
        assert cache.num_bytes == sum(entry.kept.num_bytes for entry in cache._entries.values()) <= limit


def test_least_recently_used_prefix_is_evicted() -> None:
    cache = PrefixCache(100)
    one, two, three = ([token] * 40 for token in (1, 2, 3))
    for prompt in (one, two):
        cache.add(prompt, _Kept(40), drafts=True)
    assert cache.find(one, drafts=True)
    cache.add(three, _Kept(40), drafts=True)
    assert [bool(cache.find(prompt, drafts=True)) for prompt in (one, two, three)] == [True, False, True]
    cache.add(np.array([*one, 5]).tolist(), _Kept(41), drafts=True)  # a longer one takes the place of its beginning
    assert cache.num_bytes == 81


def test_engine_without_prefix_cache_support_reports_it(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_engine._backend, "kept_bytes", 0)
    with pytest.raises(UsageError, match="does not support prefix caching"):
        _keeping(tiny_engine, 1)
    with pytest.raises(UsageError, match="prefix_cache_bytes must be an integer of 0 or more"):
        Engine.load(tiny_engine.folder, prefix_cache_bytes=-1)
