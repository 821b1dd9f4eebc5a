"""A missing device is refused with what torch found; layers computed on a GPU equal those of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from peagle.compiler.precision.calibration.calibrate import Settings
from peagle.compiler.precision.calibration.devices import require_device
from peagle.compiler.precision.calibration.range_methods import Percentile
from peagle.plugins.errors import EnvironmentProblem
from tests.compiler.precision.calibration.conftest import Calibrate, random_samples
from tests.models import Pair

Tiny = Callable[[str], Pair]


def test_the_cpu_is_always_there() -> None:
    require_device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_without_support_in_torch_is_rejected(name: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"--calib-device {name} cannot be used") as caught:
        require_device(name)
    assert torch.__version__ in caught.value.why
    assert "on the CPU" in caught.value.fix


@pytest.mark.parametrize(("count", "there"), [(1, "use cuda:0, or"), (4, "use cuda:0 to cuda:3, or")])
def test_an_index_without_a_gpu_is_rejected_with_those_that_exist(
    count: int, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("cuda", "cuda:0", f"cuda:{count - 1}"):
        require_device(name)
    with pytest.raises(EnvironmentProblem, match=f"--calib-device cuda:{count} does not exist") as caught:
        require_device(f"cuda:{count}")
    assert caught.value.fix.startswith(there)


@pytest.mark.gpu
def test_missing_gpu_is_rejected() -> None:
    with pytest.raises(EnvironmentProblem, match="--calib-device cuda:999 does not exist"):
        require_device("cuda:999")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3-moe", "gpt-oss", "gemma-4"])
def test_gpu_ranges_match_cpu_ranges(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(23, 40, 1, 9)
    for method in (Settings().method, Percentile(99.0)):
        there = calibrated(tiny(family), samples, Settings(method, device="cuda"))
        here = calibrated(tiny(family), samples, Settings(method))
        assert there.facts.device == "cuda"
        for group in ("inputs", "caches", "squares", "peaks"):
            ours, theirs = getattr(here, group), getattr(there, group)
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                np.testing.assert_allclose(theirs[name], value, rtol=5e-3, atol=1e-6, err_msg=name)
        for module, counts in here.expert_tokens.items():
            assert np.abs(there.expert_tokens[module] - counts).sum() <= 2, module
