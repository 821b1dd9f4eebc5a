"""Drafts change no token: every strategy and kind of policy, alone and in batches, to the end of the caches.

And what is drawn is the target's own distribution, over many seeds, for the token of a prompt's pass and for the next
one, which a round with drafts decides.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, RequestOutput, SamplingParams
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.models import VOCAB, Pair
from tests.scenarios.test_sampled_distribution import chi_square, chi_square_limit

STRATEGIES: dict[str, dict[str, Any]] = {
    "drafter": {"num_speculative_tokens": 4},
    "ngram": {"draft": "ngram", "num_speculative_tokens": 4},
    "none": {"draft": "none"},
}
SEEDED = {"temperature": 0.8, "seed": 11}
FORM = {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"], "additionalProperties": False}
POLICIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": SEEDED,
    "cut": {**SEEDED, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {**SEEDED, "presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "greedy penalties": {"presence_penalty": -0.5, "repetition_penalty": 0.8},
    "logit bias": {**SEEDED, "logit_bias": {5: 3.0, 9: 2.5, 30: -100.0}},
    "bans": {"bad_token_ids": [1, 2, 3], "bad_words": ["a"], "min_tokens": 6, "stop_token_ids": [7, 40]},
    "allowed": {**SEEDED, "allowed_token_ids": [5, 9, 30, 7]},
    "logprobs": {**SEEDED, "logprobs": 2, "prompt_logprobs": 1},
    "json schema": {**SEEDED, "structured_outputs": {"json": FORM}},
}
# Other kinds of the same: more options.
MORE = ("cut", "greedy penalties", "bans", "allowed")
LONG: dict[str, dict[str, Any]] = {"sampled": SEEDED, "chosen by the host": {"presence_penalty": 0.5, "logprobs": 0}}
# By default, the slow stand-ins for plans have each of these with one of the heads. Mixes of the other policies, at
# random, have them in tests/engines/backends/tensorrt/test_host_choice.py.
WITH_PLANS = {
    "peagle": ("greedy", "json schema", "chosen by the host"),
    "eagle3": ("seeded", "sampled"),
}
# Of several lengths; one with much for a lookup to find.
PROMPTS = [[5, 9, 5, 9, 5, 9, 30, 5, 9], [11] * 17, [40], list(range(2, 35))]


def _cases(policies: Iterable[str]) -> Iterator[Any]:
    """Lanes and head of an engine, and a policy: together in one parameter, so that a combination can be slow."""
    for lanes, method, policy in itertools.product(("rows together", "plans", "row by row"), WITH_PLANS, policies):
        is_slow = policy in MORE or lanes == "row by row" or (lanes == "plans" and policy not in WITH_PLANS[method])
        marks = [pytest.mark.slow] if is_slow else []
        yield pytest.param((lanes, method), policy, marks=marks, id=f"{lanes}-{method}-{policy}")


def _folder(method: str, request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue("tiny_folder" if method == "peagle" else "eagle3_folder")
    return folder


@pytest.fixture(scope="module", params=WITH_PLANS)
def head(request: pytest.FixtureRequest) -> Path:
    """The engine of the same target with either head."""
    return _folder(request.param, request)


@pytest.fixture(scope="module")
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Engine]:
    """They have four slots, with both kinds of lanes of ONNX Runtime and on stand-ins for TensorRT's plans."""

    @functools.cache
    def load(lanes: str, method: str) -> Engine:
        head = _folder(method, request)
        loaded = Engine.load(head, max_batch_size=4, threads=1)
        if lanes == "plans":
            pair: Pair = request.getfixturevalue("tiny_pair" if method == "peagle" else "eagle3_pair")
            graphs = lowered(pair.target, pair.head, "float32", loaded.manifest.shapes.cache_length)
            folder = tmp_path_factory.mktemp("plans")
            return plan_engine(folder, plan_manifest(loaded.manifest, graphs, folder), head, slots=4)[0]
        if lanes == "row by row":
            loaded._backend._supports_rows = False  # type: ignore[attr-defined]
            loaded._backend._lanes = loaded._backend._idle_lanes()  # type: ignore[attr-defined]
        return loaded

    return load


@pytest.fixture
def engine(request: pytest.FixtureRequest, engines: Callable[[str, str], Engine]) -> Engine:
    return engines(*request.param)


def told(output: RequestOutput) -> Any:
    return output.token_ids, output.text, output.finish_reason, output.stop_reason


