"""Requests in one batch: a round is one pass of each graph, and no request is affected by the others."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD
from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import backend, lanes, loaded_graphs, prompt_row, sessions
from peagle.engines.backends.onnxruntime.lanes import SessionLanes
from peagle.plugins.cpu import compile as compiling
from peagle.plugins.cpu import sources
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS, SAMPLED, Dice
from tests.garbage import collected
from tests.models import VOCAB, Pair
from tests.scenarios.test_rounds_of_any_k import Cycle

K, LENGTH = 4, 96


@pytest.fixture(scope="module")
def folder(cpu_library: Path, tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pair with the session's CPU kernels."""
    made = compiling.CpuLibrary(compiling.machine_name(), sources.digest(), cpu_library.read_bytes(), "the session's")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compile_library", lambda: made)
        out = tmp_path_factory.mktemp("batch") / "engine"
        asked: dict[str, Any] = {"model": str(tiny_pair.target), "draft": str(tiny_pair.head), "out": out}
        return build(BUILD.request(**asked, lowering="cpu", num_speculative_tokens=K, max_seq_len=LENGTH)).path


@pytest.fixture(scope="module")
def together(folder: Path) -> Engine:
    return Engine.load(folder, max_batch_size=4, threads=1)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Engine:
    return Engine.load(folder, max_batch_size=1, threads=1)


def decoding(engine: Engine, draft: str, policy: Any) -> Engine:
    """The same engine with other decoding; which rounds run with which prompts does not depend on time."""
    options: Any = {"draft": draft, "policy": policy, "max_prefill_tokens": 128}
    return Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, **options)


def told(outputs: Any) -> list[Any]:
    return [(o.token_ids, o.finish_reason, o.acceptance) for o in outputs]


def one_by_one(engine: Engine, params: SamplingParams | list[SamplingParams], k: int) -> list[Any]:
    each = params if isinstance(params, list) else [params] * len(PROMPTS)
    runs = zip(PROMPTS, each, strict=True)
    return [told(engine.generate([prompt], policy, num_speculative_tokens=k))[0] for prompt, policy in runs]


@pytest.mark.parametrize(
    ("params", "k"), [(GREEDY, K), (SAMPLED, K), (MIXED, 0), (MIXED, 1), (MIXED, 2), (MIXED, K)],
    ids=["greedy", "sampled", "mixed-0", "mixed-1", "mixed-2", "mixed"],
)  # fmt: skip
def test_batched_requests_match_single_requests(
    together: Engine, alone: Engine, params: SamplingParams | list[SamplingParams], k: int
) -> None:
    """More of them than rows, and some end before others: rows move."""
    assert together._backend._lanes.takes_rows  # type: ignore[attr-defined]
    assert told(together.generate(PROMPTS, params, num_speculative_tokens=k)) == one_by_one(alone, params, k)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_k_in_any_round_gives_the_plain_text(together: Engine, alone: Engine, data: st.DataObject) -> None:
    """Also at the end of the caches, and with drafts that are looked up, some for one row and none for the next."""
    prompt = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20) | st.integers(85, 95).map(lambda n: [3] * n)
    prompt |= st.lists(st.integers(0, 2), min_size=4, max_size=40)
    policy = st.builds(
        SamplingParams,
        max_tokens=st.sampled_from([1, 3, 12, 200]),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 99),
        ignore_eos=st.booleans(),
    )
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=6))
    params, seed = [data.draw(policy) for _ in prompts], data.draw(st.integers(0, 10**6))
    engine = decoding(together, data.draw(st.sampled_from(["peagle", "peagle-chain", "ngram"])), Dice(seed, K))
    texts = [output.token_ids for output in engine.generate(prompts, params)]
    for text, each, policy_of_it in zip(texts, prompts, params, strict=True):
        assert text == alone.generate([each], policy_of_it, num_speculative_tokens=0)[0].token_ids


def test_a_round_is_one_pass_of_each_graph(together: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[int, ...]] = []
    run = loaded_graphs.run

    def counted(session: Any, binding: Any) -> None:
        run(session, binding)
        passes.append(binding.get_outputs()[0].shape())  # the tokens, or the next windows

    monkeypatch.setattr(lanes, "run", counted)
    folder, manifest, tokenizer = together.folder, together.manifest, together.tokenizer
    with Engine(folder, manifest, together._backend, tokenizer, max_prefill_tokens=100) as engine:
        outputs = engine.generate(PROMPTS[:4], GREEDY, num_speculative_tokens=K)
    rounds = max(output.acceptance.rounds for output in outputs)
    assert len(passes) == 2 * rounds
    assert passes[0][0] == passes[1][0] == 4


