"""Memory of the machine, or of its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines.machine import max_threads, memory_bytes


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_container_limit_applies(tmp_path: Path, name: str) -> None:
    whole = memory_bytes(tmp_path)
    assert whole > 2**20
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for content, expected in (("max\n", whole), ("4096\n", 4096), (f"{2**62}\n", whole)):
        (tmp_path / name).write_text(content)
        assert memory_bytes(tmp_path) == expected


def test_large_thread_counts_are_accepted() -> None:
    assert max_threads() >= 64
