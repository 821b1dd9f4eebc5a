"""Rounds with a changing K, and a custom strategy: the text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import lanes, prompt_row, sessions
from peagle.engines.draft_methods import METHODS, DraftMethod, register
from peagle.engines.draft_methods.lanes import Lanes
from peagle.engines.policy.adaptive import Adaptive
from peagle.engines.policy.drafts_per_round import ObservedRound, Policy, RoundAhead
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS, SAMPLED, Dice
from tests.models import VOCAB, Pair

MAX = 6


class Cycle:
    """Says these K in turn, for ever."""

    def __init__(self, ks: Sequence[int]) -> None:
        self.ks, self.max_drafts, self.counts, self.asked = ks, MAX, sorted({*ks}), 0
        self.seen: list[ObservedRound] = []

    def reach(self, ahead: RoundAhead, k: int) -> int:
        return k

    def learn(self, seen: ObservedRound) -> None:
        self.seen.append(seen)

    def choose(self, ahead: RoundAhead) -> int:
        self.asked += 1
        return self.ks[(self.asked - 1) % len(self.ks)]


@pytest.fixture(scope="module")
def plans(tiny_pair: Pair, tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, HostDevice]:
    """The tiny pair as stand-ins for TensorRT's plans, in float32: its numbers are those of ONNX Runtime's engine."""
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float32", tiny_engine.manifest.shapes.cache_length)
    folder = tmp_path_factory.mktemp("plans")
    return plan_engine(folder, plan_manifest(tiny_engine.manifest, graphs, folder), tiny_engine.folder, slots=3)


@pytest.fixture(scope="module")
def both(tiny_engine: Engine, plans: tuple[Engine, HostDevice]) -> dict[str, Engine]:
    return {"onnxruntime": tiny_engine, "tensorrt": plans[0]}


BACKENDS = pytest.mark.parametrize("name", ["onnxruntime", "tensorrt"])


def _with(engine: Engine, *, draft: str = "peagle-chain", policy: Policy | None = None) -> Engine:
    """The same engine, decoding otherwise."""
    return Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, draft=draft, policy=policy)


def _told(engine: Engine, prompts: list[list[int]], params: SamplingParams | list[SamplingParams]) -> list[object]:
    return [(o.token_ids, o.text, o.finish_reason, o.acceptance) for o in engine.generate(prompts, params)]


def _texts(engine: Engine, params: SamplingParams | list[SamplingParams], k: int | None = None) -> list[object]:
    return [(o.token_ids, o.text) for o in engine.generate(PROMPTS, params, num_speculative_tokens=k)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_k_in_any_round_gives_the_plain_text_on_both_backends(both: dict[str, Engine], data: st.DataObject) -> None:
    """With several slots, greedy and sampled, also at the end of the cache; drafts of the drafter's, and looked up."""
    prompt = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20) | st.integers(85, 95).map(lambda n: [3] * n)
    prompt |= st.lists(st.integers(0, 2), min_size=4, max_size=40)
    policy = st.builds(
        SamplingParams,
        max_tokens=st.sampled_from([1, 3, 12, 200]),
        temperature=st.sampled_from([0.0, 0.9]),
        top_k=st.sampled_from([0, 5]),
        seed=st.integers(0, 99),
        ignore_eos=st.booleans(),
    )
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=6))
    params, seed = [data.draw(policy) for _ in prompts], data.draw(st.integers(0, 10**6))
    plain = both["onnxruntime"].generate(prompts, params, num_speculative_tokens=0)
    draft = data.draw(st.sampled_from(["peagle", "peagle-chain", "ngram"]))
    for engine in both.values():
        outputs = _with(engine, draft=draft, policy=Dice(seed, MAX)).generate(prompts, params)
        assert [(o.token_ids, o.text) for o in outputs] == [(o.token_ids, o.text) for o in plain]


