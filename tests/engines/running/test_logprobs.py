"""Prompt logprobs equal those of one pass over the prompt, for any pieces, drafts and neighbors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.running import logprobs
from peagle.engines.running.logprobs import PromptLogprobs, logprob_of
from tests.models import VOCAB

LONG = [*range(2, 60), 5, 5, 9]


@pytest.fixture(scope="module", params=["peagle", "eagle3"])
def engine(request: pytest.FixtureRequest, tiny_folder: Path, eagle3_folder: Path) -> Engine:
    folder = tiny_folder if request.param == "peagle" else eagle3_folder
    return Engine.load(folder, max_batch_size=3, threads=1, prefix_cache_bytes=1 << 22)


def expected(engine: Engine, prompt: list[int]) -> list[float]:
    """By the whole prompt's logits, of every token but the first."""
    logits = engine.target_logits(prompt).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return [float(row[token]) for row, token in zip(logits, prompt[1:], strict=False)]


@pytest.mark.parametrize("draft", [None, "ngram", "none"])
@pytest.mark.parametrize("columns", [1, 7, 512])
def test_they_are_the_target_s_own_and_change_no_text(
    engine: Engine, draft: str | None, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "SCORED_BYTES", columns * 4 * VOCAB)
    prompts = [LONG, [7], [9, 30], LONG[3:40]]
    drawn: dict[str, Any] = {"max_tokens": 10, "ignore_eos": True, "temperature": 0.9, "seed": 2}
    asked = [SamplingParams(**drawn, prompt_logprobs=2), *[SamplingParams(**drawn, prompt_logprobs=0)] * 3]
    plain = engine.generate(prompts, SamplingParams(**drawn), draft="none")
    found = engine.generate(prompts, asked, draft=draft)
    assert [output.token_ids for output in found] == [output.token_ids for output in plain]
    for prompt, output in zip(prompts, found, strict=True):
        first, *others = output.prompt_logprobs
        assert first is None
        told = [each for each in others if each is not None]
        assert [each.token_id for each in told] == prompt[1:]
        assert [each.logprob for each in told] == pytest.approx(expected(engine, prompt), abs=1e-4)
    assert all(each is None or (len(each.top), each.top[0][1] >= each.logprob) == (2, True)
               for each in found[0].prompt_logprobs)  # fmt: skip
    assert plain[0].prompt_logprobs == ()


def test_cached_prompt_is_reread_for_prompt_logprobs(engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, prompt_logprobs=0)
    engine.generate([LONG], SamplingParams(max_tokens=1))
    assert engine.generate([LONG], SamplingParams(max_tokens=1))[0].cached_tokens
    (output,) = engine.generate([LONG], params)
    assert output.cached_tokens == 0
    assert len(output.prompt_logprobs) == len(LONG)


def test_stream_sends_prompt_logprobs_once(engine: Engine) -> None:
    stream = engine.stream(LONG, SamplingParams(max_tokens=6, ignore_eos=True, prompt_logprobs=1, logprobs=0))
    deltas = list(stream)
    assert [len(delta.prompt_logprobs) for delta in deltas] == [len(LONG), *[0] * (len(deltas) - 1)]
    assert deltas[0].prompt_logprobs == stream.result.prompt_logprobs
    assert [one for delta in deltas for one in delta.logprobs] == list(stream.result.logprobs)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999), vocab=st.integers(1, 40), count=st.integers(0, 20), scale=st.sampled_from([0.0, 1, 1e30])
)
def test_most_likely_tokens_come_first_and_ranks_count_larger_ones(
    seed: int, vocab: int, count: int, scale: float
) -> None:
    logits = np.random.default_rng(seed).normal(size=vocab).astype(np.float32) * np.float32(scale)
    for token in (0, vocab - 1):
        found = logprob_of(token, logits, count)
        assert found.rank == 1 + int((logits > logits[token]).sum())
        assert [i for i, _ in found.top] == np.argsort(-logits, kind="stable")[:count].tolist()
        assert found.logprob <= 0


def test_long_prompts_are_chunked_to_fit_memory() -> None:
    for vocab in (1, 49_152, 151_936, 10**9):
        columns = PromptLogprobs([1, 2], 0, vocab).columns
        assert columns >= 1
        assert columns == 1 or columns * vocab * 4 <= logprobs.SCORED_BYTES
