"""What a recipe needs measured is measured; what only makes it lose less, where that can be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline.calibration_stage import calibrated
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.calibration.dataset import Samples
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.weight_source import of_target
from peagle.compiler.store.phase_clock import Phases
from peagle.compiler.store.stages import StageStore
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError, UsageError
from tests.models import Pair, make_pair

CPU, ORT = LOWERINGS["cpu"], LOWERINGS["ort"]


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
    """What 65,536 tokens bring there over 2,048 cannot be measured, and takes 32 times as long."""
    seen: list[int] = []

    def calibrate(_: Target, samples: Samples, *__: Any, **___: Any) -> None:
        seen.append(samples.tokens)

    monkeypatch.setattr("peagle.compiler.precision.calibration.calibrate.calibrate", calibrate)
    how, target, store = LOWERINGS[lowering], Target.open(pair.target), StageStore(tmp_path / "store")
    for name, wide in (("int4", "fp32"), ("fp8", "fp32"), ("int8", "fp32")):
        recipe = RECIPES[name].on(wide, how)
        calibrated(CalibrationOptions(), target, recipe, how, store, Phases(), Quiet())
    needed = {"cpu": 2, "ort": 1, "tensorrt": 2}[lowering]  # of the recipes; the others measure nothing
    assert len(seen) == needed
    assert all(0.9 * tokens < each <= tokens for each in seen)
    calibrated(CalibrationOptions(num_samples=2, max_length=300), target, RECIPES["fp8"].on("fp32", how), how, store,
               Phases(), Quiet())  # fmt: skip
    assert seen[-1] == 600


def test_calibration_free_recipe_takes_no_samples(pair: Pair, tmp_path: Path) -> None:
    target, recipe = Target.open(pair.target), RECIPES["int4"].on("fp32", ORT)
    store, asked = StageStore(tmp_path / "store"), CalibrationOptions(num_samples=4)
    assert calibrated(CalibrationOptions(), target, recipe, ORT, store, Phases(), Quiet()) is None
    with pytest.raises(UsageError, match="--calib-samples cannot be used"):
        calibrated(asked, target, recipe, ORT, store, Phases(), Quiet())
