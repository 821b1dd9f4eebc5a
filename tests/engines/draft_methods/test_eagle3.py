"""Rounds of an EAGLE-3 head: their windows hold the reference's drafts, and the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime.lanes import SessionLanes
from peagle.engines.backends.onnxruntime.timed_lanes import TimedLanes
from peagle.engines.draft_methods import eagle3
from peagle.engines.draft_methods.lanes import Lanes
from peagle.engines.running.request import Request
from peagle.engines.scheduling.shared_rounds import SharedRounds
from peagle.graphs.drafters import torch_reference
from peagle.plugins.errors import UsageError
from tests.engines.mixed_requests import MIXED, PROMPTS, Dice
from tests.models import Pair

MAX = 6
LONG = [list(range(2, 80))]  # to the end of the caches
GREEDY = [SamplingParams(max_tokens=40, ignore_eos=True)] * 4


class Watched(eagle3.AutoregressiveDrafting):
    """Notes what every round leaves in the windows: the text that a drafter knows by then, and the drafts after it."""

    def __init__(self, slots: Sequence[Request | None] = ()) -> None:
        self._slots = slots
        self.seen: list[tuple[list[int], list[int]]] = []

    def over(self, slots: Sequence[Request | None]) -> Watched:
        self._slots = slots
        return self

    def round(self, lanes: Lanes, k: int) -> None:
        super().round(lanes, k)
        lanes = lanes.lanes if isinstance(lanes, TimedLanes) else lanes
        if not isinstance(lanes, SessionLanes) or not k:
            return
        for slot, tokens in enumerate(lanes.emission().read()):
            if not tokens:
                continue
            request, window = self._slots[slot], lanes.window(slot)
            assert request is not None
            text = [*request.prompt, *request.transcript.token_ids, *tokens]
            assert (window.newest, window.start) == (text[-1], len(text) - 1)
            self.seen.append((text, [*window.drafts]))


@pytest.fixture(scope="module", params=["all rows at once", "row by row"])
def engine(request: pytest.FixtureRequest, eagle3_folder: Path) -> Engine:
    """The same engine with both kinds of lanes."""
    loaded = Engine.load(eagle3_folder, max_batch_size=3, threads=1)
    backend = loaded._backend
    if request.param == "row by row":
        backend._supports_rows = False  # type: ignore[attr-defined]
        backend._lanes = backend._idle_lanes()  # type: ignore[attr-defined]
    return loaded


def test_eagle3_drafts_match_the_reference_every_round(
    engine: Engine, eagle3_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever K was before, and whichever of the drafts were accepted; several requests, some of which end early."""
    watched = Watched()
    monkeypatch.setattr(SharedRounds, "of", lambda rounds, method: watched.over(rounds._slots))
    drawn = Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, policy=Dice(2, MAX))
    drawn.generate([*PROMPTS[:4], *LONG], [*GREEDY, SamplingParams(max_tokens=12, temperature=0.9, seed=3)])
    model = torch_reference.load_target(eagle3_pair.target, eagle3_pair.config)
    target, head = eagle3_pair.specs()
    weights = eagle3_pair.head_weights()
    assert len(watched.seen) > 40
    for text, drafts in watched.seen[::4]:
        if len(text) < engine.max_seq_len:
            _, features = torch_reference.target_pass(model, target, text)
            logits = torch_reference.draft_logits(weights, head, text, features[: len(text) - 1], len(drafts))
            assert drafts == torch_reference.to_target_ids(weights, logits.argmax(-1))


def test_the_text_is_that_of_plain_decoding(engine: Engine) -> None:
    for params in (GREEDY[0], MIXED):
        plain = [o.token_ids for o in engine.generate(PROMPTS, params, draft="none")]
        for k in (1, 4, MAX, 0):
            outputs = engine.generate(PROMPTS, params, num_speculative_tokens=k)
            assert [o.token_ids for o in outputs] == plain
        assert [o.token_ids for o in engine.generate(PROMPTS, params, draft="ngram")] == plain


def test_host_chosen_tokens_and_cached_prompts_keep_texts(engine: Engine) -> None:
    params = SamplingParams(
        max_tokens=24,
        temperature=0.8,
        seed=4,
        ignore_eos=True,
        presence_penalty=1.0,
        repetition_penalty=1.2,
        logprobs=2,
    )
    long = [*range(2, 30)]
    prompts = [*PROMPTS, long, [*long, 5, 6], long]
    plain = engine.generate(prompts, params, draft="none")
    keeping = Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, prefix_cache_bytes=1 << 24)
    drafted = keeping.generate(prompts, params, num_speculative_tokens=4)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert [output.cached_tokens for output in drafted[-2:]] == [16] * 2  # a block
    for ours, theirs in zip(drafted, plain, strict=True):
        assert [each.logprob for each in ours.logprobs] == pytest.approx(
            [each.logprob for each in theirs.logprobs], abs=1e-4
        )


def test_draft_logits_match_torch(engine: Engine, eagle3_pair: Pair) -> None:
    model = torch_reference.load_target(eagle3_pair.target, eagle3_pair.config)
    target, head = eagle3_pair.specs()
    logits, features = torch_reference.target_pass(model, target, PROMPTS[0])
    text = [*PROMPTS[0], int(logits[-1].argmax())]
    expected = torch_reference.draft_logits(eagle3_pair.head_weights(), head, text, features, 5)
    torch.testing.assert_close(torch.tensor(engine.draft_logits(PROMPTS[0], 5)), expected, atol=1e-4, rtol=0)


def test_call_can_name_the_engines_head(engine: Engine, tiny_engine: Engine) -> None:
    own = engine.generate(PROMPTS[:1], GREEDY[0], draft="eagle3")[0]
    assert own.token_ids == engine.generate(PROMPTS[:1], GREEDY[0])[0].token_ids
    assert own.acceptance.rounds
    with pytest.raises(UsageError, match="draft is peagle") as refused:
        engine.generate(PROMPTS[:1], draft="peagle")
    assert "the engine's head is for EAGLE-3" in str(refused.value.why)
    with pytest.raises(UsageError, match="draft is eagle3"):
        tiny_engine.generate(PROMPTS[:1], draft="eagle3")
    with pytest.raises(UsageError, match="draft is peagle-chain"):
        Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, draft="peagle-chain")
