"""Disk space of a build or an export: cached stages, their copy in the engine, and what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.resources import disk as module
from peagle.compiler.resources.disk import Disk, disk_of, done_bytes
from peagle.compiler.store.killed_stages import steps, unfinished_path
from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import StageStore
from tests.fixtures.commands import Run

GB = 10**9
BOTH = Disk("/cache", 60 * GB, 100 * GB, "/out", 60 * GB, 100 * GB, is_one_disk=True, shares_blocks=False)


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, 20 * GB),
        ({"shares_blocks": True}, 0),
        ({"is_one_disk": False}, 0),
        ({"is_one_disk": False, "out_free_bytes": 50 * GB}, 10 * GB),
        ({"is_one_disk": False, "cache_free_bytes": 50 * GB, "out_free_bytes": 50 * GB}, 20 * GB),
        ({"kept_bytes": 0, "is_one_disk": True}, 0),
        ({"adopts": True}, 0),
        ({"adopts": True, "is_one_disk": False, "out_free_bytes": 50 * GB}, 10 * GB),
        ({"done_bytes": 15 * GB}, 5 * GB),
        ({"done_bytes": 90 * GB}, 0),
    ],
)
def test_needed_space_depends_on_the_destination_disk(changes: dict[str, int], short: int) -> None:
    assert replace(BOTH, **changes).short_bytes == short


@pytest.mark.parametrize(
    ("how", "kept", "out"),
    [
        ({}, 1000, 1000),
        ({"has_plans": True}, 1000 + 950, 950),
        ({"has_plans": True, "has_graphs": False}, 950, 950),
        ({"is_moved": True}, 0, 1000),
    ],
)
def test_plans_duplicate_weights_and_exports_keep_nothing(
    tmp_path: Path, how: dict[str, bool], kept: int, out: int
) -> None:
    disk = disk_of(tmp_path / "cache", tmp_path / "out", 1000, **how)
    assert (disk.kept_bytes, disk.out_bytes, disk.is_one_disk) == (kept, out, True)
    assert list(tmp_path.iterdir()) == []


def test_export_to_another_disk_bypasses_the_cache(tmp_path: Path) -> None:
    disk = disk_of(Path("/dev/shm/cache"), tmp_path / "out", 1000, is_moved=True)
    assert disk.is_one_disk or disk.kept_bytes == 1000


def kept_step(store: StageStore, kind: str, count: int, key: int = 0) -> None:
    store.run(kind, key, lambda folder: (folder / "weights").write_bytes(bytes(count)) and None)


def test_cached_steps_are_not_counted_again(tmp_path: Path) -> None:
    stage_origin = StageOrigin("build", "demo", "demo", "fp8", "tensorrt")
    store = StageStore(tmp_path, stage_origin=stage_origin)
    assert done_bytes(tmp_path, stage_origin) == 0
    for count in (1000, 5000):
        kept_step(store, "attach-target", count, count)
    kept_step(store, "trace-target", 70_000)
    others = [replace(stage_origin, **change) for change in ({"model": "x"}, {"precision": "x"}, {"lowering": "x"})]
    for other in others:
        kept_step(replace(store, stage_origin=other), "plan-target", 90_000, others.index(other))
    assert 5000 <= done_bytes(tmp_path, stage_origin) < 7000, "records count a little"
    assert 95_000 <= done_bytes(tmp_path, stage_origin, ["x"]) < 97_000
    kept_step(StageStore(tmp_path / "exports", stage_origin=stage_origin), "attach-target", 8000)
    assert 8000 <= done_bytes(tmp_path, stage_origin) < 10_000


def test_leftovers_of_a_killed_build_do_not_count(tmp_path: Path) -> None:
    kept_step(StageStore(tmp_path), "attach-target", 10)
    (step,) = steps(tmp_path)
    (left := unfinished_path(step)).mkdir()
    (left / "weights").write_bytes(bytes(4000))
    assert done_bytes(tmp_path, StageOrigin("build", "demo")) == 4000


def test_a_dry_run_counts_the_copy(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    ask = ("build", "demo", "--dry-run", "--out", tmp_path / "engine")
    disk = json.loads(cli(*ask, "--json").out)["disk"]
    assert disk["kept_bytes"] == disk["out_bytes"] > 10**6
    assert disk["short_bytes"] == 0
    said = cli(*ask).out
    assert "MB for the cache" in said
    assert f"MB for {tmp_path / 'engine'}" in said
    monkeypatch.setattr(module, "shares_blocks", lambda *_: True)
    assert "shares its blocks and needs no extra space" in cli(*ask).out
    monkeypatch.setattr(module, "free_bytes", lambda _: 1_000_000)
    assert "SHORT BY " in cli(*ask).out
