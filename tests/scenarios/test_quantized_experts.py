"""Quantized experts: from checkpoints that stack, transpose or pack them, computed in FP8."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import Component, target_component
from peagle.compiler.precision.calibration.saved_ranges import Facts, Scales
from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.rounding.numbers_to_codes import LARGEST, values_of
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization import QuantizedWeight, Rounding
from tests.gpt_oss_blocks import STACKS, write_gpt_oss
from tests.models import BLOCKED, make_pair

EXPERTS = "model.layers.0.mlp.experts"

Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """By family. Widths of ``gpt-oss-64`` are multiples of 32; ``gpt-oss-mxfp4`` is that with its experts packed."""

    @cache
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        if not family.startswith("gpt-oss-"):
            return make_pair(folder, family, sizes=BLOCKED).target
        write_gpt_oss(folder, packed=family == "gpt-oss-mxfp4")
        return folder

    return make


def half_of(folder: Path, precision: str, lowering: str) -> OnTheFlyQuantizer:
    """The narrow weights of ``whole_half``."""
    narrow = whole_half(folder, precision, lowering).quantized
    assert isinstance(narrow, OnTheFlyQuantizer)
    return narrow


def whole_half(folder: Path, precision: str, lowering: str) -> Component:
    """With a range of its own for every input and expert."""
    opened = Target.open(folder).with_taps()
    needed, draw = opened.skeleton.range_shapes, np.random.default_rng(0)
    ranges = Scales(
        {name: draw.uniform(1, 9, shape).astype(np.float32) for name, shape in needed.inputs.items()},
        {name: draw.uniform(1, 9, shape).astype(np.float32) for name, shape in needed.caches.items()},
        {name: np.ones(shape, np.int64) for name, shape in needed.experts.items()},
        Facts("m", "A", opened.checkpoint.fingerprint, {"name": "max"}, "float32", "d", "s", 2, 20, {}),
    )
    return target_component(opened, RECIPES[precision].on("fp16", LOWERINGS[lowering]), LOWERINGS[lowering], ranges)


def spread(scales: np.ndarray, how: QuantizedWeight, shape: tuple[int, ...]) -> np.ndarray:
    """One scale for every number."""
    if how.block:
        return scales.reshape(*shape[:-1], -1).repeat(how.block, axis=-1)
    return np.broadcast_to(scales.reshape(*scales.shape, *[1] * (3 - scales.ndim)), shape)


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss-64", "gpt-oss-mxfp4", "gemma-4-moe"])
@pytest.mark.parametrize("lowering", ["tensorrt", "ort"])
@pytest.mark.parametrize("precision", ["fp8", "int8", "int4"])
def test_dequantized_experts_are_within_half_a_step(precision: str, lowering: str, family: str, target: Target) -> None:
    narrow = half_of(target(family), precision, lowering)
    taken, wide = narrow.storage()
    assert not any(".experts." in name for name in wide)
    opened = Target.open(target(family))
    names = [f"model.layers.0.{'mlp.' * (family != 'gemma-4-moe')}experts.{stack}" for stack in STACKS]
    for name in names:
        shape, how = narrow.selection.weights[name].shape, taken[name]
        values = np.concatenate([r.reshape(-1) for r in opened.read(name, shape)]).reshape(shape)
        codes = np.concatenate([rows.reshape(-1) for rows in narrow.codes(name, shape)]).reshape(shape)
        scales = np.concatenate([rows.reshape(-1) for rows in narrow.scales(name, shape)])
        factors = spread(scales.reshape(how.scale), how, shape)
        error = np.abs(values_of(codes, factors, how.codes) - values)
        if how.codes == "float8_e4m3fn":  # three bits behind the leading one, and steps of 2^-9 near zero
            assert np.all(error <= np.maximum(np.abs(values) / 16, factors * 2.0**-10) * 1.001)
        else:
            middle = values_of(codes, np.float32(1), how.codes)
            last = np.abs(middle) >= LARGEST[how.codes]  # may mean less than what was the largest
            assert np.all((error <= np.abs(factors) * 0.51) | last)
            assert np.linalg.norm(error) < 0.15 * np.linalg.norm(values)


@pytest.mark.parametrize(("precision", "codes", "largest"), [("fp8", "float8_e4m3fn", 448), ("int8", "int8", 127)])
def test_inputs_of_experts_are_rounded_to_the_largest_range_of_any(
    precision: str, codes: str, largest: float, target: Target
) -> None:
    """And weights have a scale for each of their rows, without which TensorRT would widen them first."""
    narrow = half_of(target("gpt-oss"), precision, "tensorrt")
    taken, _ = narrow.storage()
    assert narrow.ranges is not None
    for stack in STACKS:
        name = f"{EXPERTS}.{stack}"
        rounding = taken[name].input
        assert isinstance(rounding, Rounding)
        assert rounding.codes == codes
        assert rounding.scale == pytest.approx(float(narrow.ranges.inputs[name].max()) / largest)
        assert taken[name].scale == narrow.selection.weights[name].shape[:-1]


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss-64"])
def test_in_tensorrt_s_own_layer_each_expert_has_one_scale(family: str, target: Folders) -> None:
    narrow = half_of(target(family), "fp8", "tensorrt-sm100")
    taken, _ = narrow.storage()
    for stack in STACKS:
        how = taken[f"{EXPERTS}.{stack}"]
        assert how.scale == narrow.selection.weights[f"{EXPERTS}.{stack}"].shape[:1]
        assert how.input is not None


@pytest.mark.parametrize(
    ("precision", "lowering"),
    [("int8", "tensorrt-sm100"), ("int4", "tensorrt"), ("mxfp8", "tensorrt"), ("int8", "ort")],
)
def test_expert_inputs_stay_unquantized_elsewhere(precision: str, lowering: str, target: Folders) -> None:
    taken, _ = half_of(target("qwen3-moe"), precision, lowering).storage()
    assert {taken[f"{EXPERTS}.{stack}"].input for stack in STACKS if f"{EXPERTS}.{stack}" in taken} <= {None}
    assert any(".experts." in name for name in taken)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt-oss-64", "gpt-oss-mxfp4"])
def test_all_expert_sources_give_fully_quantized_graphs(family: str, target: Folders) -> None:
    store, traced = StageStore.default(), None
    for precision in ("fp8", "int8", "int4"):
        half = whole_half(target(family), precision, "tensorrt")
        traced = traced or graph_stages.trace(store, half, "float16", Quiet())
        done = graph_stages.attach(
            store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=64, progress=Quiet()
        )
        assert done.precision is not None
        assert done.precision["share"] == 1
        kinds = {(m["stored"], m["computed"]) for m in done.precision["matmuls"] if ".experts." in m["weight"]}
        kind = {"fp8": "float8e4m3fn"}.get(precision, precision)
        assert kinds == {(kind, "float16" if precision == "int4" else kind)}
