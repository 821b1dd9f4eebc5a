"""Common prefixes are copied instead of read again, within a memory limit, without changing texts or drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines import engine as engines
from peagle.engines.backends.onnxruntime import backend as onnxruntime
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead
from peagle.engines.scheduling.prefix_cache import BLOCK, PrefixCache
from peagle.plugins.errors import UsageError

SHARED = [[7, 9, 30] * 12, [7, 9, 30] * 7 + [40, 41] * 6, [3] * 50]


@pytest.fixture(scope="module")
def row_by_row(tiny_folder: Path) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "supports_rows", lambda *_: False)
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
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    """A policy that returns this K until it is changed."""

    max_drafts, counts = 3, (0, 1, 2, 3)

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
            assert result.cached_tokens >= BLOCK
            assert (result.token_ids, result.acceptance) == (expected.token_ids, expected.acceptance)
        assert alone[0].acceptance.drafted


def test_shared_blocks_are_read_once(tiny_engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    with _keeping(tiny_engine, 10**8) as engine:
        first, again = engine.generate([SHARED[0]], params)[0], engine.generate([SHARED[0]], params)[0]
        assert (first.cached_tokens, again.cached_tokens) == (0, 2 * BLOCK)
        assert engine.generate([SHARED[1]], params)[0].cached_tokens == BLOCK  # the texts share 21 tokens
        assert engine.generate([[5, *SHARED[0]]], params)[0].cached_tokens == 0
        assert engine.generate([SHARED[0][:BLOCK]], params)[0].cached_tokens == 0  # its last token must be read
        assert engine.generate([SHARED[2]], params, draft="none")[0].cached_tokens == 0
        assert engine.generate([SHARED[2]], params)[0].cached_tokens == 0  # the drafter has not read it
        assert engine.generate([SHARED[2]], params, draft="ngram")[0].cached_tokens == 3 * BLOCK
    with _keeping(tiny_engine, 0) as engine:
        assert engine.generate([SHARED[0]] * 2, params)[1].cached_tokens == 0


def test_requests_share_blocks_only_with_those_of_the_same_salt(tiny_engine: Engine) -> None:
    """Prompts and answers; the text is that of a request without a salt."""
    prompt = SHARED[0]
    with _keeping(tiny_engine, 10**8) as engine:

        def cached(text: list[int], salt: str | None) -> int:
            params = SamplingParams(max_tokens=20, ignore_eos=True, cache_salt=salt)
            result = engine.submit(text, params).result()
            assert result.token_ids[:20] == answer[len(text) - len(prompt) :][:20]
            return result.cached_tokens

        answer = tiny_engine.generate([prompt], SamplingParams(max_tokens=60, ignore_eos=True))[0].token_ids
        for salt in (None, "one", "two"):
            assert cached(prompt, salt) == 0
            assert cached(prompt, salt) == 2 * BLOCK
            assert cached([*prompt, *answer[:20]], salt) == 3 * BLOCK


@pytest.fixture(scope="module")
def eagle3_engine(eagle3_folder: Path) -> Engine:
    return Engine.load(eagle3_folder, max_batch_size=3, threads=1, prefix_cache_bytes=0)


@pytest.mark.parametrize("drafts", [{}, {"num_speculative_tokens": 0}, {"draft": "ngram"}])
@pytest.mark.parametrize("name", ["tiny_engine", "eagle3_engine"])
def test_a_growing_conversation_prefills_only_new_tokens(
    request: pytest.FixtureRequest, name: str, drafts: dict[str, Any]
) -> None:
    """Answers are kept as well as prompts."""
    forgetful: Engine = request.getfixturevalue(name)
    params, said = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, seed=4), [7, 9, 30]
    with _keeping(forgetful, 10**8) as engine:
        for turn in range(3):
            result = engine.generate([said], params, **drafts)[0]
            with _keeping(forgetful, 0) as other:
                alone = other.generate([said], params, **drafts)[0]
            assert (result.token_ids, result.acceptance) == (alone.token_ids, alone.acceptance)
            if turn:
                assert len(said) - result.cached_tokens <= BLOCK + 4  # the question, and less than a block before it
            said = [*said, *result.token_ids, 8, 9, turn]


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
        assert engine.generate([prompt], params)[0].cached_tokens == BLOCK
    assert all(np.array_equal(*pair) for pair in zip(caches(), whole, strict=True))


@dataclass(frozen=True)
class _Kept:
    """Entries of so many bytes."""

    num_bytes: int
    is_read: bool = True


def _texts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from([[1] * BLOCK, [2] * BLOCK, [3]]), min_size=1, max_size=length).map(
        lambda parts: [token for part in parts for token in part]
    )


@given(texts=st.lists(st.tuples(_texts(5), st.booleans(), st.integers(1, 9)), max_size=30), limit=st.integers(0, 60))
def test_cache_memory_stays_within_its_limit(texts: list[tuple[list[int], bool, int]], limit: int) -> None:
    """Also if entries take more or less than estimated; a block never outlives the ones before it."""
    cache = PrefixCache(limit, token_bytes=1)
    for text, drafts, size in texts:
        cache.keep(text, lambda start, end, size=size: _Kept(size + end - start), drafts=drafts)  # type: ignore[misc]
        assert len(cache.find(text, drafts=drafts)) * BLOCK < len(text)
        assert cache.num_bytes == sum(block.entries.num_bytes for block in cache._blocks) <= limit
        assert all(block.parent is None or block.parent in cache._blocks for block in cache._blocks)


def test_least_recently_used_blocks_are_evicted_last_ones_first() -> None:
    cache = PrefixCache(4 * BLOCK, token_bytes=1)
    one, two = [1] * (2 * BLOCK + 1), [2] * (2 * BLOCK + 1)

    def keep(text: list[int]) -> None:
        cache.keep(text, lambda start, end: _Kept(end - start), drafts=True)

    def found(text: list[int]) -> int:
        return len(cache.find(text, drafts=True))

    keep(one)
    keep(two)
    assert (found(two), found(one)) == (2, 2)
    keep([3] * (BLOCK + 1))
    assert (found(one), found(two), found([3] * (BLOCK + 1))) == (2, 1, 1)
    keep([4] * (9 * BLOCK))  # longer than the cache: its beginning takes all of it
    assert (found(one), found(two), found([4] * (9 * BLOCK))) == (0, 0, 4)


def test_blocks_read_by_a_drafter_replace_unread_ones() -> None:
    """A drafter never has a gap, because what it has read precedes what it can read."""
    cache, text, copied = PrefixCache(100, token_bytes=1), [1] * (2 * BLOCK + 1), list[tuple[int, int]]()

    def keep(length: int, *, drafts: bool, is_read: bool) -> None:
        def copy(start: int, end: int) -> _Kept:
            copied.append((start, end))
            return _Kept(end - start, is_read)

        copied.clear()
        cache.keep(text[:length], copy, drafts=drafts)

    keep(BLOCK + 1, drafts=False, is_read=True)
    assert (len(cache.find(text, drafts=False)), len(cache.find(text, drafts=True))) == (1, 0)
    keep(BLOCK + 1, drafts=True, is_read=False)
    assert [each.is_read for each in cache.find(text, drafts=True)] == [False]
    keep(len(text), drafts=True, is_read=True)
    assert [each.is_read for each in cache.find(text, drafts=True)] == [True, True]
    keep(len(text), drafts=True, is_read=False)
    assert not copied
    keep(len(text), drafts=False, is_read=True)
    assert not copied


def test_memory_is_taken_by_default_where_restored_entries_are_exact(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)

    def cached(**options: Any) -> int:
        with Engine.load(tiny_folder, threads=1, check="sizes", **options) as engine:
            return engine.generate([SHARED[0]] * 2, params)[1].cached_tokens

    assert cached() == 2 * BLOCK
    assert cached(prefix_cache_bytes=0) == 0
    monkeypatch.setattr(engines, "free_memory", lambda: 0)
    assert cached() == 0
    monkeypatch.undo()
    monkeypatch.setattr(onnxruntime, "supports_rows", lambda *_: False)
    assert cached() == 0
    assert cached(prefix_cache_bytes=10**8) == 2 * BLOCK


def test_a_negative_limit_is_refused(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="prefix_cache_bytes must be an integer of 0 or more"):
        Engine.load(tiny_engine.folder, prefix_cache_bytes=-1)
