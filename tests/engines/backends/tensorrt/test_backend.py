"""The TensorRT backend gives ONNX Runtime's results on its own graphs.

CUDA and TensorRT are stood in for (``host_device``, ``stand_in``), so this is no evidence about either; profiles,
bindings, cache slices, captured rounds, lateness and admission are the real ones.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.base import Chunk
from peagle.engines.backends.profiling import Profiler
from peagle.engines.backends.tensorrt import backend as tensorrt
from peagle.engines.backends.tensorrt.backend import TensorRTBackend
from peagle.engines.backends.tensorrt.device import find_gpu
from peagle.engines.backends.tensorrt.kept_rounds import KeptRounds
from peagle.engines.backends.tensorrt.loaded_graphs import Runtime
from peagle.engines.backends.tensorrt.reach import lengths_of
from peagle.engines.draft_methods.peagle import TreeDrafting
from peagle.engines.draft_methods.peagle_chain import ParallelDrafting
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import Profile
from peagle.engines.requests.params import policy_of
from peagle.engines.requests.random_numbers import uniform_stream
from peagle.engines.scheduling import scheduler
from peagle.plugins.errors import EnvironmentProblem, UsageError
from peagle.plugins.kernels.pack import write_pack
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import engine_on, lowered, plan_engine, plan_manifest
from tests.engines.backends.stand_in import OnnxRuntimeGraph, _Context, quiet_session, stand_in, write_plan
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS, SAMPLED
from tests.models import VOCAB, Pair

Plans = tuple[Engine, HostDevice]


@pytest.fixture(scope="module")
def wide(tiny_pair: Pair, tiny_engine: Engine) -> dict[str, Path]:
    """The tiny pair in float32, which only the stand-in runs: its numbers are then those of ONNX Runtime's engine."""
    return lowered(tiny_pair.target, tiny_pair.head, "float32", tiny_engine.manifest.shapes.cache_length)


@pytest.fixture(scope="module")
def plans(wide: dict[str, Path], tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    return plan_engine(folder, plan_manifest(tiny_engine.manifest, wide, folder), tiny_engine.folder, slots=3)


@pytest.fixture(scope="module")
def half(tiny_pair: Pair, tiny_engine: Engine) -> dict[str, Path]:
    """The tiny pair in float16, as TensorRT is given it."""
    return lowered(tiny_pair.target, tiny_pair.head, "float16", tiny_engine.manifest.shapes.cache_length)


def _told(
    engine: Engine, params: SamplingParams | list[SamplingParams], k: int, draft: str = "peagle-chain"
) -> list[tuple[object, ...]]:
    outputs = engine.generate(PROMPTS, params, num_speculative_tokens=k, draft=draft)
    return [(o.token_ids, o.text, o.finish_reason, o.acceptance) for o in outputs]


@pytest.mark.parametrize(
    ("params", "k"), [(GREEDY, 3), (MIXED, 0), (MIXED, 1), (MIXED, 3), (MIXED, 6)],
    ids=["greedy", "mixed-0", "mixed-1", "mixed-3", "mixed-6"],
)  # fmt: skip
def test_text_and_acceptance_are_onnx_runtime_s(
    plans: Plans, tiny_engine: Engine, params: SamplingParams | list[SamplingParams], k: int
) -> None:
    assert _told(plans[0], params, k) == _told(tiny_engine, params, k)


@pytest.mark.parametrize("k", [2, 6])
def test_trees_give_onnx_runtime_s_text_in_rounds_without_waits(plans: Plans, tiny_engine: Engine, k: int) -> None:
    engine, device = plans
    replays = device.replays
    trees, expected = _told(engine, MIXED, k, "peagle"), _told(tiny_engine, MIXED, 0)
    assert [each[:3] for each in trees] == [each[:3] for each in expected]
    assert device.replays > replays


def test_an_emission_names_the_drafts_of_its_path(plans: Plans) -> None:
    """Some of which stand behind drafts that were rejected, so that their cache entries move."""
    engine, device = plans
    backend, trees, k, slots = engine._backend, TreeDrafting(), 6, 3
    assert isinstance(backend, TensorRTBackend)
    backend.begin()
    for slot, prompt in enumerate(PROMPTS[:slots]):
        backend.admit(slot, SAMPLED, uniform_stream(slot, 97))
        backend.prompt(slot, Chunk(prompt, 0, -1), trees.prompt, k)
    found = list[tuple[list[int], int]]()
    for number in range(9):
        device.record().wait()
        ids, skipped = (
            device.view(backend._lanes.tensors[name], (slots, k + 1), np.int64).copy()
            for name in ("input_ids", "skipped")
        )
        emission = backend.round(trees.round, k, replay=True)
        tokens = emission.read()
        assert {*emission.nodes} == ({*range(slots)} if number else set()), "the first drafts are chains"
        assert skipped.any() == (number > 0)
        for slot, nodes in emission.nodes.items():
            assert ids[slot, 1:][[*nodes]].tolist() == tokens[slot][:-1]
            found.append(([*nodes], len(tokens[slot])))
    assert all(len(nodes) == count - 1 for nodes, count in found)
    assert any(nodes != [*range(len(nodes))] for nodes, _ in found)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_at_any_k_gives_onnx_runtime_s_text(plans: Plans, tiny_engine: Engine, data: st.DataObject) -> None:
    """Also at the end of the cache, where the next round must wait for the last."""
    prompt = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20) | st.integers(85, 95).map(lambda n: [3] * n)
    policy = st.builds(
        SamplingParams,
        max_tokens=st.sampled_from([1, 3, 12, 200]),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 99),
        ignore_eos=st.booleans(),
        stop=st.sampled_from([(), ("%",)]),
    )
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=6))
    params, k = [data.draw(policy) for _ in prompts], data.draw(st.integers(0, 6))
    drafts = {"draft": "peagle-chain", "num_speculative_tokens": k}
    results, expected = (engine.generate(prompts, params, **drafts) for engine in (plans[0], tiny_engine))
    assert [(o.token_ids, o.text, o.acceptance) for o in results] == [
        (o.token_ids, o.text, o.acceptance) for o in expected
    ]
    trees = plans[0].generate(prompts, params, draft="peagle", num_speculative_tokens=k)
    assert [(o.token_ids, o.text) for o in trees] == [(o.token_ids, o.text) for o in expected]