@BACKENDS
def test_requests_of_any_k_and_drafts_share_rounds(both: dict[str, Engine], name: str) -> None:
    """Drafts of the drafter's, others that are looked up, and none, in one round; prompts in pieces between."""
    drafts: list[dict[str, Any]] = [{"draft": "ngram"}, {}, {"draft": "none"}, {"num_speculative_tokens": 6}]
    drafts += [{"draft": "ngram", "num_speculative_tokens": 2}, {"num_speculative_tokens": 1}]
    prompts = [*PROMPTS, [3, 4, 5] * 12]
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, seed=5)
    plain = both["onnxruntime"].generate(prompts, params, num_speculative_tokens=0)
    engine = both[name]
    sharing = Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, max_prefill_tokens=5)
    with sharing:
        for turn in range(3):
            turned = [*drafts[turn:], *drafts[:turn]]
            asked = [sharing.submit(prompt, params, **each) for prompt, each in zip(prompts, turned, strict=True)]
            assert [each.result().token_ids for each in asked] == [output.token_ids for output in plain]


@BACKENDS
@pytest.mark.parametrize("params", [pytest.param(GREEDY, marks=pytest.mark.slow), MIXED], ids=["greedy", "mixed"])
@pytest.mark.parametrize("ks", [(0, 6), (6, 1), (2, 0, 0, 5, 3), (4, 4, 6, 6, 1, 1)], ids=str)
def test_k_can_change_while_requests_run(
    both: dict[str, Engine], name: str, ks: tuple[int, ...], params: SamplingParams | list[SamplingParams]
) -> None:
    plain = _texts(both["onnxruntime"], params, 0)
    assert _texts(_with(both[name], policy=Cycle(ks)), params) == plain


@pytest.mark.parametrize("ks", [(0, 6), (2, 0, 0, 5, 3)], ids=str)
def test_both_backends_accept_the_same_drafts_when_k_changes(both: dict[str, Engine], ks: tuple[int, ...]) -> None:
    """One prompt, so that both ask the policy in the same order."""
    for params in (GREEDY, SAMPLED):
        for draft in ("peagle-chain", "ngram"):
            engines = [_with(engine, draft=draft, policy=Cycle(ks)) for engine in both.values()]
            outputs = [_told(engine, [PROMPTS[0]], params) for engine in engines]
            assert outputs[0] == outputs[1]


@BACKENDS
def test_smaller_k_verifies_the_first_drafts_and_larger_k_all(both: dict[str, Engine], name: str) -> None:
    """The prompt's pass and every other round ask for 6, the rounds between for 2: 2 are verified, then 2 again."""
    engine = _with(both[name], policy=Cycle((6, 2)))
    acceptance = engine.generate([PROMPTS[0]], GREEDY)[0].acceptance
    assert acceptance.drafted == 2 * acceptance.rounds


@pytest.mark.parametrize(("held", "room"), [(1, 0), (3, 0), (64, 1 << 20)])
def test_drafter_catches_up_after_prompts_and_undrafted_rounds(
    both: dict[str, Engine], held: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafts are those of a drafter that saw every token when it was committed, which TensorRT's does."""
    monkeypatch.setattr(sessions, "HELD", held)
    monkeypatch.setattr(sessions, "HELD_BYTES", room)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for ks in ((0, 0, 0, 0, 0, 6, 6), (0,) * 9 + (3,)):
        engines = {name: _with(engine, policy=Cycle(ks)) for name, engine in both.items()}
        outputs = [_told(engine, PROMPTS[:1], params) for engine in engines.values()]
        assert outputs[0] == outputs[1]


def test_rounds_without_drafts_run_no_drafter_on_onnx_runtime(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    for kind in (prompt_row.PromptRow, lanes.SessionLanes):
        draft = kind.draft
        monkeypatch.setattr(kind, "draft", lambda own, k, draft=draft: (passes.append(k), draft(own, k))[1])
    _with(tiny_engine, policy=Cycle([0])).generate(PROMPTS[:1], SamplingParams(max_tokens=40, ignore_eos=True))
    assert not passes  # neither for the prompt


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("onnxruntime", "peagle"),
        ("tensorrt", "peagle"),
        ("onnxruntime", "ngram"),
        pytest.param("tensorrt", "ngram", marks=pytest.mark.slow),
    ],
)
def test_as_many_drafts_as_pay_give_the_plain_text(both: dict[str, Engine], name: str, draft: str) -> None:
    """With K of the same requests beside it, and of others; whatever the clock makes the policy say."""
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.7, seed=3)
    plain = both["onnxruntime"].generate(PROMPTS, params, num_speculative_tokens=0)
    engine = _with(both[name], draft=draft, policy=Adaptive(2, MAX))
    for _ in range(3):
        ks = [None, 5, "auto", 0]
        asked = [engine.submit(p, params, num_speculative_tokens=ks[i % 4]) for i, p in enumerate(PROMPTS)]
        assert [each.result().token_ids for each in asked] == [output.token_ids for output in plain]