def same(ours: list[RequestOutput], theirs: list[RequestOutput]) -> None:
    """Texts are equal, and logprobs to what the last bits of a pass may differ by."""
    assert [told(output) for output in ours] == [told(output) for output in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for found, expected in ((mine.logprobs, other.logprobs), (mine.prompt_logprobs, other.prompt_logprobs)):
            pairs = [pair for pair in zip(found, expected, strict=True) if pair[0] and pair[1]]
            assert [(a.token_id, a.rank) for a, _ in pairs if a] == [(b.token_id, b.rank) for _, b in pairs if b]
            assert [a.logprob for a, _ in pairs if a] == pytest.approx([b.logprob for _, b in pairs if b], abs=1e-4)


@pytest.mark.parametrize(("engine", "policy"), _cases(POLICIES), indirect=["engine"])
def test_every_strategy_writes_the_plain_text_alone_and_among_others(engine: Engine, policy: str) -> None:
    if policy == "json schema":
        pytest.importorskip("llguidance")
    ends = policy in ("bans", "json schema")  # by itself
    params = SamplingParams(max_tokens=20 if ends else 12, ignore_eos=not ends, **POLICIES[policy])
    plain = [engine.generate([prompt], params, draft="none")[0] for prompt in PROMPTS]
    drafted, ways = 0, STRATEGIES | {"as pays": {"num_speculative_tokens": "auto"}}
    if engine.manifest.method == "peagle":
        ways |= {"chain": {"draft": "peagle-chain", "num_speculative_tokens": 4}}
    for name, asked in ways.items():
        together = engine.generate(PROMPTS, params, **asked)
        same(together, plain)
        if name != "none":
            same([engine.generate([prompt], params, **asked)[0] for prompt in PROMPTS], plain)
        drafted += sum(output.acceptance.drafted for output in together)
    assert drafted, "no draft had a part in it"


@pytest.mark.parametrize(("engine", "policy"), _cases(LONG), indirect=["engine"])
def test_full_length_text_equals_plain_decoding(engine: Engine, policy: str) -> None:
    params = SamplingParams(max_tokens=10_000, ignore_eos=True, **LONG[policy])
    most = engine.max_seq_len
    prompts = [[5, 9, 5, 9], [*range(2, 40)], [3] * (most - 3), [7] * (most - 1)]
    plain = [engine.generate([prompt], params, draft="none")[0] for prompt in prompts]
    for strategy, asked in STRATEGIES.items():
        together = engine.generate(prompts, params, **asked)
        alone = engine.generate(prompts[:1], params, **asked) if strategy != "none" else plain[:1]
        for outputs in (together, alone):
            same(outputs, plain[: len(outputs)])
            assert {len(output.prompt_token_ids) + len(output.token_ids) for output in outputs} == {most}
            assert {output.finish_reason for output in outputs} == {"length"}


def pooled(counts: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """Chi-square and its limit; cells of fewer than five expected are one."""
    rare = p * counts.sum() < 5
    assert counts[p == 0].sum() == 0
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        p = np.append(p[~rare], p[rare].sum())
    return chi_square(counts, p), chi_square_limit(len(p) - 1)


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    wide = logits.astype(np.float64) / temperature
    wide = np.exp(wide - wide.max())
    return np.asarray(wide / wide.sum())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_two_tokens_follow_the_target_s_softmax(head: Path, strategy: str) -> None:
    """The second is a round's: its distribution is the sum over the first of what the target says after each."""
    seeds, temperature = 20_000, 0.4
    prompt = [id for token in range(45) for id in (9, token)] + [9]  # a lookup finds what came after many a token
    with Engine.load(head, max_batch_size=8, threads=1) as engine:
        params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=temperature)
        drawn = [replace(params, seed=seed) for seed in range(seeds)]
        outputs = engine.generate([prompt] * seeds, drawn, **STRATEGIES[strategy])
        first = softmax(engine.target_logits(prompt)[-1], temperature)
        after = np.stack([softmax(engine.target_logits([*prompt, token])[-1], temperature) for token in range(VOCAB)])
    found = np.array([output.token_ids for output in outputs])
    accepted = sum(output.acceptance.accepted for output in outputs)
    assert (accepted > 0) == (strategy != "none")
    for counts, p in ((found[:, 0], first), (found[:, 1], first @ after)):
        statistic, limit = pooled(np.bincount(counts, minlength=VOCAB), p)
        assert statistic < limit
    pairs, likely = found[:, 0] * VOCAB + found[:, 1], (first[:, None] * after).reshape(-1)
    statistic, limit = pooled(np.bincount(pairs, minlength=VOCAB * VOCAB), likely)
    assert statistic < limit