def _plain(session: Any, manifest_length: int, prompt: list[int], params: SamplingParams) -> list[int]:
    """The reference: the target's graph alone, one row, one token at a time."""
    caches = {i.name: np.zeros((1, *i.shape[1:]), np.float16) for i in session.get_inputs() if "_cache." in i.name}
    names = [o.name for o in session.get_outputs()]
    caches["positions"] = np.arange(next(iter(caches.values())).shape[2])
    numbers, start, window, tokens = uniform_stream(params.seed or 0, manifest_length), 0, prompt, list[int]()
    while len(tokens) < params.max_tokens:
        inputs = {
            "input_ids": np.array([window], np.int64), "start": np.array([start], np.int64),
            "window_len": np.array([len(window)], np.int32), "draft_len": np.zeros(1, np.int32),
            "forced_next": np.array([-1], np.int64), "uniform": numbers[None, start + len(window)][None],
            "skipped": np.zeros((1, len(window)), np.int64),
        }  # fmt: skip
        outputs = dict(zip(names, session.run(None, inputs | policy_of(params) | caches), strict=True))
        caches |= {name: outputs[f"{name}.out"] for name in caches if f"{name}.out" in outputs}
        tokens.append(int(outputs["tokens"][0, 0]))
        start, window = start + len(window), tokens[-1:]
    return tokens


def test_float16_text_matches_its_graph(half: dict[str, Path], tiny_engine: Engine, tmp_path: Path) -> None:
    engine, _ = plan_engine(tmp_path, plan_manifest(tiny_engine.manifest, half, tmp_path), tiny_engine.folder, slots=2)
    length, session = engine.max_seq_len + 1, quiet_session(half["target"])
    params = [replace((GREEDY, SAMPLED)[at % 2], max_tokens=16) for at in range(len(PROMPTS))]
    expected = [_plain(session, length, prompt, each) for prompt, each in zip(PROMPTS, params, strict=True)]
    for k in (0, 4):
        tokens = [list(o.token_ids) for o in engine.generate(PROMPTS, params, num_speculative_tokens=k)]
        assert tokens == expected


def test_a_round_is_captured_once_per_k_and_replayed(plans: Plans) -> None:
    engine, device = plans
    engine.generate(PROMPTS, GREEDY, num_speculative_tokens=2)
    captures, replays = device.captures, device.replays
    rounds_ = [o.acceptance.rounds for o in engine.generate(PROMPTS, GREEDY, num_speculative_tokens=2)]
    assert device.captures == captures
    assert device.replays - replays >= max(rounds_)


