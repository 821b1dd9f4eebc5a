"""Several drafters on plans are loaded, selected and unloaded while requests run, without affecting them.

CUDA and TensorRT are stood in for, as in ``test_backend``.
"""

from __future__ import annotations

import gc
import shutil
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.component import drafter_component
from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.base import Chunk
from peagle.engines.backends.tensorrt.backend import TensorRTBackend
from peagle.engines.draft_methods import METHODS as METHODS_BY_NAME
from peagle.engines.folder.manifest import BUILT_IN, Manifest, in_oldest_format
from peagle.engines.folder.records import AddedDrafter, FileEntry, Part
from peagle.engines.requests.random_numbers import uniform_stream
from peagle.graphs.drafters import read_drafter
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, lowered_half, plan_engine, plan_manifest
from tests.engines.mixed_requests import GREEDY, PROMPTS, SAMPLED
from tests.garbage import collected
from tests.models import VOCAB, Pair, eagle3_head

K = 3
SLOTS = 3
METHODS = {"twin": "peagle", "noisy": "peagle", "other": "eagle3"}


@dataclass(frozen=True)
class Loaded:
    """An engine of plans and its device."""

    engine: Engine
    device: HostDevice

    @property
    def backend(self) -> Any:
        return self.engine._backend


def noisy_head(folder: Path, head: Path) -> Path:
    """A copy of a head with noise in its matrices."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(head, folder)
    torch.manual_seed(0)
    weights = load_file(head / "model.safetensors")
    noisy = {
        name: each + 0.5 * each.std() * torch.randn(each.shape) for name, each in weights.items() if each.dim() > 1
    }
    save_file(weights | noisy, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tiny_pair: Pair, tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of plans with its own head, the same head again, one with noise, and one of EAGLE-3."""
    folder, length = tmp_path_factory.mktemp("plans"), tiny_engine.manifest.shapes.cache_length
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float32", length)
    heads = {
        "twin": tiny_pair.head,
        "noisy": noisy_head(folder / "heads" / "noisy", tiny_pair.head),
        "other": eagle3_head(folder / "heads" / "other", tiny_pair, draft_vocab=VOCAB - 40),
    }
    graphs_of = {name: graph_of(tiny_pair, head, length) for name, head in heads.items()}
    return write_engine(folder, tiny_engine, graphs, graphs_of)


def graph_of(pair: Pair, head: Path, length: int) -> Path:
    """A head for the target, lowered for TensorRT."""
    target, checkpoint = Target.open(pair.target), Checkpoint.open(head)
    spec = read_drafter(checkpoint.config, checkpoint.shapes, target.spec)
    return lowered_half(drafter_component(checkpoint, spec, target.with_taps(spec.taps)), "float32", length)


def write_engine(folder: Path, like: Engine, graphs: dict[str, Path], added: dict[str, Path]) -> Path:
    """Write the engine ``like`` as plans, with added drafters."""
    manifest = plan_manifest(like.manifest, graphs, folder)
    drafters = {}
    for name, graph in added.items():
        made = plan_manifest(like.manifest, {"target": graphs["target"], "drafter": graph}, folder / name)
        place = folder / "drafters" / name / "model.plan"
        place.parent.mkdir(parents=True)
        (folder / name / "drafter" / "model.plan").rename(place)
        part: Part | None = made.drafter
        assert part is not None
        tensors, layers = (
            part.plan.tensors if part.plan else (),
            sum(each.startswith("k_cache") for each in part.inputs),
        )
        width = next(each.shape[-1] for each in tensors if each.name == "draft_logits")
        part = replace(part, file=f"drafters/{name}/model.plan", origin=replace(part.origin, revision=f"of {name}"))
        part = replace(part, caches=part.caches[:layers])
        drafters[name] = AddedDrafter(METHODS[name], part, manifest.speculation, width, "fp32")
    plans = ["target/model.plan", "drafter/model.plan", *(each.part.file for each in drafters.values())]
    files = {name: FileEntry.of(folder / name) for name in plans}
    in_oldest_format(replace(manifest, drafters=drafters, files=files)).write(folder)
    return folder


