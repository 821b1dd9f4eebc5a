"""A certain shortage is refused with its figures; a possible one causes a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.resources import check
from peagle.compiler.resources.check import (
    InsufficientResources,
    Need,
    check_needs,
    needs_of,
    possible_shortages,
    refusal_of,
)
from peagle.compiler.resources.disk import Disk
from peagle.compiler.resources.work import BuilderWork, BuildWork, CalibrationWork
from peagle.plugins.errors import EnvironmentProblem

GB = 10**9
DISK = Disk("/", 60 * GB, 100 * GB, "/", 30 * GB, 100 * GB, is_one_disk=True, shares_blocks=False)
WORK = BuildWork(CalibrationWork(2 * GB, 1, 1.0), 0.0, BuilderWork.of("tensorrt-rtx", 10 * GB, 1))
COUNTS = st.integers(0, 10**12)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 64 * GB)


@pytest.mark.usefixtures("free")
def test_fitting_build_is_neither_rejected_nor_warned() -> None:
    needs = needs_of(DISK, WORK)
    assert [need.name for need in needs] == [
        "disk for cached steps", "disk for the output", "memory to calibrate", "memory to build plans",
    ]  # fmt: skip
    assert check_needs(needs, ignored=False) == []


@pytest.mark.usefixtures("free")
def test_too_small_disk_is_rejected_with_figures_and_remedies() -> None:
    (short,) = [need for need in needs_of(replace(DISK, cache_free_bytes=80 * GB, out_free_bytes=80 * GB), WORK)
                if need.is_short]  # fmt: skip
    with pytest.raises(InsufficientResources) as caught:
        check_needs([short], ignored=False)
    assert isinstance(caught.value, EnvironmentProblem)
    assert caught.value.exit_code == 3
    assert caught.value.what == "this machine has too little disk space"
    assert caught.value.why == (
        "disk for the output: 30.0 GB (from the weight shapes) after 60.0 GB for earlier steps, 80.0 GB free (/)"
    )
    assert caught.value.fix == "set --out to a folder on a larger disk; or add --ignore-limits to start anyway"


def test_memory_limits_reject_or_warn_by_measured_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(free: int) -> tuple[Need, ...]:
        monkeypatch.setattr(check, "free_memory", lambda: free)
        return needs_of(DISK, WORK)

    refusal = refusal_of(found(5 * GB))
    assert refusal
    said = (
        "memory to build plans: 9.5 GB (0.95 times the weights, with which a build ran out of memory), "
        "5.0 GB free (this machine)"
    )
    assert refusal.why == said
    assert "build --from" in refusal.fix
    both = refusal_of(found(GB))
    assert both
    assert "memory to calibrate: 2.0 GB (a layer in FP32), 1.0 GB free (this machine)" in both.why
    assert "--scales" in both.fix
    assert refusal_of(found(20 * GB)) is None
    (text,) = possible_shortages(found(20 * GB))
    assert text.startswith("memory to build plans: 30.7 GB (3.07 times the weights, as measured with TensorRT-RTX), ")
    assert text.endswith("may not be enough")


def test_ignored_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 5 * GB)
    told = check_needs(needs_of(DISK, WORK), ignored=True)
    assert told[0].startswith("started because of --ignore-limits: this machine has too little memory; ")


def test_unmeasured_builds_are_never_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 0)
    needs = needs_of(DISK, replace(WORK, calibration=None, builder=BuilderWork.of("tensorrt", 10 * GB, 1)))
    assert refusal_of(needs) is None
    assert len(possible_shortages(needs)) == 1


def test_gpu_layer_uses_no_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 0)
    assert check.calibration_needs(CalibrationWork(2 * GB, 1, 1.0, "cuda:1")) == ()
    assert refusal_of(check.calibration_needs(CalibrationWork(2 * GB, 1, 1.0)))


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_only_certain_shortage_is_rejected(about: int, least: int, before: int, free: int) -> None:
    need = Need("disk for x", max(about, least), least, "x", "/", free, before)
    assert need.is_short == (least > 0 and before + least > free)
    assert not (need.is_short and need.is_tight)
    assert (refusal_of([need]) is not None) == need.is_short
    assert (need.is_short or need.is_tight) == (before + need.bytes > free and need.bytes > 0) or before > free
