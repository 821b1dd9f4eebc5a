"""Measurements are repeated if other kernels would run, or on other CPUs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.hardware import cpu_probe
from peagle.compiler.hardware.cpu_in_use import computed_on, measured_on
from peagle.compiler.hardware.cpu_probe import CpuSpeed, ProbeShape, kept_cpu_speed
from peagle.compiler.pipeline.batch_costs import cached_batches
from peagle.compiler.pipeline.check_numbers import cached_check
from peagle.compiler.pipeline.choose_k import KChoice, Rate, cached_choice
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.store.stages import StageStore
from peagle.plugins.cpu import INSTRUCTIONS, SWITCH
from tests.engines.folder.test_manifest import manifest_of


@pytest.mark.parametrize(("name", "value"), [(SWITCH, "off"), (INSTRUCTIONS, "portable")])
def test_selected_kernels_count(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv(name, raising=False)
    before = computed_on(), measured_on()
    monkeypatch.setenv(name, value)
    assert computed_on() != before[0]
    assert measured_on() != before[1]


def test_usable_cpus_count_only_for_times(monkeypatch: pytest.MonkeyPatch) -> None:
    before = computed_on(), measured_on()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000)), raising=False)
    assert computed_on() == before[0]
    assert measured_on() != before[1]


def test_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = computed_on()
    monkeypatch.setattr(platform, "node", lambda: "another machine")
    assert computed_on() != before


def test_speed_of_the_cpu_is_measured_again_with_other_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def measured(*_: object) -> CpuSpeed:
        calls.append(1)
        return CpuSpeed(1.0, 1.0, 1.0, 1)

    monkeypatch.setattr(cpu_probe, "measure_cpu", measured)
    monkeypatch.delenv(INSTRUCTIONS, raising=False)
    shape = ProbeShape("fp32", 1, 1, 1, 1, 1, 2)
    for _ in range(2):
        kept_cpu_speed(StageStore(tmp_path / "cache"), shape, tmp_path, "digest", 1)
    assert len(calls) == 1
    monkeypatch.setenv(INSTRUCTIONS, "portable")
    kept_cpu_speed(StageStore(tmp_path / "cache"), shape, tmp_path, "digest", 1)
    assert len(calls) == 2


@pytest.mark.parametrize("measure", ["choose-k", "batch-costs", "check-numbers"])
def test_measurements_of_an_engine_are_repeated_with_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: str
) -> None:
    keys: list[Any] = []

    class Asked(Exception):
        pass

    def ask(_: StageStore, name: str, key: Any, *__: Any) -> None:
        keys.append((name, key))
        raise Asked

    monkeypatch.setattr(StageStore, "run", ask)
    run, manifest = PipelineRun.begin(StageStore(tmp_path), None), manifest_of({})
    choice = KChoice(1, (Rate(0, 1.0, 1.0, 1.0, 1.0, 1.0, 1),) * 2)
    calls = {
        "choose-k": lambda: cached_choice(run, manifest, tmp_path, {}, engine=tmp_path),
        "batch-costs": lambda: cached_batches(run, manifest, tmp_path, {}, choice),
        "check-numbers": lambda: cached_check(run, manifest, tmp_path, {}, name=tmp_path),
    }
    for value in ("on", "on", "off"):
        monkeypatch.setenv(SWITCH, value)
        with pytest.raises(Asked):
            calls[measure]()
    assert keys[0] == keys[1] != keys[2]
    assert {name for name, _ in keys} == {measure}
