"""GPUs are found by name, and what fits into one is arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.hardware.gpus import GPUS, find_gpu, fit
from peagle.plugins.errors import UsageError

GB = 10**9


def test_a_gpu_is_found_however_it_is_spelt() -> None:
    for name in ("b200", "B200", "RTX 4090", "rtx_pro_6000"):
        assert find_gpu(name).name == name.lower().replace(" ", "-").replace("_", "-")


def test_an_unknown_gpu_is_refused_with_those_that_come_near() -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu("rtx-509")
    assert "did you mean rtx-5090" in caught.value.why
    with pytest.raises(UsageError) as caught:
        find_gpu("abacus")
    assert "did you mean" not in caught.value.why
    assert all(name in caught.value.why for name in GPUS)


def test_fp8_begins_with_sm_89() -> None:
    assert {gpu.name for gpu in GPUS.values() if not gpu.fp8} == {gpu.name for gpu in GPUS.values() if gpu.sm < 89}


def test_a_b200_by_hand() -> None:
    verdict = fit(GPUS["b200"], ["fp8"], 31 * GB, 2 * GB)
    assert verdict.reserve_bytes == 18 * GB
    assert verdict.most_slots == (180 - 18 - 31) // 2
    assert verdict.fits


def test_what_does_not_fit_says_by_how_much() -> None:
    verdict = fit(GPUS["l40s"], ["bf16"], 61 * GB, 2 * GB)
    assert not verdict.fits
    assert verdict.most_slots == 0
    assert verdict.short_bytes == (61 + 2) * GB - 43_200_000_000


def test_a_precision_that_the_gpu_has_no_type_for_is_refused_in_the_answer() -> None:
    verdict = fit(GPUS["a100-80gb"], ["bf16", "fp8"], GB, GB)
    assert not verdict.fits
    assert "no FP8 arithmetic" in verdict.refusal
    assert fit(GPUS["a100-80gb"], ["bf16"], GB, GB).fits


@given(st.sampled_from(sorted(GPUS)), st.integers(0, 300 * GB), st.integers(1, 50 * GB), st.integers(1, 500))
def test_as_many_slots_fit_as_the_verdict_says(name: str, weights: int, slot: int, slots: int) -> None:
    verdict = fit(GPUS[name], ["bf16"], weights, slot, slots)
    assert verdict.fits == (slots <= verdict.most_slots)
    if not verdict.fits:
        lean = fit(GPUS[name], ["bf16"], weights + slots * slot - verdict.short_bytes, 1, 1)
        assert lean.short_bytes == 1
