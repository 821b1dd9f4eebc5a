"""EAGLE-3 heads on plans: all drafts are those of ONNX Runtime, and no round waits for the host."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest

from peagle.engines import Engine
from peagle.engines.backends.base import Backend, Chunk
from peagle.engines.backends.onnxruntime.backend import OnnxRuntimeBackend
from peagle.engines.backends.tensorrt.backend import TensorRTBackend
from peagle.engines.draft_methods.eagle3 import METHOD
from peagle.engines.requests.random_numbers import uniform_stream
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.engines.mixed_requests import GREEDY, MIXED, PROMPTS, SAMPLED
from tests.models import Pair

SLOTS = 3


@pytest.fixture(scope="module")
def engine(eagle3_folder: Path) -> Engine:
    return Engine.load(eagle3_folder, max_batch_size=SLOTS, threads=1, prefix_cache_bytes=0)


@pytest.fixture(scope="module")
def plans(eagle3_pair: Pair, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, HostDevice]:
    """In float32, so that its numbers are those of ONNX Runtime's engine."""
    graphs = lowered(eagle3_pair.target, eagle3_pair.head, "float32", engine.manifest.shapes.cache_length)
    folder = tmp_path_factory.mktemp("plans")
    return plan_engine(folder, plan_manifest(engine.manifest, graphs, folder), engine.folder, SLOTS)


def _rounds(backend: Backend, ks: list[int], slots: int) -> list[list[list[int]]]:
    """The windows that prompts of several chunks, and then rounds with these K, leave: the newest token and drafts."""
    strategy, found = METHOD.strategy, list[list[list[int]]]()
    assert strategy is not None
    backend.begin()
    for slot in range(slots):
        backend.admit(slot, (GREEDY, SAMPLED)[slot % 2], uniform_stream(slot, 97))
        for start, end in ((0, 3), (3, 8), (8, 9)):
            ids = PROMPTS[1 if slot else 3][: end + 1]
            backend.prompt(slot, Chunk(ids[start:end], start, ids[end] if end < 9 else -1), strategy.prompt, ks[0])
        backend.first(slot).read()
    for k in ks:
        backend.round(strategy.round, k, replay=True).read()
        found.append([_window(backend, slot, k) for slot in range(slots)])
    return found


def _window(backend: Backend, slot: int, k: int) -> list[int]:
    if isinstance(backend, OnnxRuntimeBackend):
        window = backend._lanes.window(slot)
        return [window.newest, *window.drafts]
    assert isinstance(backend, TensorRTBackend)
    lanes, device = backend._lanes, cast("HostDevice", backend._device)
    device.record().wait()
    windows = device.view(lanes.tensors["input_ids"], (lanes._memory.slots, lanes.num_draft_columns + 1), np.int64)
    return [int(token) for token in windows[slot]]


@pytest.mark.parametrize("slots", [1, SLOTS])
def test_drafts_of_every_round_are_onnx_runtime_s(plans: tuple[Engine, HostDevice], engine: Engine, slots: int) -> None:
    """At any K, which changes, also when a round is captured and replayed."""
    ks = [4, 4, 1, 0, 3, 6, 6, 6, 2]
    expected = _rounds(engine._backend, ks, slots)
    assert _rounds(plans[0]._backend, ks, slots) == expected
    replays = plans[1].replays
    assert _rounds(plans[0]._backend, ks, slots) == expected
    assert plans[1].replays > replays


@pytest.mark.parametrize("k", [0, 1, 4])
def test_text_and_acceptance_are_onnx_runtime_s(plans: tuple[Engine, HostDevice], engine: Engine, k: int) -> None:
    ours, theirs = (each.generate(PROMPTS, MIXED, num_speculative_tokens=k) for each in (plans[0], engine))
    assert [(o.token_ids, o.acceptance) for o in ours] == [(o.token_ids, o.acceptance) for o in theirs]


def test_draft_logits_of_every_pass_are_onnx_runtime_s(plans: tuple[Engine, HostDevice], engine: Engine) -> None:
    for prompt in PROMPTS:
        for k in (1, 5):
            logits, expected = (each.draft_logits(prompt, k) for each in (plans[0], engine))
            assert logits.shape[0] == k
            np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_rounds_are_captured_once_and_the_host_is_one_behind(plans: tuple[Engine, HostDevice]) -> None:
    engine, device = plans
    engine.generate(PROMPTS, GREEDY, num_speculative_tokens=3)
    captures, replays = device.captures, device.replays
    outputs = engine.generate(PROMPTS, GREEDY, num_speculative_tokens=3)
    assert device.captures == captures
    assert device.replays - replays >= max(output.acceptance.rounds for output in outputs)
    before = device.replays
    seen = [device.replays - before for _ in zip(range(4), engine.stream([5, 6], GREEDY), strict=False)]
    assert all(replays >= most for most, replays in enumerate(seen, 1))
