"""Every supported family, tiny and random, built like a user builds it: the engine equals transformers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.verify import FILE_NAME
from peagle.engines import Engine, SamplingParams
from peagle.graphs.drafters import torch_reference
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.fixtures.commands import Run
from tests.models import CONFIGS, VOCAB, Pair, make_pair

PROMPTS = [[5, 9, 30, 7], [11, 2, 60, 8, 41, 33, 20, 19, 4, 77, 50]]
GREEDY = SamplingParams(max_tokens=64, ignore_eos=True)


@dataclass(frozen=True)
class Built:
    """A random pair, its engine, and the target in transformers."""

    pair: Pair
    folder: Path

    @cached_property
    def engine(self) -> Engine:
        return Engine.load(self.folder, max_batch_size=2)

    @cached_property
    def model(self) -> Any:
        return torch_reference.load_target(self.pair.target, self.pair.config)

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits


@pytest.fixture(scope="module", params=list(CONFIGS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _built(tmp_path_factory.mktemp(request.param), request.param)


def _built(folder: Path, family: str) -> Built:
    pair = make_pair(folder, family)
    options = BUILD.request(
        model=str(pair.target), draft=str(pair.head), out=folder / "engine", num_speculative_tokens=4, max_seq_len=256
    )
    return Built(pair, build(options).path)


def test_logits_match_transformers(built: Built) -> None:
    for prompt in PROMPTS:
        expected = built.logits(prompt).numpy()
        assert np.ptp(expected, axis=-1).min() > 0.5
        np.testing.assert_allclose(built.engine.target_logits(prompt), expected, atol=1e-4)


def test_greedy_text_of_unequal_prompts_is_that_of_transformers(built: Built) -> None:
    outputs = built.engine.generate(PROMPTS, GREEDY, num_speculative_tokens=0)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        said = built.logits([*prompt, *output.token_ids]).argmax(-1).tolist()  # after every prefix at once
        assert len(output.token_ids) == 64
        assert list(output.token_ids) == said[len(prompt) - 1 : -1]


def test_log_probabilities_of_a_text_are_the_same_alone_and_among_others(built: Built) -> None:
    """To the bit: a difference in a last digit would change a token now and then."""
    params = SamplingParams(max_tokens=32, ignore_eos=True, logprobs=0)
    alone = [built.engine.generate([prompt], params, num_speculative_tokens=0)[0].logprobs for prompt in PROMPTS]
    for k in (0, 4):
        among = built.engine.generate(PROMPTS, params, num_speculative_tokens=k)
        assert [each.logprobs for each in among] == alone


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculation_changes_no_token(built: Built, temperature: float) -> None:
    params = SamplingParams(max_tokens=64, ignore_eos=True, temperature=temperature, seed=5)
    plain = [o.token_ids for o in built.engine.generate(PROMPTS, params, num_speculative_tokens=0)]
    for k in (1, 4):
        assert [o.token_ids for o in built.engine.generate(PROMPTS, params, num_speculative_tokens=k)] == plain


@pytest.mark.parametrize("family", ["gpt-oss", pytest.param("gemma-4", marks=pytest.mark.slow)])
def test_plans_that_read_attention_windows_give_the_same_result(family: str, tmp_path: Path) -> None:
    """The graphs for TensorRT on a stand-in, in texts that are many attention windows long."""
    built = _built(tmp_path, family)
    spec, manifest = built.pair.specs()[0], built.engine.manifest
    assert 0 < max(spec.windows) < 16
    graphs = lowered(built.pair.target, built.pair.head, "float32", manifest.shapes.cache_length)
    engine, _ = plan_engine(tmp_path / "plans", plan_manifest(manifest, graphs, tmp_path / "plans"), built.folder, 2)
    for temperature in (0.0, 0.9):
        params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=temperature, seed=5)
        expected = [o.token_ids for o in built.engine.generate(PROMPTS, params, num_speculative_tokens=0)]
        for draft in ("none", "peagle", "peagle-chain"):
            asked = {} if draft == "none" else {"num_speculative_tokens": 4}
            said = [o.token_ids for o in engine.generate(PROMPTS, params, draft=draft, **asked)]
            assert said == expected, draft


def test_verify_agrees(built: Built, cli: Run) -> None:
    done = cli("verify", built.folder, "--prompts", 2, "--max-tokens", 8, "--num-speculative-tokens", "4")
    assert done.code == 0, done.err
    passed = [line.split("  ")[0] for line in done.out.splitlines() if re.search(r"  passed\b", line)]
    texts = ["tokenizer", "token ids", "chat template", "end-of-text tokens"]
    assert passed == [*texts, "target logits", "drafter logits", "result"]
    assert re.search(r"logits in windows of other widths +the same to the bit", done.out)
    assert (built.folder / FILE_NAME).is_file()


def test_the_vocabulary_is_used(built: Built) -> None:
    """A model that always says the same would agree with anything."""
    sampled = SamplingParams(max_tokens=64, ignore_eos=True, temperature=1.0, seed=1)
    assert len(set(built.engine.generate(PROMPTS[:1], sampled)[0].token_ids)) > VOCAB // 8
