"""Free memory: of the machine, and of every control group around this process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.free_memory import free_memory, return_freed_memory


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def meminfo(available: int, swap: int = 0) -> dict[str, str]:
    text = f"MemTotal: 99999 kB\nMemAvailable:  {available} kB\nSwapFree: {swap} kB\n"
    return {"proc/meminfo": text}


def group(folder: str, limit: object, used: int, cached: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/{folder}"
    stat = f"anon 1\ninactive_file {cached}\nactive_file 0\n"
    return {f"{at}/memory.max": f"{limit}\n", f"{at}/memory.current": f"{used}\n", f"{at}/memory.stat": stat}


def test_no_limit_when_none_is_reported(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == math.inf


def test_machine_limit_is_memory_plus_swap(tmp_path: Path) -> None:
    put(tmp_path, meminfo(8))
    assert free_memory(tmp_path) == 8 * 1024
    put(tmp_path, meminfo(8, 2))
    assert free_memory(tmp_path) == 10 * 1024


def test_container_limit_excludes_reclaimable_cache(tmp_path: Path) -> None:
    put(tmp_path, meminfo(8) | {"proc/self/cgroup": "0::/\n"})
    for limit, free in (("max", 8 * 1024), (2000, 1300), (500, 0)):
        put(tmp_path, group("", limit, 1000, cached=300))
        assert free_memory(tmp_path) == free


def test_nested_cgroups_all_apply(tmp_path: Path) -> None:
    put(tmp_path, meminfo(8) | {"proc/self/cgroup": "0::/slurm/job_7/step_0\n"})
    put(tmp_path, group("slurm/job_7", 5000, 1000) | group("slurm/job_7/step_0", "max", 900) | group("", "max", 0))
    assert free_memory(tmp_path) == 4000


def test_swap_counts_up_to_the_cgroup_limit(tmp_path: Path) -> None:
    put(tmp_path, meminfo(80, 80) | {"proc/self/cgroup": "0::/\n"} | group("", 2000, 1000))
    assert free_memory(tmp_path) == 1000 + 80 * 1024
    put(tmp_path, {"sys/fs/cgroup/memory.swap.max": "700\n", "sys/fs/cgroup/memory.swap.current": "200\n"})
    assert free_memory(tmp_path) == 1500
    put(tmp_path, {"sys/fs/cgroup/memory.swap.max": "max\n"})
    assert free_memory(tmp_path) == 1000 + 80 * 1024


def test_the_first_version_of_groups_is_read_too(tmp_path: Path) -> None:
    at = "sys/fs/cgroup/memory/docker/abc"
    put(tmp_path, meminfo(8) | {"proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/abc\n0::/\n"})
    put(tmp_path, {f"{at}/memory.limit_in_bytes": "3000\n", f"{at}/memory.usage_in_bytes": "2500\n"})
    put(tmp_path, {f"{at}/memory.stat": "total_inactive_file 400\ntotal_active_file 100\n"})
    assert free_memory(tmp_path) == 1000


@given(st.binary(max_size=60))
def test_malformed_cgroup_files_are_ignored(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    for name in ("proc/meminfo", "proc/self/cgroup", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.stat"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert free_memory(root) >= 0


def test_this_machine_has_some() -> None:
    assert free_memory() > 0


def test_freed_memory_is_returned_where_the_c_library_can_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    return_freed_memory()
    for library in (object(), OSError("no such library")):

        def opened(_: object, library: object = library) -> object:
            if isinstance(library, OSError):
                raise library
            return library

        monkeypatch.setattr("ctypes.CDLL", opened)
        return_freed_memory()
