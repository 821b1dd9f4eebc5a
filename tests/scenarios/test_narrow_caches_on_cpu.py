"""Engines with low-precision caches on ONNX Runtime: a text does not depend on concurrent requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.reports.engine_contents import inspect_engine
from peagle.compiler.request.verb_options import BUILD
from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime.backend import OnnxRuntimeBackend
from peagle.engines.folder.manifest import contradictions
from peagle.plugins.cpu import compile as compiling
from peagle.plugins.number_formats import NUMBER_FORMATS

PROMPTS = [[5, 9, 30, 7], [11] * 40, [40], list(range(2, 80))]
IDS = np.random.default_rng(7).integers(0, 2048, 90).tolist()
WINDOWS = ((1,) * 8, (2, 6), (5, 1, 2))
# How far logits may be from those of the kernels where the bodies run: what is rounded is the same but for the last
# digit of a key, which may be rounded to the next code.
BODY = {"fp16": 2e-3, "int8": 2e-2}
COST = {"fp16": 5e-3, "int8": 5e-2}  # and from those of caches in FP32
Built = Callable[[str], Path]

SAMPLED = {"temperature": 0.8, "seed": 3}

# The engines of test_engines_with_cpu_kernels.py have caches in fp16.
kinds = pytest.mark.parametrize("kind", [pytest.param("fp16", marks=pytest.mark.slow), "int8"])


@pytest.fixture(scope="module")
def built(cpu_library: Path, demo_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The demo pair with caches of a type; its traces are those of the other engine."""

    @cache
    def make(kind: str) -> Path:
        out = tmp_path_factory.mktemp(kind) / "engine"
        flags = {"num_speculative_tokens": 3, "max_seq_len": 128, "precision": "fp32", "lowering": "cpu"}
        return build(BUILD.request(model="demo", out=out, kv_cache_dtype=kind, **flags)).path

    return make


@kinds
def test_both_caches_are_smaller_and_reported(built: Built, kind: str) -> None:
    inside = inspect_engine(built(kind))
    assert inside["precision"]["kv_cache"] == kind
    engine = Engine.load(built(kind))
    backend, wide = engine._backend, replace(engine.manifest.target.caches[0], dtype="")
    assert isinstance(backend, OnnxRuntimeBackend)
    caches = [*backend._caches.target.values(), *backend._caches.drafter.values()]
    assert {array.dtype for array in caches} == {NUMBER_FORMATS[kind].number_type.dtype}
    assert inside["cache_bytes"] == sum(array.nbytes for array in caches)
    narrow = replace(wide, dtype=NUMBER_FORMATS[kind].number_type.name)
    assert narrow.position_bytes("float32") <= wide.position_bytes("float32") / 2


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("int8", SAMPLED),
        pytest.param("int8", {}, marks=pytest.mark.slow),
        pytest.param("fp16", {}, marks=pytest.mark.slow),
        pytest.param("fp16", SAMPLED, marks=pytest.mark.slow),
    ],
)
def test_no_number_of_drafts_and_no_neighbour_changes_a_text(built: Built, kind: str, params: dict[str, float]) -> None:
    engine = Engine.load(built(kind), max_batch_size=3)
    asked = SamplingParams(max_tokens=30, ignore_eos=True, **params)
    alone = [engine.generate([prompt], asked, num_speculative_tokens=0)[0].token_ids for prompt in PROMPTS]
    for k in (0, 1, 3):
        assert [each.token_ids for each in engine.generate(PROMPTS, asked, num_speculative_tokens=k)] == alone


@kinds
def test_token_bits_are_independent_of_window_threads_and_instructions(
    built: Built, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Engine.load(built(kind), threads=2).target_logits(IDS)
    backend = Engine.load(built(kind), threads=1)._backend
    assert isinstance(backend, OnnxRuntimeBackend)
    for windows in WINDOWS:
        found = backend.target_logits(IDS, (len(IDS) - 8, *windows))
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), err_msg=str(windows))
    monkeypatch.setenv("PEAGLE_CPU_INSTRUCTIONS", "portable")
    np.testing.assert_array_equal(Engine.load(built(kind)).target_logits(IDS[:20]), expected[:20])


@kinds
def test_standard_operator_bodies_give_the_same(
    built: Built, demo_engine: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, wide = Engine.load(built(kind)).target_logits(IDS), Engine.load(demo_engine).target_logits(IDS)
    drafts = Engine.load(built(kind)).draft_logits(IDS, 3)
    size = np.abs(wide).max()
    assert 0 < np.abs(ours - wide).max() < COST[kind] * size
    monkeypatch.setattr(compiling, "machine_name", lambda: "linux-riscv64")
    engine = Engine.load(built(kind))
    assert "using standard operators instead" in caplog.text
    np.testing.assert_allclose(engine.target_logits(IDS), ours, atol=BODY[kind] * size)
    np.testing.assert_allclose(engine.draft_logits(IDS, 3), drafts, atol=BODY[kind] * np.abs(drafts).max())
    assert engine.generate(PROMPTS[:2], SamplingParams(max_tokens=8))[1].token_ids


def test_manifest_with_another_cache_type_is_rejected(built: Built) -> None:
    """Memory would be given for one and written as the other."""
    manifest = Engine.load(built("int8")).manifest
    odd = replace(manifest.target, caches=tuple(replace(each, dtype="float8e4m3fn") for each in manifest.target.caches))
    complaints = contradictions(replace(manifest, target=odd))
    assert "target.caches: onnxruntime does not support cache type 'float8e4m3fn'" in complaints
