"""A target with FP8 caches becomes a plan, ahead of time, that updates them in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.precision.kv_cache_scales import LowPrecisionCaches
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.preflight import survey
from peagle.engines.folder.records import Profile
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.trace import Dtype
from tests.compiler.tensorrt.small import request
from tests.models import make_shallow_pair

GPUS = ("sm_89", "sm_120")
PROFILES = (
    Profile("verify", (1, 4, 8), (1, 5, 7), (1, 5, 7), (16, 64, 128)),
    Profile("prefill", (1, 1, 1), (1, 64, 64), (1, 5, 7), (16, 64, 128)),
)


def fp8_target(folder: Path, family: str, width: Dtype) -> tuple[Path, int]:
    """The lowered target of a family with caches of codes, and how many layers it has."""
    pair = make_shallow_pair(folder, family)
    spec, _ = pair.specs()
    half = target_component(pair.opened())
    scales = {f"{kind}_cache.{layer}": 0.02 + layer / 100 for kind in "kv" for layer in range(len(spec.caches))}
    half, store = replace(half, caches=LowPrecisionCaches("fp8", scales)), StageStore.default()
    traced = graph_stages.trace(store, half, width, Quiet())
    made = graph_stages.attach(store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=128, progress=Quiet())
    return made.attached.path / MODEL, len(spec.caches)


def test_parser_requirements_are_counted(tmp_path: Path) -> None:
    graph, layers = fp8_target(tmp_path, "qwen3", "float16")
    found = survey(graph, GPUS, PROFILES)
    assert found.plugins == {"AcceptTree": 1, "CacheWriteFp8": layers}
    assert found.layers["KV_CACHE_UPDATE"] == 0
    assert found.aliases
    assert {v.dtype for v in (*found.graph.inputs, *found.graph.outputs) if "_cache." in v.name} == {"float8e4m3fn"}


@pytest.mark.parametrize(
    ("family", "width", "gpus"),
    [
        ("qwen3", "float16", GPUS[1:]),
        pytest.param("qwen3", "bfloat16", GPUS, marks=pytest.mark.slow),
        pytest.param("gpt-oss", "bfloat16", GPUS, marks=pytest.mark.slow),
        pytest.param("gemma-4", "float16", GPUS, marks=pytest.mark.slow),
    ],
)
def test_a_plan_has_fp8_caches(tmp_path: Path, family: str, width: Dtype, gpus: tuple[str, ...]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    graph, layers = fp8_target(tmp_path / "pair", family, width)
    plugins = {"PLUGIN_V3": 1 + layers, "KV_CACHE_UPDATE": 0}
    asked = request(graph, name="target", gpus=gpus, profiles=PROFILES, layers=plugins)
    facts = build_plan(asked, tmp_path / "model.plan", Quiet())
    assert facts.plan.plugins == {"AcceptTree": 1, "CacheWriteFp8": layers}
    caches = [tensor for tensor in facts.plan.tensors if "_cache." in tensor.name]
    assert len(caches) == 4 * layers
    assert {tensor.dtype for tensor in caches} == {"float8e4m3fn"}
    assert {tensor.dtype for tensor in facts.plan.tensors if tensor.name == "logits"} == {width}
