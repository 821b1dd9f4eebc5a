"""Penalties, biases, bans, grammars and logprobs on plans: the host selects tokens, with ONNX Runtime's results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.tensorrt.pinned import WideReader
from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS
from tests.engines.running.test_token_choice import PROMPT, policies
from tests.models import VOCAB, Pair

FORM = {
    "type": "object",
    "properties": {"ab": {"enum": ["xy", "xz"]}},
    "required": ["ab"],
    "additionalProperties": False,
}
PENALTIES = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, seed=3, presence_penalty=0.7)


@pytest.fixture(scope="module")
def plans(tiny_pair: Pair, tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, HostDevice]:
    """The tiny pair in float32: its numbers are those of ONNX Runtime's engine."""
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float32", tiny_engine.manifest.shapes.cache_length)
    folder = tmp_path_factory.mktemp("plans")
    return plan_engine(folder, plan_manifest(tiny_engine.manifest, graphs, folder), tiny_engine.folder, slots=3)


def _told(output: Any) -> Any:
    tokens = [(each.token_id, each.rank, [i for i, _ in each.top]) for each in output.logprobs]
    prompt = [each and (each.token_id, each.rank) for each in output.prompt_logprobs]
    return output.token_ids, output.text, output.finish_reason, output.acceptance, tokens, prompt


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=st.lists(PROMPT, min_size=1, max_size=5), k=st.integers(0, 6), data=st.data())
def test_any_mix_of_options_gives_onnx_runtime_s_result(
    plans: tuple[Engine, HostDevice], tiny_engine: Engine, prompts: list[list[int]], k: int, data: st.DataObject
) -> None:
    params = [data.draw(policies()) for _ in prompts]
    draft = data.draw(st.sampled_from(["peagle-chain", "ngram"]))
    outputs, expected = (
        engine.generate(prompts, params, draft=draft, num_speculative_tokens=k) for engine in (plans[0], tiny_engine)
    )
    for output, other in zip(outputs, expected, strict=True):
        assert _told(output) == _told(other)
        for one, another in zip(output.logprobs, other.logprobs, strict=True):
            assert one.logprob == pytest.approx(another.logprob, abs=1e-4)
    trees = plans[0].generate(prompts, params, draft="peagle", num_speculative_tokens=k)
    assert [(o.token_ids, o.text) for o in trees] == [(o.token_ids, o.text) for o in expected]


class ForcedAhead:
    """Drafts one token per round, and up to five if a grammar forces them."""

    max_drafts, counts = 6, (0, 1)

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return 5

    def choose(self, ahead: RoundAhead) -> int:
        return 1

    def learn(self, seen: ObservedRound) -> None:
        pass


@pytest.mark.parametrize("draft", ["peagle-chain", "ngram"])
def test_forced_tokens_are_drafted_beyond_the_k_of_a_round(
    plans: tuple[Engine, HostDevice], tiny_engine: Engine, draft: str
) -> None:
    """Beside rows that verify no more than K."""
    pytest.importorskip("llguidance")
    params = [SamplingParams(max_tokens=30, structured_outputs={"json": FORM}), PENALTIES, GREEDY]
    results = []
    for each in (plans[0], tiny_engine):
        engine = Engine(each.folder, each.manifest, each._backend, each.tokenizer, draft=draft, policy=ForcedAhead())
        with engine:
            results.append(engine.generate(PROMPTS[:3], params))
    ours, theirs = results
    assert [_told(output) for output in ours] == [_told(output) for output in theirs]
    json.loads(ours[0].text)
    assert ours[0].acceptance.grammar_accepted > ours[0].acceptance.rounds, "several in a round"


def test_only_rows_that_ask_are_read_and_others_run_ahead_again(
    plans: tuple[Engine, HostDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = plans
    expected = [output.token_ids for output in engine.generate(PROMPTS, MIXED, num_speculative_tokens=3)]
    read, seen = WideReader.read, list[tuple[int, int]]()

    def watched(self: WideReader, address: int, rows: int, width: int) -> Any:
        seen.append((rows, width))
        return read(self, address, rows, width)

    monkeypatch.setattr(WideReader, "read", watched)
    together = engine.generate([*PROMPTS, [5, 9]], [*MIXED, PENALTIES], num_speculative_tokens=3)
    assert [output.token_ids for output in together[:-1]] == expected
    acceptance = together[-1].acceptance
    assert len(seen) == 1 + acceptance.rounds + acceptance.undrafted, "once per pass over the row that asks"
    assert {width for _, width in seen} == {VOCAB}
    assert max(rows for rows, _ in seen) == 4, "the columns that emit"
    seen.clear()
    captures, replays = device.captures, device.replays
    assert [output.token_ids for output in engine.generate(PROMPTS, MIXED, num_speculative_tokens=3)] == expected
    assert device.replays > replays
    assert device.captures == captures
    assert not seen


@pytest.mark.parametrize(("draft", "passes"), [("peagle-chain", 2), ("ngram", 1)])
def test_each_pass_of_a_round_that_waits_is_captured_once(
    plans: tuple[Engine, HostDevice], draft: str, passes: int
) -> None:
    """The first time it is enqueued; later it is a graph of its own, with the host in between."""
    engine, device = plans
    prompt = [5, 9, 30, 5, 9, 30, 5, 9]
    for _ in range(2):
        engine.generate([prompt], PENALTIES, draft=draft, num_speculative_tokens=5)
    captures, replays = device.captures, device.replays
    acceptance = engine.generate([prompt], PENALTIES, draft=draft, num_speculative_tokens=5)[0].acceptance
    assert device.captures == captures
    assert device.replays - replays == passes * (acceptance.rounds + acceptance.undrafted)


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_half_precision_logits_become_float32(device: HostDevice) -> None:
    for wide, bits in (("bfloat16", [0x3FC0, 0xC000]), ("float16", [0x3E00, 0xC000])):
        address, source = device.allocate(4), device.pinned((2,), "uint16")
        source[:] = bits
        device.upload(address, source)
        assert WideReader(device, wide).read(address, 1, 2).tolist() == [[1.5, -2.0]]
