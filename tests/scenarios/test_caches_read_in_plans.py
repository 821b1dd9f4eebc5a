"""Plans of TensorRT-RTX read a cache once per layer, only the requested part, for all query heads.

A layer with a sliding window reads no more than its window.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.checkpoints.target_and_drafter import cache_length
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_programs import Step, read_programs
from peagle.engines.folder.records import Speculation
from peagle.graphs.lowering import LOWERINGS, TENSORRT
from tests.compiler.tensorrt.small import request
from tests.models import CONFIGS, SHALLOW, make_shallow_pair, save_target
from tests.scenarios.test_fp8_caches_in_plans import PROFILES, fp8_target

pytestmark = pytest.mark.begins_first

LAYERS = SHALLOW["num_hidden_layers"]


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
    sizes, plan = profiles("target", 8, Speculation(5, 5, None), 512)[:1], tmp_path / "model.plan"
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
    return _graph_of(make_shallow_pair(folder, "qwen3").opened(), length)


def _graph_of(target: Target, length: int) -> Path:
    half, store = target_component(target), StageStore.default()
    traced = graph_stages.trace(store, half, "float16", Quiet())
    made = graph_stages.attach(
        store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=length, progress=Quiet()
    )
    return made.attached.path / MODEL


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("gpt-oss", 1),
        pytest.param("gpt-oss", 2, marks=pytest.mark.slow),
        pytest.param("gemma-4", 2, marks=pytest.mark.slow),
    ],
)
def test_a_window_is_copied_by_one_step_for_each_cache(family: str, count: int, tmp_path: Path) -> None:
    """As the first positions are in a layer without a window. Nothing else is as long as a cache."""
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    config = dict(CONFIGS[family])
    few = {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    config |= {"text_config": config["text_config"] | few} if "text_config" in config else few
    graph, plan = _graph_of(Target.open(save_target(tmp_path / "target", config)), 2048), tmp_path / "model.plan"
    sizes = profiles("target", 1, Speculation(5, 5, None), 1984)[:count]  # each is compiled by itself
    build_plan(request(graph, name="target", gpus=("sm_120",), profiles=sizes), plan, Quiet())
    copying = dict(_readers(plan))
    assert len(copying) == len(_readers(plan)) == len(sizes) * 2 * 3
    # In the first layer, the step also makes the mask. The name of a step with many operations ends before all of them.
    assert all("Gath" in step.name or step.name.endswith("Etc") for name, step in copying.items() if "_cache.1" in name)
    for program in read_programs(plan):
        made = {name for step in program.steps for name in step.writes if "_cache." not in name}
        assert not any(2048 in program.tensors[name].shape for name in made if name in program.tensors)
