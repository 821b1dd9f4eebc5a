"""Rows of several drafters share the target's passes, and do not affect each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import backend, lanes, loaded_graphs
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.mixed_requests import PROMPTS

DRAFTERS = ["built-in", "twin", "noisy"]
K = 3


@pytest.fixture(scope="module", params=["rows together", "rows one by one"])
def engine(drafters_folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "rows one by one":
            patch.setattr(backend, "supports_rows", lambda *_: False)
        loaded = Engine.load(drafters_folder, max_batch_size=3, threads=1, drafters=DRAFTERS, draft="twin")
    assert loaded._backend._lanes.takes_rows == (request.param == "rows together")  # type: ignore[attr-defined]
    with loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone(drafters_folder: Path) -> Iterator[Engine]:
    with Engine.load(drafters_folder, threads=1, drafters=DRAFTERS) as loaded:
        yield loaded


def told(output: Any) -> Any:
    return output.token_ids, output.drafter, output.acceptance.drafted, output.acceptance.accepted


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_requests_among_those_of_other_drafters_decode_as_they_do_alone(
    engine: Engine, alone: Engine, data: st.DataObject
) -> None:
    """More requests than rows, so that rows move. Rows that run one by one have chains of drafts instead of trees."""
    policy = st.builds(
        SamplingParams,
        max_tokens=st.sampled_from([1, 4, 20]),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 99),
        ignore_eos=st.just(True),
    )
    prompt = st.lists(st.integers(2, 2000), min_size=1, max_size=20) | st.sampled_from(PROMPTS)
    requests = data.draw(st.lists(st.tuples(prompt, policy, st.sampled_from(DRAFTERS)), min_size=1, max_size=7))
    sent = [engine.submit(ids, params, draft=draft, num_speculative_tokens=K) for ids, params, draft in requests]
    together = [told(each.result()) for each in sent]
    lonely = [
        told(alone.generate([ids], params, draft=draft, num_speculative_tokens=K)[0]) for ids, params, draft in requests
    ]
    plain = [alone.generate([ids], params, draft="none")[0].token_ids for ids, params, _ in requests]
    assert [each[0] for each in together] == plain
    if engine._backend._lanes.takes_rows:  # type: ignore[attr-defined]
        assert together == lonely


def test_same_head_twice_accepts_the_same_drafts(alone: Engine) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    first, second, worse = (
        alone.generate(["def area(width, height):\n    return"], params, draft=draft, num_speculative_tokens=K)[0]
        for draft in DRAFTERS
    )
    assert told(first)[2:] == told(second)[2:]
    assert first.acceptance.accepted > worse.acceptance.accepted


def test_drafters_of_adjacent_rows_have_a_pass_each_and_the_target_one(
    drafters_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    run = loaded_graphs.run

    def counted(session: Any, binding: Any) -> None:
        run(session, binding)
        passes.append(binding.get_outputs()[0].shape()[0])

    with Engine.load(drafters_folder, max_batch_size=3, threads=1, drafters=["twin"]) as engine:
        engine.generate([[5]], SamplingParams(max_tokens=1))
        monkeypatch.setattr(lanes, "run", counted)
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        sent = [
            engine.submit(PROMPTS[0], params, draft=draft, num_speculative_tokens=2)
            for draft in ("built-in", "built-in", "twin")
        ]
        assert len({each.result().token_ids for each in sent}) == 1
    assert [3, 2, 1] in [passes[at : at + 3] for at in range(len(passes))]


def test_adaptive_drafter_takes_part_in_rounds_with_more_drafts_than_it_may_have(engine: Engine) -> None:
    params = SamplingParams(max_tokens=90, ignore_eos=True)
    sent = [
        engine.submit(PROMPTS[0], params, draft="built-in", num_speculative_tokens=8),
        engine.submit(PROMPTS[0], params, draft="noisy", num_speculative_tokens="auto"),
    ]
    deep, shallow = (each.result() for each in sent)
    assert deep.token_ids == shallow.token_ids
    assert shallow.acceptance.drafted
    assert max(shallow.acceptance.histogram) <= 3 < max(deep.acceptance.histogram)


def test_prefixes_are_shared_only_with_requests_of_the_same_drafter(drafters_folder: Path) -> None:
    prompt, params = list(range(2, 60)), SamplingParams(max_tokens=4, ignore_eos=True)
    with Engine.load(drafters_folder, threads=1, drafters=["twin"], prefix_cache_bytes=1 << 24) as engine:
        options: Any = [{"draft": draft, "num_speculative_tokens": 2} for draft in ("built-in", "twin", "twin")]
        outputs = [engine.generate([prompt], params, **each)[0] for each in options]
        outputs.append(engine.generate([prompt], params, draft="none")[0])
        assert [each.cached_tokens for each in outputs] == [0, 0, 48, 48]
        assert len({each.token_ids for each in outputs}) == 1


def test_caches_that_do_not_fit_are_refused(alone: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from peagle.engines.backends.onnxruntime import memory

    monkeypatch.setattr(memory, "memory_bytes", lambda: 1000)
    with pytest.raises(EnvironmentProblem, match="the KV caches of 1 request"):
        alone._backend.load_drafter(alone.manifest, alone._loop.run_between)