@pytest.mark.parametrize("takes_rows", [True, False])
@pytest.mark.parametrize("k", [0, K])
def test_repeated_prompt_widths_reuse_bindings_and_keep_texts_apart(
    folder: Path, alone: Engine, takes_rows: bool, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not takes_rows:
        monkeypatch.setattr(backend, "supports_rows", lambda *_: False)
    engine = Engine.load(folder, max_batch_size=2, threads=1)
    assert engine._backend._lanes.takes_rows == takes_rows  # type: ignore[attr-defined]
    greedy = SamplingParams(max_tokens=1, ignore_eos=True)  # of which a prompt's pass is all
    params = [greedy, *(replace(greedy, temperature=0.9, seed=seed) for seed in range(4)), greedy]
    prompts = [[(7 * at + shift) % VOCAB for at in range(9)] for shift in range(len(params))]
    theirs = [
        alone.generate([p], each, num_speculative_tokens=k)[0].token_ids
        for p, each in zip(prompts, params, strict=True)
    ]
    bound: list[Any] = []
    bind = loaded_graphs.bind
    for module in (prompt_row, lanes):
        monkeypatch.setattr(module, "bind", lambda *asked: bound.append(asked) or bind(*asked))
    ours = [
        engine.generate([p], each, num_speculative_tokens=k)[0].token_ids
        for p, each in zip(prompts, params, strict=True)
    ]
    assert ours == theirs
    assert len(bound) == (2 if k else 1)  # the target's, and the drafter's


@pytest.mark.parametrize("takes_rows", [True, False])
def test_bound_shapes_keep_neither_logits_nor_ended_requests(
    folder: Path, takes_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are large, and every shape of a pass stays bound."""
    monkeypatch.setattr(backend, "supports_rows", lambda *_: takes_rows)
    loaded = Engine.load(folder, max_batch_size=3, threads=1)
    bound, choices = dict[int, Any](), list[Any]()
    run, admit = loaded_graphs.run_for_logits, SessionLanes.admit

    def running(session: Any, binding: Any) -> Any:
        bound[id(binding)] = binding
        return run(session, binding)

    def admitted(me: SessionLanes, slot: int, params: Any, numbers: Any, choice: Any, *others: Any) -> None:
        choices.append(weakref.ref(choice))
        admit(me, slot, params, numbers, choice, *others)

    for module in (lanes, prompt_row):
        monkeypatch.setattr(module, "run_for_logits", running)
    monkeypatch.setattr(SessionLanes, "admit", admitted)
    params = [replace(each, logprobs=1, prompt_logprobs=at % 2 or None) for at, each in enumerate(MIXED)]
    assert len(decoding(loaded, "peagle", Dice(3, K)).generate(PROMPTS, params)) == len(choices)
    assert len(bound) > 2 * len(PROMPTS)
    assert not any(each.get_outputs()[-1].has_value() for each in bound.values())
    assert collected(lambda: not any(choice() for choice in choices))


@pytest.mark.parametrize(
    ("held", "room"), [(1, 0), pytest.param(3, 0, marks=pytest.mark.slow), (3, 1 << 20), (64, 1 << 20)]
)
def test_drafter_catches_up_after_prompts_and_undrafted_rounds(
    folder: Path, alone: Engine, held: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where rows run one by one, and where all of them can wait."""
    waiting = Engine.load(folder, max_batch_size=1, threads=1)
    for module in (lanes, prompt_row):
        monkeypatch.setattr(module, "FREED", 2)
    monkeypatch.setattr(lanes, "HELD", held)
    monkeypatch.setattr(sessions, "HELD", held)
    monkeypatch.setattr(sessions, "HELD_BYTES", room)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "supports_rows", lambda *_: False)
        row_by_row = Engine.load(folder, max_batch_size=1, threads=1)
    assert not row_by_row._backend._lanes.takes_rows  # type: ignore[attr-defined]
    in_batches = Engine.load(folder, max_batch_size=1, threads=1)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    for ks in ((0, 0, 0, 0, 0, K, K), (0,) * 9 + (3,)):
        for prompt in PROMPTS[:2]:
            engines = [decoding(engine, "peagle-chain", Cycle(ks)) for engine in (waiting, in_batches, row_by_row)]
            first, second, third = (told(engine.generate([prompt], params)) for engine in engines)
            assert first == second == third


@pytest.mark.parametrize("takes_rows", [True, False])
@pytest.mark.parametrize("draft", ["peagle", "peagle-chain"])
def test_rounds_of_other_rows_leave_no_gap(
    folder: Path, alone: Engine, takes_rows: bool, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One holds columns beside the second, whose rounds draft nothing, none beside the third; then drafts come."""
    with monkeypatch.context() as patch:
        patch.setattr(backend, "supports_rows", lambda *_: takes_rows)
        two = Engine.load(folder, max_batch_size=2, threads=1)
    engine = decoding(two, draft, Cycle((0,) * 6 + (K,) * 60))
    asked: list[tuple[int, dict[str, Any]]] = [(60, {"draft": "none"}), (6, {}), (6, {"draft": "none"}), (30, {})]
    policies = [replace(SAMPLED, temperature=1.5, max_tokens=most) for most, _ in asked]
    runs = [(PROMPTS[i], policies[i], draft) for i, (_, draft) in enumerate(asked)]
    texts = [engine.submit(prompt, params, **draft) for prompt, params, draft in runs]
    for text, (prompt, params, _) in zip(texts, runs, strict=True):
        assert text.result().token_ids == alone.generate([prompt], params, draft="none")[0].token_ids


def test_pending_columns_of_one_row_never_overflow_another_cache(
    folder: Path, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty columns wait for the drafter when a request with three free positions arrives; each is drafted alone."""
    drafted: list[int] = []
    draft = SessionLanes._draft
    monkeypatch.setattr(
        SessionLanes,
        "_draft",
        lambda me, group, of, rows, *asked: (drafted.append(len(rows)), draft(me, group, of, rows, *asked))[1],
    )
    prompts, limits = [[5, 9], [7, 7, 8], [3] * (LENGTH - 3)], (80, 50, 80)
    params = [SamplingParams(max_tokens=limit, ignore_eos=True) for limit in limits]
    two = Engine.load(folder, max_batch_size=2, threads=1)
    texts = decoding(two, "peagle-chain", Cycle((0,) * 52 + (K,) * 60)).generate(prompts, params)
    assert drafted[:2] == [1, 1]
    for text, prompt, policy in zip(texts, prompts, params, strict=True):
        assert text.token_ids == alone.generate([prompt], policy, num_speculative_tokens=0)[0].token_ids


@pytest.mark.parametrize("takes_rows", [True, False])
def test_pending_prompt_columns_survive_interleaved_rounds(
    folder: Path, takes_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody drafts yet, and another request runs while the prompt is read eight tokens at a time."""
    monkeypatch.setattr(backend, "supports_rows", lambda *_: takes_rows)
    two = Engine.load(folder, max_batch_size=2, threads=1)
    engine = Engine(
        two.folder,
        two.manifest,
        two._backend,
        two.tokenizer,
        draft="peagle-chain",
        policy=Cycle((0,)),
        max_prefill_tokens=8,
    )
    held: list[tuple[int, int]] = []
    has_read = SessionLanes.has_read

    def watched(me: SessionLanes, slot: int, chunk: Any) -> None:
        has_read(me, slot, chunk)
        held.append((chunk.start + len(chunk.ids), me.held(slot).count))

    monkeypatch.setattr(SessionLanes, "has_read", watched)
    running = engine.submit([5, 9], SamplingParams(max_tokens=60, ignore_eos=True))
    next(running)
    engine.submit([7] * 40, SamplingParams(max_tokens=2, ignore_eos=True)).result()
    assert len(held) > 3
    assert all(known == count for known, count in held)


@pytest.mark.parametrize("takes_rows", [True, False])
def test_a_drafter_reads_small_chunks_of_a_prompt_together(
    folder: Path, alone: Engine, takes_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request runs while the prompt is read eight tokens at a time; all rounds draft."""
    monkeypatch.setattr(backend, "supports_rows", lambda *_: takes_rows)
    monkeypatch.setattr(prompt_row, "_WAITING", 20)
    two = Engine.load(folder, max_batch_size=2, threads=1)
    chunks, read = list[int](), list[int]()
    verify, draft = prompt_row.PromptRow.verify, prompt_row.PromptRow.draft

    def verified(me: prompt_row.PromptRow, columns: int, emitted: int) -> None:
        verify(me, columns, emitted)
        chunks.append(columns)

    def drafted(me: prompt_row.PromptRow, k: int) -> None:
        read.append(me.held.count + me.window.committed)
        draft(me, k)

    monkeypatch.setattr(prompt_row.PromptRow, "verify", verified)
    monkeypatch.setattr(prompt_row.PromptRow, "draft", drafted)
    asked: Any = {"draft": "peagle-chain", "policy": Cycle((K,)), "max_prefill_tokens": 8}
    engine = Engine(two.folder, two.manifest, two._backend, two.tokenizer, **asked)
    params, prompt = SamplingParams(max_tokens=30, ignore_eos=True), [7, *range(2, 41)]
    running = engine.submit([5, 9], params)
    next(running)
    assert told([engine.submit(prompt, params).result()]) == told(
        alone.generate([prompt], params, draft="peagle-chain", num_speculative_tokens=K)
    )
    running.result()
    assert chunks[:6] == [2, 8, 8, 8, 8, 8]
    assert read[:3] == [2, 24, 16]
