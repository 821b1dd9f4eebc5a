"""The recipe of a request is decided in one place: for builds and exports, before and after reading the checkpoint."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.precision.allowed_recipes import available, wide_names
from peagle.compiler.precision.decide_recipe import decide, precision_of, table_of, wide_of
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.graphs.lowering import CPU, LOWERINGS, ORT, TENSORRT, Lowering
from peagle.plugins.errors import UsageError
from tests import gguf_files
from tests.fp8_pairs import fp8_target
from tests.heads import FORMS
from tests.models import Pair, make_pair

_LOWERINGS = st.sampled_from(list(LOWERINGS.values()))
_KINDS = st.sampled_from([None, "fp8", "int8", "int4", *wide_names()])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"), "qwen3")


@given(_LOWERINGS, st.none() | st.sampled_from(sorted(RECIPES)))
def test_explicit_recipe_wins_over_the_default(lowering: Lowering, name: str | None) -> None:
    assert precision_of(PrecisionOptions(name), lowering) == (name or available(lowering)[0])
    if name is None or name in available(lowering):
        recipe = decide(PrecisionOptions(name), lowering)
        assert (recipe.name, recipe.exclude) == (name or available(lowering)[0], ())
    else:
        with pytest.raises(UsageError, match="is not available with"):
            decide(PrecisionOptions(name), lowering)


@given(_LOWERINGS, st.sampled_from(sorted(RECIPES)), _KINDS, _KINDS, _KINDS)
def test_possible_recipe_is_not_rejected_before_reading_the_checkpoint(
    lowering: Lowering, name: str, kv_cache: str | None, lm_head: str | None, drafter: str | None
) -> None:
    """Whatever wide type turns out to be the checkpoint's: a recipe that is legal then is not refused early."""
    from peagle.compiler.precision.allowed_recipes import require_legal

    asked = PrecisionOptions(name, kv_cache, lm_head, drafter)
    for wide in lowering.wide_types if lowering.is_tensorrt else ["fp32"]:
        try:
            require_legal(table_of(asked, lowering, wide), lowering)
        except UsageError:
            continue
        decide(asked, lowering)


def test_only_tensorrt_base_dtype_is_unknown_before_reading() -> None:
    assert {name: wide_of(None, lowering) for name, lowering in LOWERINGS.items()} == {
        "ort": "fp32", "cpu": "fp32", "std": "fp32", "tensorrt": None, "tensorrt-sm100": None,
    }  # fmt: skip


@pytest.mark.parametrize(("stored", "chosen"), [("BF16", "bf16"), ("F16", "fp16"), ("F32", "fp16")])
def test_the_precision_of_a_plan_is_the_checkpoint_s_own(tiny: Pair, stored: str, chosen: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny.target, tmp_path / "target"))
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[stored]
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    recipe = decide(PrecisionOptions(), TENSORRT, Target.open(folder), ("sm_120",), keeps_own=True)
    assert (recipe.name, recipe.wide) == (chosen, chosen)
    assert decide(PrecisionOptions(), TENSORRT, Target.open(folder)).name == "bf16", "of an export"
    assert decide(PrecisionOptions(), ORT, Target.open(folder), keeps_own=True).name == "fp32"


