"""A layer takes few steps of a plan, for any storage of weights: matmuls with one input are one step.

One more step of a pass writes the caches of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest
import synthetic_checkpoint as synthetic

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.checkpoints.target_and_drafter import cache_length
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.pipeline.graph_stages import MODEL
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_programs import PRODUCT, Step, read_programs
from peagle.engines.folder.records import Speculation
from peagle.graphs.lowering import TENSORRT
from tests.compiler.tensorrt.small import request

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

LAYERS = 3  # the caches are written after the last of them has read its own
WIDE, FP8 = ("bf16", "bf16"), ("fp8", "modelopt-fp8")
FORMS = [pytest.param(*WIDE, marks=pytest.mark.slow), FP8]
SMALL: Mapping[str, int] = {
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 256
}  # fmt: skip
E4M3 = "float8e4m3fn"

Layer = tuple[tuple[Step, ...], tuple[Step, ...], frozenset[tuple[str, str, str]]]


@pytest.fixture(scope="module")
def layer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Layer]:
    """The steps of Qwen3-Coder with 8 experts, those of a layer, from router to router, and its products."""

    @cache
    def target(stored: str, full: bool) -> Target:
        out = tmp_path_factory.mktemp("coder") / "pair"
        sizes = {} if full else {"hidden": 512, "sizes": tuple(SMALL.items())}
        synthetic.write(
            synthetic.Spec("qwen3-coder-30b", out, layers=LAYERS, experts=8, vocab=4096, format=stored, **sizes)
        )
        return Target.open(out / "target")

    @cache
    def make(precision: str, stored: str, length: int = 2048, full: bool = False) -> Layer:
        folder = tmp_path_factory.mktemp("plan")
        recipe = RECIPES[precision].on("bf16") if precision != "bf16" else None
        half, store = target_component(target(stored, full), recipe), StageStore.default()
        traced = graph_stages.trace(store, half, "bfloat16", Quiet())
        tokens = cache_length(length, 8, TENSORRT)
        made = graph_stages.attach(store, half, traced, lowering=TENSORRT, cache_length=tokens, progress=Quiet())
        sizes_of_rounds = profiles("target", 8, Speculation(8, 8, None), length)[:1]  # each is compiled by itself
        asked = request(made.attached.path / MODEL, name="target", profiles=sizes_of_rounds)
        facts = build_plan(asked, folder / "model.plan", Quiet())
        steps = [
            step
            for step in read_programs(folder / "model.plan")[0].steps
            if not step.fused and step.kind not in ("signal", "wait", "shape_call")
        ]
        routers = [product.layer for product in facts.products if product.weight.endswith("mlp.gate.weight")]
        first, last, *_ = (place for place, step in enumerate(steps) if set(routers) & set(step.layers))
        kinds = {(product.weight, product.stored, product.computed) for product in facts.products}
        return tuple(steps), tuple(steps[first:last]), frozenset(kinds)

    return make


@pytest.mark.parametrize(("precision", "stored"), FORMS)
def test_a_layer_with_experts_takes_fifteen_steps(precision: str, stored: str, layer_of: Callable[..., Layer]) -> None:
    _, steps, kinds = layer_of(precision, stored)
    assert len(steps) == 15
    # q, k and v; the router; the experts' gate and up; their down. BF16 adds the residual in the step of o.
    assert sum(step.kind == PRODUCT for step in steps) == (5 if precision == "fp8" else 4)
    narrow = {name for name, stored_as, computed in kinds if stored_as == computed == E4M3}
    assert len(narrow) == (4 * LAYERS if precision == "fp8" else 0)


@pytest.mark.parametrize(("precision", "stored"), FORMS)
def test_one_step_writes_all_caches_after_every_layer_has_read_its_own(
    precision: str, stored: str, layer_of: Callable[..., Layer]
) -> None:
    steps, *_ = layer_of(precision, stored)
    touching = [step for step in steps if any("_cache." in name for name in step.reads)]
    *reading, writing = touching
    assert not any("_cache." in name for step in reading for name in step.writes)
    assert len(reading) == 2 * LAYERS
    assert len({name for name in writing.writes if "_cache." in name}) == 2 * LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 1024, 2048, 32768])
@pytest.mark.parametrize(("precision", "stored"), [WIDE, FP8])
def test_so_it_does_at_full_width_and_replicates_no_cache(
    precision: str, stored: str, length: int, layer_of: Callable[..., Layer]
) -> None:
    _, steps, _ = layer_of(precision, stored, length, full=True)
    assert len(steps) == (14 if precision == "fp8" and length <= 1024 else 15)
    reading = [step for step in steps if any("_cache." in name for name in step.reads)]
    assert len(reading) == 2
    assert not any("Repl" in step.name for step in reading)