def load(
    folder: Path, like: Engine, drafters: tuple[str, ...] = ("twin", "noisy", "other"), slots: int = SLOTS
) -> Loaded:
    engine, device = plan_engine(folder, Manifest.read(folder), like.folder, slots)
    for name in drafters:
        engine.load_drafter(name)
    return Loaded(engine, device)


@pytest.fixture(scope="module")
def loaded(folder: Path, tiny_engine: Engine) -> Loaded:
    return load(folder, tiny_engine)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_text_of_a_request_is_the_same_among_those_of_other_drafters(
    loaded: Loaded, tiny_engine: Engine, data: st.DataObject
) -> None:
    """Of parallel and autoregressive drafters, and without drafts; more requests than rows."""
    policy = st.builds(
        SamplingParams,
        max_tokens=st.sampled_from([1, 4, 20]),
        temperature=st.sampled_from([0.0, 0.9]),
        seed=st.integers(0, 99),
        ignore_eos=st.just(True),
    )
    prompt = st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=20)
    names = st.sampled_from([BUILT_IN, "twin", "noisy", "other", "none"])
    requests = data.draw(st.lists(st.tuples(prompt, policy, names), min_size=1, max_size=7))

    def drafts(name: str) -> dict[str, Any]:
        return {"draft": name} if name == "none" else {"draft": name, "num_speculative_tokens": K}

    sent = [loaded.engine.submit(ids, params, **drafts(name)) for ids, params, name in requests]
    outputs = [each.result() for each in sent]
    plain = [tiny_engine.generate([ids], params, draft="none")[0].token_ids for ids, params, _ in requests]
    assert [each.token_ids for each in outputs] == plain
    assert [each.drafter for each in outputs] == ["" if name == "none" else name for *_, name in requests]


def windows(state: Loaded, method: str, drafters: list[Any], ks: list[int]) -> list[list[list[int]]]:
    """The windows that prompts and rounds with these K leave in each slot: the newest token and drafts."""
    backend, strategy, found = state.backend, METHODS_BY_NAME[method].strategy, list[list[list[int]]]()
    assert strategy is not None
    backend.begin()
    for slot, drafter in enumerate(drafters):
        backend.admit(slot, (GREEDY, SAMPLED)[slot % 2], uniform_stream(slot, 97), drafter=drafter)
        backend.prompt(slot, Chunk(PROMPTS[slot], 0, -1), strategy.prompt, ks[0])
        backend.first(slot).read()
    lanes = backend._lanes
    for k in ks:
        backend.round(strategy.round, k, replay=True).read()
        state.device.record().wait()
        shape = (SLOTS, lanes.num_draft_columns + 1)
        ids = state.device.view(lanes.tensors["input_ids"], shape, np.int64)
        found.append([ids[slot].tolist() for slot in range(len(drafters))])
    backend.begin()  # no slot holds a drafter that the test releases
    return found


@pytest.mark.parametrize("method", ["peagle", "peagle-chain", "eagle3"])
def test_drafts_of_a_row_come_from_its_own_drafter(loaded: Loaded, method: str) -> None:
    """The one EAGLE-3 head is loaded twice, with caches of its own each time."""
    manifest = Manifest.read(loaded.engine.folder)
    names = ("other", "other") if method == "eagle3" else ("noisy", "twin")
    one, two = (loaded.backend.load_drafter(manifest.using(each), loaded.engine._loop.run_between) for each in names)
    ks = [4, 4, 1, 0, 3, 6, 6]
    alone = {each: windows(loaded, method, [each] * SLOTS, ks) for each in (one, two)}
    if method != "eagle3":
        assert alone[one] != alone[two]
        assert alone[two] == windows(loaded, method, [None] * SLOTS, ks)  # the same head
    for drafters in ([one, two, one], [two, two, one], [two, one, one]):
        mixed = windows(loaded, method, drafters, ks)
        for at, each in enumerate(mixed):
            assert each == [alone[drafter][at][slot] for slot, drafter in enumerate(drafters)]


