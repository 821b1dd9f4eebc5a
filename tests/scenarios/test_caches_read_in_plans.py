"""Plans of TensorRT-RTX read a cache once in each layer, no more of it than they are told, for all heads of a query."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target_and_drafter import cache_length
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.pipeline.model_half import target_half
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_programs import Step, read_programs
from peagle.engines.folder.records import Speculation
from peagle.graphs.lowering import LOWERINGS, TENSORRT
from tests.compiler.tensorrt.small import request
from tests.models import make_pair
from tests.scenarios.test_fp8_caches_in_plans import PROFILES, fp8_target

LAYERS = 7


def _readers(plan: Path) -> list[tuple[str, Step]]:
    """The steps that read a cache and do not write one, of all profiles, each with the cache."""
    return [
        (name.removesuffix(".1"), step)
        for program in read_programs(plan)
        for step in program.steps
        for name in step.reads
        if "_cache." in name and ".out" in name and not any("_cache." in written for written in step.writes)
    ]


def test_a_short_cache_is_read_like_a_long_one(tmp_path: Path) -> None:
    """Where all sizes of a profile were the cache's length, the plan wrote keys and values out for every query head."""
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    sizes, plan = profiles("target", 8, Speculation(5, 5, None), 512), tmp_path / "model.plan"
    graph = _wide_target(tmp_path / "pair", cache_length(512, 5, TENSORRT))
    build_plan(request(graph, name="target", gpus=("sm_120",), profiles=sizes), plan, Quiet())
    assert [step.name for _, step in _readers(plan) if "Repl" in step.name or "Slic" not in step.name] == []


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["wide", "fp8"])
def test_each_cache_is_read_once_up_to_the_reach_for_all_heads(tmp_path: Path, narrow: bool) -> None:
    """TensorRT-RTX wrote caches out for every query head that shares them, and whole, where they were not cut."""
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    graph = fp8_target(tmp_path / "pair", "qwen3", "float16")[0] if narrow else _wide_target(tmp_path / "pair")
    plan = tmp_path / "model.plan"
    build_plan(request(graph, name="target", gpus=("sm_120",), profiles=PROFILES), plan, Quiet())
    readers = _readers(plan)
    caches = Counter(name for name, _ in readers)
    assert len(caches) == len(PROFILES) * 2 * LAYERS
    assert set(caches.values()) == {1}
    assert all("Slic" in step.name and "Repl" not in step.name for _, step in readers)


def _wide_target(folder: Path, length: int = 128) -> Path:
    half, store = target_half(make_pair(folder, "qwen3").opened()), StageStore.default()
    traced = graph_stages.trace(store, half, "float16", Quiet())
    made = graph_stages.attach(
        store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=length, progress=Quiet()
    )
    return made.attached.path / MODEL