@pytest.mark.parametrize(("gpus", "chosen"), [(("sm_89", "sm_120"), "fp8"), (("sm_80", "sm_120"), "fp16")])
def test_fp8_checkpoint_stays_fp8_when_all_gpus_support_it(
    tiny: Pair, gpus: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    checkpoint = Target.open(fp8_target(tiny.target, tmp_path / "target"))
    assert decide(PrecisionOptions(), TENSORRT, checkpoint, gpus, keeps_own=True).name == chosen


def test_unquantized_parts_of_an_fp8_checkpoint_are_decided_after_reading(tiny: Pair, tmp_path: Path) -> None:
    asked, quantized = (
        PrecisionOptions(exclude=("layers.0.*",)),
        Target.open(fp8_target(tiny.target, tmp_path / "fp8")),
    )
    decide(asked, TENSORRT, keeps_own=True)
    assert decide(asked, TENSORRT, quantized, keeps_own=True).exclude == ("layers.0.*",)
    with pytest.raises(UsageError, match="has no effect"):
        decide(asked, TENSORRT, Target.open(tiny.target), keeps_own=True)


def test_permission_without_effect_is_refused(tiny: Pair, tmp_path: Path) -> None:
    asked, plain = PrecisionOptions(allow_wide=("experts",)), Target.open(tiny.target)
    for name, target, lowering in (("fp32", None, ORT), ("bf16", plain, TENSORRT), (None, plain, TENSORRT)):
        with pytest.raises(UsageError, match="--allow-wide experts has no effect"):
            decide(replace(asked, name=name), lowering, target, keeps_own=True)
    quantized = Target.open(fp8_target(tiny.target, tmp_path / "fp8"))
    decide(asked, TENSORRT, keeps_own=True)
    assert decide(asked, TENSORRT, quantized, keeps_own=True).allow_wide == ("experts",)


@pytest.mark.parametrize(
    ("name", "lowering", "asked", "drafter"),
    [
        ("int8", "ort", None, "int8"), ("int4", "ort", None, "int8"), ("int4", "ort", "fp32", "fp32"),
        ("int4", "ort", "int4", "int4"), ("fp32", "ort", None, "fp32"), ("int8", "std", None, "fp32"),
        ("int8", "tensorrt", None, "bf16"), ("stored", "cpu", None, "int8"), ("stored", "cpu", "fp32", "fp32"),
    ],
)  # fmt: skip
def test_drafter_uses_integers_when_target_kernels_support_them(
    tiny: Pair, name: str, lowering: str, asked: str | None, drafter: str
) -> None:
    _, head = tiny.specs()
    options = PrecisionOptions(name, drafter=asked)
    assert decide(options, LOWERINGS[lowering], head=head).drafter == drafter
    alone = decide(options, LOWERINGS[lowering])
    assert alone.drafter == (asked or alone.wide), "there is none"


def test_drafter_with_indivisible_widths_stays_unquantized() -> None:
    odd = FORMS["qkv biases, odd widths, linear rope"].make().spec
    assert decide(PrecisionOptions("int8"), ORT, head=odd).drafter == "fp32"


@pytest.mark.parametrize(("kinds", "chosen"), [(("Q8_0", "F16"), "stored"), (("F16",), "fp32")])
def test_a_file_with_blocks_is_built_as_stored_where_kernels_read_them(
    kinds: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    target = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=kinds).file)
    assert decide(PrecisionOptions(), CPU, target, keeps_own=True).name == chosen
    assert decide(PrecisionOptions(), CPU, target).name == chosen, "of an export"
    assert decide(PrecisionOptions(), ORT, target, keeps_own=True).name == "fp32"
    assert decide(PrecisionOptions(), TENSORRT, target, ("sm_120",), keeps_own=True).name == "fp16"
    assert decide(PrecisionOptions("fp32"), CPU, target).name == "fp32"
    assert decide(PrecisionOptions(exclude=("layers.0.*",)), CPU).exclude == (), "until the file is read"


@pytest.mark.parametrize("asked", [PrecisionOptions("stored"), PrecisionOptions("fp32", lm_head="stored")])
def test_builds_as_stored_use_blocks(asked: PrecisionOptions, tiny: Pair, tmp_path: Path) -> None:
    wide = Target.open(gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("F16",)).file)
    for target, said in ((wide, "GGUF: F16"), (Target.open(tiny.target), "is stored as plain")):
        with pytest.raises(UsageError, match="stored needs a GGUF file with quantized weights") as caught:
            decide(asked, CPU, target)
        assert said in caught.value.why