def test_all_rounds_that_a_policy_may_choose_are_captured_before_the_first(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    """Few kinds of rounds: no text, batch or length captures another one while requests run."""
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    engine, device = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=3)
    backend = engine._backend
    assert isinstance(backend, TensorRTBackend)
    engine.generate([[5]], SamplingParams(max_tokens=2), num_speculative_tokens="auto")
    counts = engine._factory.decoding(num_speculative_tokens="auto").policy.counts
    kinds = len(counts) * len(backend._lanes.row_sizes) * len(backend._reach.lengths)
    assert len(counts) <= 6
    assert device.captures == kinds
    for seed in range(4):
        prompts = [[5, 6, seed], [7] * 40, [9] * 60][: 1 + seed % 3]
        params = SamplingParams(max_tokens=30, temperature=0.9 * (seed % 2), seed=seed, ignore_eos=True)
        engine.generate(prompts, params, num_speculative_tokens="auto")
    assert device.captures == kinds


def test_rounds_read_as_much_of_the_caches_as_the_texts_ask_for(plans: Plans) -> None:
    """The cost of short texts does not depend on the length of the caches."""
    engine, device = plans
    backend = engine._backend
    assert isinstance(backend, TensorRTBackend)
    for length, expected in ((3, 16), (20, 108)):
        greedy = SamplingParams(max_tokens=4, ignore_eos=True)
        engine.generate([[7] * length] * 2, greedy, num_speculative_tokens=2, draft="peagle-chain")
        assert backend._lanes.positions == expected, "of the last round"
    addresses = backend._lanes.tensors["positions"]
    assert device.view(addresses, (108,), np.int64).tolist() == list(range(108))