def test_rounds_of_one_drafter_are_captured_and_of_several_only_their_passes(loaded: Loaded) -> None:
    params, device = SamplingParams(max_tokens=24, ignore_eos=True), loaded.device

    def run(*names: str) -> int:
        before = device.captures
        sent = [loaded.engine.submit([5, 9, 30], params, draft=each, num_speculative_tokens=2) for each in names]
        for each in sent:
            each.result()
        return device.captures - before

    run("noisy", "noisy")
    assert run("noisy", "noisy") == 0
    run("noisy", "twin")
    kinds = [kind for kind, kept in loaded.backend._rounds._rounds.items() if len(kind[-1]) > 1]
    assert kinds
    assert all(loaded.backend._rounds.of(kind).graph is None for kind in kinds)
    assert run("noisy", "twin") == 0


def test_unloaded_drafter_serves_its_requests_and_leaves_no_memory(folder: Path, tiny_engine: Engine) -> None:
    engine_and_device = load(folder, tiny_engine, drafters=())
    engine, device, long = (
        engine_and_device.engine,
        engine_and_device.device,
        SamplingParams(max_tokens=24, ignore_eos=True),
    )
    with engine:
        plain = engine.generate([[5, 9]], long, draft="none")[0].token_ids
        engine.generate(PROMPTS, long, num_speculative_tokens=K)
        held, rounds = device.held, len(engine_and_device.backend._rounds)
        for name in ("noisy", "other"):
            engine.load_drafter(name)
            assert device.held > held
            sent = [engine.submit([5, 9], long, draft=name, num_speculative_tokens=K) for _ in range(SLOTS + 1)]
            engine.unload_drafter(name)
            outputs = [each.result() for each in sent]
            assert {(each.token_ids, each.drafter) for each in outputs} == {(plain, name)}
            del sent, outputs
            gc.collect(0)
            engine.generate(PROMPTS, long, num_speculative_tokens=K)
        assert collected(lambda: device.held == held)
        assert len(engine_and_device.backend._rounds) == rounds
        assert not engine_and_device.backend._others


def test_unloaded_drafter_is_freed_after_rounds_with_its_trees(folder: Path, tiny_engine: Engine) -> None:
    """Its plan too, which holds the weights."""
    state, params = load(folder, tiny_engine, drafters=()), SamplingParams(max_tokens=4, ignore_eos=True)
    with state.engine as engine:
        engine.generate([[5, 9]], params, num_speculative_tokens=K)
        handle = state.backend.load_drafter(Manifest.read(folder).using("noisy"), engine._loop.run_between)
        loaded = weakref.ref(handle.loaded)
        windows(state, "peagle", [handle] * SLOTS, [K, K, K])
        del handle
        gc.collect(0)
        engine.generate([[5, 9]], params, num_speculative_tokens=K)  # replays rounds that were captured before
        assert collected(lambda: loaded() is None)


def test_tree_of_a_drafter_that_left_is_verified_like_any_other(folder: Path, tiny_engine: Engine) -> None:
    """It laid out windows of rows without a drafter too, whose next round may keep those drafts, as for a grammar."""
    manifest, tree, plain = Manifest.read(folder), METHODS_BY_NAME["peagle"].strategy, METHODS_BY_NAME["none"].strategy
    engine, _ = plan_engine(folder, manifest.using("other"), tiny_engine.folder, 4)  # its own drafter drafts chains
    assert tree is not None
    assert plain is not None
    moved = 0
    with engine:
        backend: Any = engine._backend
        left = backend.load_drafter(manifest.using("twin"), engine._loop.run_between)
        for seed in (10, 12):
            texts = list[list[int]]()
            backend.begin()
            for slot in range(4):
                backend.admit(slot, SAMPLED, uniform_stream(seed, 97), drafter=left, drafts=slot == 3)
                backend.prompt(slot, Chunk(PROMPTS[slot], 0, -1), plain.prompt, 0)
                texts.append([*backend.first(slot).read()[0]])
            for steps, k in ((tree, 6), (plain, 6), *[(plain, 0)] * 6):
                emission = backend.round(steps.round, k, replay=False)
                tokens = emission.read()
                moved += sum([*nodes] != [*range(len(nodes))] for nodes in emission.nodes.values())
                for slot in range(3):
                    texts[slot] += tokens[slot]
                if steps is tree:
                    backend.retire(3)
            whole = tiny_engine.generate(PROMPTS[:3], replace(SAMPLED, seed=seed), draft="none")
            assert texts[:3] == [list(each.token_ids[: len(text)]) for each, text in zip(whole, texts, strict=False)]
    assert moved


