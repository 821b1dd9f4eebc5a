"""GPUs are found by name, with the product that builds for each."""

from __future__ import annotations

import pytest

from peagle.compiler.hardware.gpus import (
    GPUS,
    find_gpu,
    require_targets,
    sm_name,
    sm_names,
    sm_number,
    supports,
    why_unsupported,
)
from peagle.plugins.errors import EnvironmentProblem, UsageError
from peagle.plugins.tensorrt.products import PRODUCTS


def test_a_gpu_is_found_however_it_is_spelt() -> None:
    for name in ("b200", "B200", "RTX 4090", "rtx_pro_6000"):
        assert find_gpu(name).name == name.lower().replace(" ", "-").replace("_", "-")


def test_unknown_gpu_is_rejected_with_suggestions() -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu("rtx-509")
    assert "did you mean rtx-5090 or " in caught.value.fix
    assert "compare the memory figures" in caught.value.fix
    with pytest.raises(UsageError) as caught:
        find_gpu("abacus")
    assert "did you mean" not in caught.value.fix
    assert all(name in caught.value.why for name in GPUS)


def test_fp8_requires_sm_89() -> None:
    assert {gpu.name for gpu in GPUS.values() if why_unsupported(gpu.sm, "fp8")} == {"a100-80gb"}
    assert why_unsupported(80, "fp8") == "sm_80 has no FP8 arithmetic, which requires sm_89 or newer"
    assert supports("sm_80", "bf16"), "what is not quantized runs anywhere"


def test_mxfp8_is_for_the_gpus_that_are_named() -> None:
    assert [sm for sm in (80, 90, 100, 103, 110, 120) if not why_unsupported(sm, "mxfp8")] == [100, 103, 110]
    assert "only on sm_100, sm_103, sm_110" in why_unsupported(120, "mxfp8")


@pytest.mark.parametrize("name", ["sm_120", "SM120", "sm-120", "sm 120", "120", "rtx-5090", "RTX 5090", "rtx_5090"])
def test_one_architecture_has_many_names(name: str) -> None:
    assert sm_number(name) == 120


def test_every_gpu_that_plans_know_has_an_architecture() -> None:
    assert {name: sm_number(name) for name in GPUS} == {name: gpu.sm for name, gpu in GPUS.items()}
    assert sm_number("b200") == 100


def test_gpu_names_are_unique_and_sorted() -> None:
    assert sm_names(["sm_120", "rtx-4090", "sm_89", "rtx-5090"]) == (sm_name(89), sm_name(120))


def test_an_unknown_gpu_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        sm_number("b20")
    assert caught.value.fix.startswith("did you mean b200 or gb200 or h200? If not, use")
    assert "architecture" in caught.value.fix


@pytest.mark.parametrize(
    ("product", "gpus", "present"),
    [("tensorrt-rtx", ["sm_89", "sm_120"], []), ("tensorrt", ["sm_100"], [100]), ("tensorrt", ["sm_90"], [90, 90])],
)
def test_every_buildable_gpu_is_accepted(product: str, gpus: list[str], present: list[int]) -> None:
    require_targets(PRODUCTS[product], gpus, present)


@pytest.mark.parametrize(
    ("error", "product", "gpus", "present", "words"),
    [
        (UsageError, "tensorrt-rtx", ["sm_100"], [], ("sm_100", "--backend tensorrt", "b200", "--gpu sm_120")),
        (UsageError, "tensorrt-rtx", ["sm_120", "sm_90"], [], ("sm_90", "h200")),
        (UsageError, "tensorrt-rtx", [], [], ("--gpu sm_120",)),
        (UsageError, "tensorrt", ["sm_90", "sm_100"], [100], ("one GPU architecture",)),
        (EnvironmentProblem, "tensorrt", ["sm_100"], [90], ("this machine has sm_90", "b200", "the same command")),
        (EnvironmentProblem, "tensorrt", ["sm_120"], [], ("none", "--backend tensorrt-rtx --gpu sm_120")),
    ],
)
def test_a_refusal_names_the_nearest_that_works(
    error: type[Exception], product: str, gpus: list[str], present: list[int], words: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        require_targets(PRODUCTS[product], gpus, present)
    assert all(word in str(caught.value) for word in words), str(caught.value)
