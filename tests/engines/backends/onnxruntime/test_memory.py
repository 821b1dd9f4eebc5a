"""Caches that do not fit in memory are refused with the required and available sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines import Engine
from peagle.engines.backends.onnxruntime import memory
from peagle.plugins.errors import EnvironmentProblem


def test_batch_that_exceeds_memory_is_rejected_with_a_fitting_size(tiny_folder: Path) -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"caches of 1000000000 requests of up to \d+ tokens need \S+ GiB"
    ) as caught:
        Engine.load(tiny_folder, max_batch_size=10**9, check="sizes")
    assert "this machine has" in caught.value.why
    assert "would fit" in caught.value.why
    assert "max_batch_size" in caught.value.fix


def test_one_request_that_cannot_fit_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="not even the caches of one request fit"):
        memory.check_room(2**60, 1, 10**9)


def test_allocation_failure_is_reported(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("Unable to allocate 3 GiB")

    monkeypatch.setattr(memory, "_allocate", refuse)
    with pytest.raises(EnvironmentProblem, match="Unable to allocate 3 GiB"):
        Engine.load(tiny_folder, check="sizes")
