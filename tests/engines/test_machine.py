"""Memory of the machine, or of its containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.engines.machine import max_threads, memory_bytes


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_container_limit_applies(tmp_path: Path, name: str) -> None:
    whole = memory_bytes(tmp_path)
    assert whole > 2**20
    limit = tmp_path / "sys/fs/cgroup" / name
    limit.parent.mkdir(parents=True)
    for content, expected in (("max\n", whole), ("4096\n", 4096), (f"{2**62}\n", whole)):
        limit.write_text(content)
        assert memory_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("line", "top", "name"),
    [("0::/slurm/job/step", "", "memory.max"), ("4:memory:/slurm/job/step", "memory", "memory.limit_in_bytes")],
)
def test_lowest_limit_of_nested_groups_applies(tmp_path: Path, line: str, top: str, name: str) -> None:
    own = tmp_path / "proc/self/cgroup"
    own.parent.mkdir(parents=True)
    own.write_text(f"{line}\n")
    for group, limit in (("", 9000), ("slurm", 8000), ("slurm/job", 5000), ("slurm/job/step", 7000)):
        folder = tmp_path / "sys/fs/cgroup" / top / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{limit}\n")
    assert memory_bytes(tmp_path) == 5000


def test_large_thread_counts_are_accepted() -> None:
    assert max_threads() >= 64
