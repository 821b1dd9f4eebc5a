"""Required calibrations always run; calibrations that only improve accuracy run if possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline.calibration_stage import calibrated
from peagle.compiler.precision.calibration.calibrate import Settings, calibrate
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.calibration.dataset import SampleLimits, Samples, bundled
from peagle.compiler.precision.calibration.encoder import Encoder
from peagle.compiler.precision.calibration.obtain_ranges import InputTypes
from peagle.compiler.precision.calibration.range_methods import Mse, RoundedTo
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_source import of_target
from peagle.compiler.store.phase_clock import Phases
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.names import LM_HEAD, weight_name
from peagle.plugins.errors import BuildError, UsageError
from tests.models import BLOCKED, Pair, make_pair

CPU, ORT, TENSORRT = LOWERINGS["cpu"], LOWERINGS["ort"], LOWERINGS["tensorrt"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tiny"), "llama")


def run(pair: Pair, work: Path, phases: Phases, asked: CalibrationOptions | None = None) -> Scales | None:
    asked = asked or CalibrationOptions()
    target, recipe = Target.open(pair.target), RECIPES["int4"].on("fp32", CPU)
    return calibrated(asked, target, recipe, CPU, StageStore(work / "store"), phases, Quiet())


def test_four_bit_cpu_recipe_is_calibrated_by_default(pair: Pair, tmp_path: Path) -> None:
    scales = run(pair, tmp_path, phases := Phases(), CalibrationOptions(num_samples=6, max_length=64))
    target, recipe = Target.open(pair.target), RECIPES["int4"].on("fp32", CPU)
    assert scales is not None
    source = of_target(target, recipe, CPU, scales)
    assert source is not None
    assert source.notes() == []
    assert phases.done[0]["for"] == f"{len(of_target(target, recipe, CPU).unweighted())} inputs"


@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss", "gemma-4-moe"])
def test_calibration_weights_the_columns_of_experts_too(family: str, tmp_path: Path) -> None:
    experts = make_pair(tmp_path, family, sizes=BLOCKED)
    target, recipe = Target.open(experts.target), RECIPES["int4"].on("fp32", CPU)
    assert any(".experts." in name for name in of_target(target, recipe, CPU).unweighted())
    scales = run(experts, tmp_path, Phases(), CalibrationOptions(num_samples=6, max_length=64))
    source = of_target(target, recipe, CPU, scales)
    source.check()
    assert source.notes() == []


def test_checkpoint_without_tokenizer_is_rounded_uncalibrated_with_a_note(pair: Pair, tmp_path: Path) -> None:
    tokenizer = pair.target / "tokenizer.json"
    aside = tokenizer.rename(tmp_path / "tokenizer.json")
    try:
        assert run(pair, tmp_path, phases := Phases()) is None
        assert "tokenizer.json cannot be read" in phases.done[0]["without"]
        source = of_target(Target.open(pair.target), RECIPES["int4"].on("fp32", CPU), CPU)
        assert source is not None
        assert "without calibration" in source.notes()[0]
        with pytest.raises(BuildError, match=r"tokenizer\.json"):
            run(pair, tmp_path, Phases(), CalibrationOptions(num_samples=4))
    finally:
        aside.rename(tokenizer)


@pytest.mark.parametrize(("lowering", "tokens"), [("cpu", 16 * 128), ("ort", 16 * 128), ("tensorrt", 128 * 512)])
def test_an_engine_for_the_cpu_is_calibrated_with_few_tokens(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowering: str, tokens: int
) -> None:
    """The benefit of 65,536 tokens over 2,048 is not measurable, and they take 32 times as long."""
    seen: list[int] = []

    def calibrate(_: Target, samples: Samples, *__: Any, **___: Any) -> None:
        seen.append(samples.tokens)

    monkeypatch.setattr("peagle.compiler.precision.calibration.calibrate.calibrate", calibrate)
    how, target, store = LOWERINGS[lowering], Target.open(pair.target), StageStore(tmp_path / "store")
    for name, wide in (("int4", "fp32"), ("fp8", "fp32"), ("int8", "fp32")):
        recipe = RECIPES[name].on(wide, how)
        calibrated(CalibrationOptions(), target, recipe, how, store, Phases(), Quiet())
    needed = {"cpu": 2, "ort": 1, "tensorrt": 2}[lowering]  # of the recipes; the other ones need no measurement
    assert len(seen) == needed
    assert all(0.9 * tokens < each <= tokens for each in seen)
    calibrated(CalibrationOptions(num_samples=2, max_length=300), target, RECIPES["fp8"].on("fp32", how), how, store,
               Phases(), Quiet())  # fmt: skip
    assert seen[-1] == 600


@pytest.fixture(scope="module")
def chosen_for(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Callable[[RoundedTo], Scales]:
    """Return the ranges that the method mse chooses for one type, with 4 samples of 64 tokens."""
    store, target = StageStore(tmp_path_factory.mktemp("chosen")), Target.open(pair.target)
    samples = bundled(Encoder.open(target.folder), target.spec.vocab_size, SampleLimits(4, 64))
    return lambda kind: calibrate(target, samples, Settings(Mse(kind)), store)


FEW = CalibrationOptions(method="mse", num_samples=4, max_length=64)


@pytest.mark.parametrize(
    ("precision", "lm_head", "of_layers", "of_lm_head"),
    [("int8", None, "int8", None), ("fp8", None, "e4m3", None), ("fp8", "int8", "e4m3", "int8")],
)
def test_mse_minimizes_the_error_of_the_type_that_inputs_are_rounded_to(
    pair: Pair,
    tmp_path: Path,
    chosen_for: Callable[[RoundedTo], Scales],
    precision: str,
    lm_head: str | None,
    of_layers: RoundedTo,
    of_lm_head: RoundedTo | None,
) -> None:
    recipe = RECIPES[precision].on("fp32", TENSORRT)
    recipe = replace(recipe, lm_head=lm_head or recipe.lm_head)
    store = StageStore(tmp_path / "store")
    found = calibrated(FEW, Target.open(pair.target), recipe, TENSORRT, store, Phases(), Quiet())
    assert found is not None
    head = weight_name(LM_HEAD)
    layers = {name: value for name, value in found.inputs.items() if name != head}
    assert layers == {name: value for name, value in chosen_for(of_layers).inputs.items() if name in layers}
    if of_lm_head:
        assert found.inputs[head] == chosen_for(of_lm_head).inputs[head]
    assert found.caches == chosen_for("e4m3").caches, "only FP8 caches have calibrated ranges"
    assert InputTypes.recorded(found.facts.method).layers == of_layers


def test_ranges_that_mse_chose_for_another_type_are_refused(
    pair: Pair, tmp_path: Path, chosen_for: Callable[[RoundedTo], Scales]
) -> None:
    chosen_for("int8").save(tmp_path / "scales")
    saved, target = CalibrationOptions(scales=tmp_path / "scales"), Target.open(pair.target)

    def use(precision: str) -> Scales | None:
        recipe, store = RECIPES[precision].on("fp32", TENSORRT), StageStore(tmp_path / "store")
        return calibrated(saved, target, recipe, TENSORRT, store, Phases(), Quiet())

    assert use("int8") is not None
    with pytest.raises(BuildError, match="were chosen for inputs in int8, but this build") as caught:
        use("fp8")
    assert "max or percentile" in caught.value.fix


def test_calibration_free_recipe_takes_no_samples(pair: Pair, tmp_path: Path) -> None:
    target, recipe = Target.open(pair.target), RECIPES["int4"].on("fp32", ORT)
    store, asked = StageStore(tmp_path / "store"), CalibrationOptions(num_samples=4)
    assert calibrated(CalibrationOptions(), target, recipe, ORT, store, Phases(), Quiet()) is None
    with pytest.raises(UsageError, match="--calib-samples cannot be used"):
        calibrated(asked, target, recipe, ORT, store, Phases(), Quiet())