def test_policy_observes_exactly_its_own_rounds(both: dict[str, Engine]) -> None:
    for engine in both.values():
        policy = Cycle((3, 0, 2))
        outputs = _with(engine, policy=policy).generate(PROMPTS, GREEDY)
        rounds = [sum(len(seen.outcomes) for seen in policy.seen)]
        assert rounds == [sum(o.acceptance.rounds + o.acceptance.undrafted for o in outputs)]
        accepted = sum(len(accepted) for seen in policy.seen for _, accepted in seen.outcomes)
        drafted = sum(drafted for seen in policy.seen for drafted, _ in seen.outcomes)
        assert accepted >= sum(o.acceptance.accepted for o in outputs)
        assert drafted >= sum(o.acceptance.drafted for o in outputs) > 0
        assert all(seen.seconds is None or seen.seconds > 0 for seen in policy.seen)


def test_every_k_is_captured_once_and_replayed(plans: tuple[Engine, HostDevice]) -> None:
    engine, device = plans
    changing = _with(engine, policy=Cycle(range(MAX + 1)))
    for _ in range(2):  # the first time a K runs it is not replayed yet
        changing.generate(PROMPTS, GREEDY)
    captures, replays = device.captures, device.replays
    policy = Cycle(range(MAX + 1))
    _with(engine, policy=policy).generate(PROMPTS, GREEDY)
    assert device.captures == captures
    assert device.replays - replays == policy.asked - len(PROMPTS)


class LastTokenAgain:
    """Always drafts the last token again; the drafter never runs."""

    enqueues_only = False  # the host must see the last token

    def prompt(self, lanes: Lanes, k: int) -> None:
        lanes.verify(0)
        lanes.advance(0)

    def round(self, lanes: Lanes, k: int) -> None:
        lanes.verify(k)
        rows = lanes.emission().read()
        lanes.advance(0)
        lanes.propose([[tokens[-1]] * k if tokens else None for tokens in rows])


@pytest.fixture
def last_token_again() -> Iterator[str]:
    register(DraftMethod("last-token-again", "the last token again", "", strategy=LastTokenAgain(), depth=8))
    yield "last-token-again"
    del METHODS["last-token-again"]


@BACKENDS
@pytest.mark.parametrize("params", [GREEDY, MIXED], ids=["greedy", "mixed"])
def test_a_strategy_is_one_class_and_one_line_of_registration(
    both: dict[str, Engine], name: str, params: SamplingParams | list[SamplingParams], last_token_again: str
) -> None:
    plain = _texts(both["onnxruntime"], params, 0)
    for policy in (None, Cycle((3, 0, 5, 1))):
        assert _texts(_with(both[name], draft=last_token_again, policy=policy), params) == plain


@BACKENDS
def test_a_strategy_of_one_s_own_has_its_drafts_verified(
    both: dict[str, Engine], name: str, last_token_again: str
) -> None:
    outputs = _with(both[name], draft=last_token_again).generate(PROMPTS, GREEDY)
    assert all(o.acceptance.drafted == 4 * o.acceptance.rounds > 0 for o in outputs)
