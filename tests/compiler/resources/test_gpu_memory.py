"""The number of slots that fit in a GPU's memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.hardware.gpus import GPUS
from peagle.compiler.resources.gpu_memory import fit

GB = 10**9


def test_a_b200_by_hand() -> None:
    verdict = fit(GPUS["b200"], ["fp8"], 31 * GB, 2 * GB)
    assert verdict.reserve_bytes == 18 * GB
    assert verdict.most_slots == (180 - 18 - 31) // 2
    assert verdict.fits


def test_excess_is_reported_in_bytes() -> None:
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
def test_slot_count_matches_the_verdict(name: str, weights: int, slot: int, slots: int) -> None:
    verdict = fit(GPUS[name], ["bf16"], weights, slot, slots)
    assert verdict.fits == (slots <= verdict.most_slots)
    if not verdict.fits:
        lean = fit(GPUS[name], ["bf16"], weights + slots * slot - verdict.short_bytes, 1, 1)
        assert lean.short_bytes == 1
