"""Phases, passes and layers with their times, and ranges for Nsight Systems."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from peagle.engines.backends import profiling
from peagle.engines.backends.profiling import IN_PREFILL, IN_ROUND, Profiler, phase, ranged

FIRST = [("a", "MatMul", 3.0), ("b", "MatMul", 1.0), ("c", "Add", 0.5)]
SECOND = [("a", "MatMul", 1.0), ("b", "MatMul", 2.0), ("c", "Add", 0.5)]


def test_layers_of_a_phase_are_summed_by_name_and_kind() -> None:
    profiler = Profiler()
    profiler.add(IN_ROUND, "target", 0.005, FIRST)
    profiler.add(IN_ROUND, "target", 0.004, SECOND)
    profiler.add(IN_PREFILL, "target", 0.1, [("a", "MatMul", 90.0)])
    rounds, prefill = profiler.profile().passes
    assert rounds.kinds() == [("MatMul", 2, 7.0), ("Add", 1, 1.0)]
    assert prefill.kinds() == [("MatMul", 1, 90.0)]
    content = rounds.as_json()
    assert (content["phase"], content["half"], content["count"], content["milliseconds"]) == (
        "round", "target", 2, pytest.approx(9.0),
    )  # fmt: skip
    # trt-engine-explorer reads records of just these five.
    assert content["layers"][0] == {
        "name": "a", "timeMs": 4.0, "averageMs": 2.0, "medianMs": 2.0, "percentage": 50.0,
    }  # fmt: skip


def test_only_passes_of_a_phase_count() -> None:
    profiler = Profiler()
    profiler.add(profiler.current, "target", 1.0, FIRST)  # a check during loading
    with suppress(KeyError), phase(profiler, IN_ROUND):
        profiler.add(profiler.current, "drafter", 0.001, SECOND)
        raise KeyError
    assert profiler.current is None
    profile = profiler.profile()
    assert [(each.phase, each.component) for each in profile.passes] == [("round", "drafter")]
    assert [*profile.phases] == ["round"]
    assert profile.as_json()["phases"]["round"]["count"] == 1


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the range names that the package ``nvtx`` would get; only Nsight Systems can read the real ranges."""
    begun: list[str] = []

    @contextmanager
    def annotate(name: str, domain: str) -> Iterator[None]:
        begun.append(f"{domain}: {name}")
        yield
        begun.append("end")

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    profiling._nvtx.cache_clear()
    yield begun
    profiling._nvtx.cache_clear()


def test_phases_and_ranged_functions_are_nvtx_ranges(ranges: list[str]) -> None:
    @ranged("draft")
    def double(number: int, *, more: int = 0) -> int:
        return 2 * number + more

    with phase(None, IN_ROUND):
        assert double(3, more=1) == 7
    assert ranges == ["peagle: round", "peagle: draft", "end", "end"]


def test_nothing_is_needed_for_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)  # as if it were not installed
    profiling._nvtx.cache_clear()
    with phase(None, IN_ROUND):
        pass
    profiling._nvtx.cache_clear()