def test_drafter_is_loaded_while_requests_run(folder: Path, tiny_engine: Engine) -> None:
    state = load(folder, tiny_engine, drafters=())
    with state.engine as engine:
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        expected = engine.generate(PROMPTS, params, num_speculative_tokens=K)
        running = [engine.submit(each, params, num_speculative_tokens=K) for each in PROMPTS]
        engine.load_drafter("noisy")
        late = [engine.submit(each, params, draft="noisy", num_speculative_tokens=K) for each in PROMPTS]
        assert [each.result().token_ids for each in running] == [each.token_ids for each in expected]
        assert [each.result().token_ids for each in late] == [each.token_ids for each in expected]


def test_prefixes_are_shared_only_with_requests_of_the_same_drafter(folder: Path, tiny_engine: Engine) -> None:
    """Drafters with other caches included."""
    prompt, params = list(range(2, 60)), SamplingParams(max_tokens=4, ignore_eos=True)
    state = load(folder, tiny_engine)
    engine = Engine(folder, state.engine.manifest, state.backend, state.engine.tokenizer, prefix_cache_bytes=1 << 24)
    for name in ("twin", "other"):
        engine.load_drafter(name)
    with engine:
        options: Any = [
            {"draft": draft, "num_speculative_tokens": 2} for draft in (BUILT_IN, "twin", "twin", "other", "other")
        ]
        outputs = [engine.generate([prompt], params, **each)[0] for each in options]
        assert [each.cached_tokens for each in outputs] == [0, 0, 48, 0, 48]
        assert len({each.token_ids for each in outputs}) == 1


def test_drafter_that_does_not_fit_into_the_memory_leaves_none_of_it_taken(
    folder: Path, tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load(folder, tiny_engine, drafters=())
    with state.engine as engine:
        held, calls = state.device.held, 0
        allocate = HostDevice.allocate

        def scarce(device: HostDevice, size: int) -> int:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise EnvironmentProblem("the GPU is out of memory")
            return allocate(device, size)

        with monkeypatch.context() as patch:
            patch.setattr(HostDevice, "allocate", scarce)
            with pytest.raises(EnvironmentProblem, match="out of memory"):
                engine.load_drafter("noisy")
        assert state.device.held == held
        assert engine.drafters == (BUILT_IN,)
        assert engine.generate([[5]], SamplingParams(max_tokens=4))[0].token_ids


def test_plan_for_fewer_rows_is_refused(folder: Path, tiny_engine: Engine) -> None:
    manifest = Manifest.read(folder)
    state = load(folder, tiny_engine, drafters=())
    its = manifest.using("noisy")
    assert its.drafter is not None
    assert its.drafter.plan is not None
    few = tuple(replace(each, rows=(1, 1, 1)) for each in its.drafter.plan.profiles)
    drafter = replace(its.drafter, plan=replace(its.drafter.plan, profiles=few))
    backend: TensorRTBackend = state.backend
    with state.engine, pytest.raises(EnvironmentProblem, match="does not fit the other plans"):
        backend.load_drafter(replace(its, drafter=drafter), state.engine._loop.run_between)
