"""The number of kernels that a speed estimate counts is close to the steps of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target_and_drafter import cache_length
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import Component, drafter_component, target_component
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources.speed.count_kernels import count_kernels
from peagle.compiler.resources.speed.drafter_work import drafter_work
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_programs import PRODUCT, read_programs
from peagle.engines.folder.records import Speculation
from peagle.graphs import graph_files
from peagle.graphs.lowering import TENSORRT
from tests.compiler.tensorrt.small import request
from tests.models import make_pair

_ONE_KERNEL = (PRODUCT, "function", "runtime_fusion", "custom_layer")
_WITHIN = 0.15


def _built(half: Component, out: Path) -> tuple[Path, int]:
    """The graph of a half, and the steps of a pass in its plan."""
    store = StageStore.default()
    traced = graph_stages.trace(store, half, "float16", Quiet())
    length = cache_length(2048, 5, TENSORRT)
    made = graph_stages.attach(store, half, traced, lowering=TENSORRT, cache_length=length, progress=Quiet())
    graph = made.attached.path / MODEL
    sizes = profiles(half.name, 8, Speculation(5, 5, None), 2048)[:1]  # of rounds; each is compiled by itself
    build_plan(request(graph, name=half.name, gpus=("sm_120",), profiles=sizes), out, Quiet())
    steps = [step for step in read_programs(out)[0].steps if step.kind in _ONE_KERNEL and not step.fused]
    return graph, len(steps)


@pytest.mark.parametrize("family", ["qwen3", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_kernels_counted_in_a_graph_are_about_the_steps_of_its_plan(family: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    graph, steps = _built(target_component(make_pair(tmp_path / "pair", family).opened()), tmp_path / "model.plan")
    assert count_kernels(graph_files.load(graph)) == pytest.approx(steps, rel=_WITHIN)


def test_kernels_assumed_of_a_drafter_are_about_the_steps_of_its_plan(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    from peagle.compiler.checkpoints.checkpoint import Checkpoint

    pair = make_pair(tmp_path / "pair", "qwen3")
    head = pair.specs()[1]
    half = drafter_component(Checkpoint.open(pair.head), head, pair.opened())
    graph, steps = _built(half, tmp_path / "model.plan")
    assert drafter_work(head, RECIPES["fp16"], TENSORRT).kernels == pytest.approx(steps, rel=_WITHIN)
    assert count_kernels(graph_files.load(graph)) == pytest.approx(steps, rel=2 * _WITHIN)
