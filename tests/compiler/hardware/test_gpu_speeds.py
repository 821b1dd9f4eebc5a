"""GPU speeds: one entry for each known GPU, each with a source."""

from __future__ import annotations

import pytest

from peagle.compiler.hardware.gpu_speeds import BANDWIDTH_SHARE, GPU_SPEEDS, KERNEL_SECONDS, gpu_speed
from peagle.compiler.hardware.gpus import GPUS, why_unsupported
from peagle.plugins.errors import UsageError


def test_every_known_gpu_has_a_speed_and_a_source() -> None:
    assert GPU_SPEEDS.keys() == GPUS.keys()
    for name, speed in GPU_SPEEDS.items():
        assert "B/s (" in speed.source
        assert speed.bandwidth >= 5e11
        assert bool(speed.fp8_rate) == (not why_unsupported(GPUS[name].sm, "fp8")), name
        assert 0 < speed.fp32_rate < speed.bf16_rate
        assert not speed.fp8_rate or 1.9 < speed.fp8_rate / speed.bf16_rate < 2.1


def test_attained_rates_are_bounded_and_name_their_assumptions() -> None:
    assert 0 < KERNEL_SECONDS.best < KERNEL_SECONDS.worst
    assert 0 < BANDWIDTH_SHARE.worst < BANDWIDTH_SHARE.best < 1
    assert "assumed" in KERNEL_SECONDS.source
    assert "assumed" in BANDWIDTH_SHARE.source


def test_a_gpu_is_found_in_any_spelling() -> None:
    assert gpu_speed("RTX 5090") is GPU_SPEEDS["rtx-5090"]
    with pytest.raises(UsageError, match="unknown GPU"):
        gpu_speed("b2000")
