"""An engine's recipe, read back from its manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify.engine_origin import Origins, recipe_of
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.folder.test_manifest import manifest_of

DEMO = Path(__file__).parents[3] / "compiler" / "bundled" / "demo" / "target"


@pytest.mark.parametrize("exclude", [(), ("layers.0.*", "*.down_proj"), ("layers.[0, 1].*",)])
def test_recipe_is_read_back_with_exclusions(exclude: tuple[str, ...]) -> None:
    recipe = PrecisionOptions(lm_head="int8", exclude=exclude).of(RECIPES["int4"].on("fp32", LOWERINGS["ort"]))
    assert recipe_of(manifest_of({}, precision=recipe.record()), Checkpoint.open(DEMO)) == recipe


def test_manifests_with_commas_between_patterns_are_read_too() -> None:
    recipe = PrecisionOptions(exclude=("layers.0.*", "*.down_proj")).of(RECIPES["int4"].on("fp32", LOWERINGS["ort"]))
    older = recipe.record() | {"exclude": "layers.0.*, *.down_proj", "calibration": "max over 3 tokens"}
    assert recipe_of(manifest_of({}, precision=older), Checkpoint.open(DEMO)) == recipe


def test_table_with_equal_name_and_other_content_is_rejected() -> None:
    other = RECIPES["int4"].on("fp32", LOWERINGS["ort"]).record() | {"router": "int4"}
    with pytest.raises(EnvironmentProblem, match="cannot reproduce the engine's recipe 'int4'"):
        recipe_of(manifest_of({}, precision=other), Checkpoint.open(DEMO))


def test_a_missing_checkpoint_may_be_restored(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="the checkpoint cannot be opened") as caught:
        Origins.open(manifest_of({}), tmp_path)
    assert caught.value.fix.startswith("restore /models/target, or rebuild the engine")