def test_plan_without_reach_input_reads_whole_caches(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    """Engines built before plans had recorded sizes."""
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    whole = {
        name: replace(part, inputs=tuple(n for n in part.inputs if n != "positions"))
        for name, part in manifest.parts.items()
    }
    assert lengths_of(whole.values(), manifest.shapes.cache_length) == (manifest.shapes.cache_length,)


def test_an_idle_row_points_behind_all_that_a_request_can_hold(plans: Plans) -> None:
    """Its pass writes all the same: from where it stopped, that could be past the end of the cache."""
    engine, device = plans
    backend, parallel = engine._backend, ParallelDrafting()
    backend.begin()
    for slot in (0, 1):
        backend.admit(slot, GREEDY, uniform_stream(0, 97))
        backend.prompt(slot, Chunk([5, 6], 0, -1), parallel.prompt, 3)
    backend.round(parallel.round, 3, replay=True).read()
    backend.retire(1)
    device.record().wait()
    tensors = backend._lanes.tensors  # type: ignore[attr-defined]
    assert device.view(tensors["window_len"], (3,), np.int32).tolist() == [4, 0, 0]
    starts = device.view(tensors["start"], (3,), np.int64).tolist()
    assert 2 <= starts[0] <= 6
    assert starts[1:] == [engine.max_seq_len] * 2
    backend.round(parallel.round, 3, replay=True).read()  # of one row: the next windows of the others are copied too
    device.record().wait()
    assert device.view(tensors["window_len"], (3,), np.int32).tolist() == [4, 0, 0]
    assert device.view(tensors["start"], (3,), np.int64).tolist()[1:] == [engine.max_seq_len] * 2


def _runs(engine: Engine) -> list[tuple[str, int]]:
    """Record the runs of the target's plan: profile and rows of each pass."""
    runs: list[tuple[str, int]] = engine._backend._lanes._target.engine.runs  # type: ignore[attr-defined]
    runs.clear()
    return runs


def test_round_uses_only_busy_rows_and_a_single_row_profile(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round is enqueued, none replayed, so that each is seen; the last request ends before the others."""
    monkeypatch.setattr(_Context, "is_stream_capturable", lambda self, stream: False, raising=False)
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    engine, _ = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=3)
    engine.generate([[5]], GREEDY, num_speculative_tokens=5)  # which runs one of each, to be ready
    expected = {1: {("one", 1)}, 2: {("verify", 2), ("one", 1)}, 3: {("verify", 3), ("verify", 2)}}
    for requests, rounds in expected.items():
        params = [replace(GREEDY, max_tokens=32)] * (requests - 1) + [replace(GREEDY, max_tokens=8)]
        runs = _runs(engine)
        engine.generate([[5, 6, 7 + slot] for slot in range(requests)], params, num_speculative_tokens=5)
        assert rounds <= {*runs} <= {("prefill", 1), ("one", 1), *rounds}


def test_plans_without_a_profile_for_one_row_run_it_at_that_of_all(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    manifest = _with_profiles(manifest, tmp_path, wide, without="one")
    engine, _ = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=2)
    assert _told(engine, MIXED, 4) == _told(tiny_engine, MIXED, 4)
    runs = _runs(engine)
    engine.generate(PROMPTS[:1], GREEDY, num_speculative_tokens=3)
    assert {*runs} == {("prefill", 1), ("verify", 1), ("verify", 2)}


def test_unused_round_contexts_and_graphs_are_evicted(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "KeptRounds", lambda device, capacity: KeptRounds(device, 3))
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    engine, device = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=2)
    short = replace(GREEDY, max_tokens=12)
    for k in (0, 1, 3, 5, 6, 3):
        assert _told(engine, short, k) == _told(tiny_engine, short, k)
    backend: Any = engine._backend
    assert len(backend._rounds) == 3
    for plan in (backend._lanes._target, backend._own.plan):
        assert len(plan.engine.contexts) <= 3 + 1  # and that of prompts
    assert device.replays > 0


def test_a_round_that_cannot_be_captured_is_enqueued_every_time(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Context, "is_stream_capturable", lambda self, stream: False, raising=False)
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    engine, device = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=2)
    assert _told(engine, MIXED, 3) == _told(tiny_engine, MIXED, 3)
    assert device.captures == device.replays == 0


def test_the_host_is_one_round_behind(plans: Plans) -> None:
    """When a stream hands out a round's tokens, the device has the next one before it."""
    engine, device = plans
    before = device.replays
    seen = [device.replays - before for _ in zip(range(4), engine.stream([5, 6], GREEDY), strict=False)]
    assert all(replays >= most for most, replays in enumerate(seen, 1))  # after the prompt's token, round 1


@pytest.mark.parametrize("chunk", [1, 7])
def test_prompt_chunking_changes_nothing(plans: Plans, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _told(plans[0], MIXED, 4)
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", chunk)
    assert _told(plans[0], MIXED, 4) == whole


def test_prompt_longer_than_the_profile_is_chunked(wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    manifest = _with_profiles(manifest, tmp_path, wide, prefill_columns=8)
    engine, _ = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=2)
    assert _told(engine, MIXED, 4) == _told(tiny_engine, MIXED, 4)


def _with_profiles(
    manifest: Manifest, folder: Path, graphs: dict[str, Path], prefill_columns: int = 96, without: str = ""
) -> Manifest:
    changed = {}
    for name, graph in graphs.items():
        part = getattr(manifest, name)
        *rounds, prefill = (profile for profile in part.plan.profiles if profile.name != without)
        sizes = (*rounds, replace(prefill, columns=(1, prefill_columns, prefill_columns)))
        write_plan(folder / name / "model.plan", graph, sizes)
        changed[name] = replace(part, plan=replace(part.plan, profiles=sizes))
    return replace(manifest, **changed)


def test_logits_are_onnx_runtime_s(plans: Plans, tiny_engine: Engine) -> None:
    for prompt in PROMPTS:
        np.testing.assert_allclose(plans[0].target_logits(prompt), tiny_engine.target_logits(prompt), atol=1e-4)
        for k in (1, 5):
            logits, expected = (e.draft_logits(prompt, k) for e in (plans[0], tiny_engine))
            np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_logits_between_two_generations_leave_no_trace(plans: Plans) -> None:
    expected = _told(plans[0], MIXED, 3)
    plans[0].target_logits(PROMPTS[1])
    plans[0].draft_logits(PROMPTS[3], 2)
    assert _told(plans[0], MIXED, 3) == expected


def test_an_abandoned_stream_leaves_the_engine_usable(plans: Plans) -> None:
    expected = _told(plans[0], MIXED, 4)
    next(iter(plans[0].stream([5, 6], GREEDY)))
    assert _told(plans[0], MIXED, 4) == expected


def test_more_rows_than_the_plans_cover_are_refused(plans: Plans) -> None:
    with pytest.raises(UsageError, match="max_batch_size must be at most 4, not 5"):
        tensorrt.check_slots(plans[0].manifest, 5)
    tensorrt.check_slots(plans[0].manifest, 4)


def test_more_drafts_than_the_plans_cover_are_refused(plans: Plans) -> None:
    with pytest.raises(UsageError, match="from 0"):
        plans[0].generate([[3]], num_speculative_tokens=7)
    with pytest.raises(UsageError, match="at most 6, not 7"):
        plans[0]._backend.round(ParallelDrafting().round, 7, replay=True)


def _backend(manifest: object, folder: Path, slots: int = 2) -> TensorRTBackend:
    device = HostDevice()
    return TensorRTBackend(folder, manifest, slots, device, stand_in(device))  # type: ignore[arg-type]


def test_unloadable_plan_is_rejected_with_the_logger_message(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    (tmp_path / "drafter" / "model.plan").write_bytes(b"no plan at all")
    with pytest.raises(
        EnvironmentProblem, match=r"TensorRT cannot load .*drafter/model.plan\n.*magic tag is wrong"
    ) as caught:
        _backend(manifest, tmp_path)
    assert "rebuild the engine" in caught.value.fix


@pytest.mark.parametrize(
    ("tuned_on", "here", "is_other"),
    [
        ("NVIDIA H200", "NVIDIA H200", False),
        ("NVIDIA H200", "NVIDIA H200 MIG 1g.18gb", False),
        ("", "NVIDIA H200", False),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", True),
    ],
)
def test_a_plan_tuned_on_another_gpu_model_loads_with_a_warning(
    tuned_on: str,
    here: str,
    is_other: bool,
    wide: dict[str, Path],
    tiny_engine: Engine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = plan_manifest(tiny_engine.manifest, wide, tmp_path).target
    assert part.plan is not None
    device = HostDevice()
    device.name = here
    runtime = Runtime(stand_in(device), device)
    runtime.load(tmp_path / part.file, "target", replace(part, plan=replace(part.plan, tuned_on=tuned_on)))
    warnings = [each.getMessage() for each in caplog.records if each.name == "peagle.tensorrt"]
    assert [f"the plan of the target was built on {tuned_on}, but this GPU is {here}" in each for each in warnings] == (
        [True] if is_other else []
    )


def test_warnings_of_tensorrt_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    device = HostDevice()
    logger = Runtime(stand_in(device), device)._logger
    logger.log(logger.Severity.WARNING, "an engine plan file from another device\n")
    assert ("peagle.tensorrt", logging.WARNING, "TensorRT: an engine plan file from another device") in (
        caplog.record_tuples
    )
    assert "an engine plan file from another device" not in logger.messages, "it is not the reason of a failure"


def test_the_first_logger_outlives_its_engine() -> None:
    """TensorRT keeps a pointer to it; a second engine that brings another one would leave that pointer dangling."""
    devices = HostDevice(), HostDevice()
    first, second = (Runtime(stand_in(device), device)._logger for device in devices)
    assert first is second


def test_plan_of_another_graph_is_rejected(wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    with pytest.raises(EnvironmentProblem, match="does not match the manifest's target"):
        _backend(replace(manifest, target=replace(manifest.target, inputs=manifest.target.inputs[1:])), tmp_path)


def test_memory_is_not_reserved_for_sizes_or_types_that_a_plan_does_not_have(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    """The manifest reserves the memory and the plan writes it; on a GPU, an overflow would go unnoticed."""
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    shapes, plan = manifest.shapes, manifest.target.plan
    assert plan is not None
    halves = tuple(replace(t, dtype="float16") if t.dtype == "float32" else t for t in plan.tensors)
    for changed, says in (
        (replace(manifest, shapes=replace(shapes, hidden_size=shapes.hidden_size // 2)), "aux_hidden is float32"),
        (replace(manifest, shapes=replace(shapes, vocab_size=shapes.vocab_size - 1)), "logits is float32"),
        (
            replace(manifest, target=replace(manifest.target, plan=replace(plan, tensors=halves))),
            "manifest declares float16",
        ),
    ):
        with pytest.raises(EnvironmentProblem, match=says):
            _backend(changed, tmp_path)


def test_a_plan_without_its_profiles_is_refused(wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    plan = manifest.target.plan
    assert plan is not None
    broken = replace(manifest, target=replace(manifest.target, plan=replace(plan, profiles=plan.profiles[:1])))
    with pytest.raises(EnvironmentProblem, match="no profile 'prefill'"):
        _backend(broken, tmp_path)


def test_out_of_profile_shapes_are_rejected_with_the_logger_message(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    few = Profile("verify", (1, 1, 1), (1, 3, 3), (1, 3, 3))
    small = (few, replace(few, name="one"), Profile("prefill", (1, 1, 1), (1, 9, 9), (1, 3, 3)))
    write_plan(tmp_path / "target" / "model.plan", wide["target"], small)
    with pytest.raises(EnvironmentProblem, match=r"rejects input_ids.*\n.*S = 5 is outside of 1..3"):
        _backend(manifest, tmp_path, slots=1).warm(ParallelDrafting().round, 4)


def test_a_profile_that_a_plan_lacks_is_rejected_with_the_logger_message(
    wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    manifest = plan_manifest(tiny_engine.manifest, wide, tmp_path)
    plan = manifest.target.plan
    assert plan is not None
    write_plan(tmp_path / "target" / "model.plan", wide["target"], plan.profiles[:1])
    with pytest.raises(EnvironmentProblem, match=r"target rejects its profile 'prefill'\n.*profile 2 of 1 does not"):
        _backend(manifest, tmp_path)


def test_unaligned_caches_serve_one_request_at_a_time(tiny_pair: Pair, tiny_engine: Engine, tmp_path: Path) -> None:
    length = tiny_engine.manifest.shapes.cache_length + 1
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float32", length)
    shapes = replace(tiny_engine.manifest.shapes, cache_length=length)
    manifest = plan_manifest(replace(tiny_engine.manifest, shapes=shapes), graphs, tmp_path)
    engine, _ = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=1)
    assert _told(engine, GREEDY, 3) == _told(tiny_engine, GREEDY, 3)
    with pytest.raises(EnvironmentProblem, match="one request at a time"):
        _backend(manifest, tmp_path)


def test_loading_without_gpu_names_the_required_gpu(
    plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "find_gpu", lambda _: None)
    with pytest.raises(EnvironmentProblem, match=r"built for sm_120 with tensorrt-rtx.*no NVIDIA GPU"):
        tensorrt.load(tmp_path, plans[0].manifest, "tensorrt-rtx", 1)


@pytest.mark.parametrize("k", [0, 3])
def test_a_profiled_engine_times_every_layer_and_captures_nothing(
    k: int, wide: dict[str, Path], tiny_engine: Engine, tmp_path: Path
) -> None:
    device, manifest = HostDevice(), plan_manifest(tiny_engine.manifest, wide, tmp_path)
    engine = engine_on(device, OnnxRuntimeGraph, tmp_path, manifest, tiny_engine.folder, 2, Profiler())
    drafts = {"num_speculative_tokens": k, "draft": "peagle-chain"}
    (output,), (expected,) = (each.generate(PROMPTS[:1], GREEDY, **drafts) for each in (engine, tiny_engine))
    assert (output.token_ids, output.acceptance) == (expected.token_ids, expected.acceptance)
    assert device.captures == 0
    profile = engine.end_profile()
    # One more round may be launched than is read, and preparing rounds is not a phase.
    rounds = len(profile.phases["round"])
    assert rounds - (output.acceptance.rounds + output.acceptance.undrafted) in (0, 1)
    passes = {(each.phase, each.component): each for each in profile.passes}
    halves = ("target", "drafter") if k else ("target",)
    assert {*passes} == {(phase, half) for phase in ("prefill", "round") for half in halves}
    target = passes["round", "target"]
    assert len(target.seconds) == rounds
    assert sum(target.seconds) == pytest.approx(0.007 * rounds)
    assert target.kinds() == [("layers.#.mlp", 2, 6.0 * rounds), ("head", 1, 1.0 * rounds)]


def test_other_gpu_is_rejected(plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "find_gpu", lambda _: "sm_90")
    with pytest.raises(EnvironmentProblem, match=r"built for sm_120.*this machine has sm_90"):
        tensorrt.load(tmp_path, plans[0].manifest, "tensorrt-rtx", 1)


def test_other_tensorrt_version_is_rejected(plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setattr(tensorrt, "find_gpu", lambda _: "sm_120")
    with pytest.raises(EnvironmentProblem, match=r"built with tensorrt-rtx 0.0.1, but \d"):
        tensorrt.load(tmp_path, plans[0].manifest, "tensorrt-rtx", 1)


def test_failed_cuda_initialization_is_rejected(plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of ``load`` up to CUDA itself: the module, its version, the plugins, the folder's kernels."""
    version = pytest.importorskip("tensorrt_rtx").__version__
    if find_gpu("tensorrt") is not None:
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(tensorrt, "find_gpu", lambda _: "sm_120")
    backend = replace(plans[0].manifest.backend, versions={"tensorrt-rtx": version})
    write_pack(tmp_path / tensorrt.KERNELS, [])
    with pytest.raises(EnvironmentProblem, match="CUDA failed to initialize"):
        tensorrt.load(tmp_path, replace(plans[0].manifest, backend=backend), "tensorrt-rtx", 1)
