"""The CPU measurement uses an engine's kernels in every format that they support."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.hardware import cpu_probe
from peagle.compiler.hardware.cpu_probe import ProbeShape, measure_cpu, memory_speed, packed_name


@pytest.mark.parametrize("kind", ["fp32", "int8", "int4", "q4_k", "mxfp4"])
def test_a_probe_of_every_kind_gives_rates(kind: str, cpu_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_probe, "_SECONDS", 0.0)
    shape = ProbeShape(kind, hidden=72, queries=64, keys=32, inner=100, bytes=200_000, columns=5)
    found = measure_cpu(shape, cpu_library, 2)
    assert found.threads == 2
    assert 1e6 < found.weight_rate < 1e13
    assert found.operation_rate > 0
    assert found.read_rate > 1e6


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_memory_is_read_by_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_probe, "_SECONDS", 0.0)
    assert 1e7 < memory_speed(threads, 1 << 20) < 1e13


def test_formats_of_layers_as_the_kernels_read_them() -> None:
    assert (packed_name("fp32"), packed_name("int8"), packed_name("int4")) == ("", "int8", "q4_1")
    assert packed_name("q6_k") == "q6_k"
