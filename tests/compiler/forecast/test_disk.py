"""The disk that a build or an export takes: kept steps, their copy in an engine, and what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.forecast import disk as module
from peagle.compiler.forecast.disk import Disk, disk_of
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
    ],
)
def test_what_is_missing_depends_on_where_the_copy_goes(changes: dict[str, int], short: int) -> None:
    assert replace(BOTH, **changes).short_bytes == short


@pytest.mark.parametrize(("has_plans", "is_moved", "kept"), [(False, False, 7), (True, False, 14), (False, True, 0)])
def test_plans_hold_the_weights_once_more_and_an_export_keeps_nothing(
    tmp_path: Path, has_plans: bool, is_moved: bool, kept: int
) -> None:
    disk = disk_of(tmp_path / "cache", tmp_path / "out", 7, has_plans=has_plans, is_moved=is_moved)
    assert (disk.kept_bytes, disk.out_bytes, disk.is_one_disk) == (kept, 7, True)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_copy(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    ask = ("build", "demo", "--dry-run", "--out", tmp_path / "engine")
    disk = json.loads(cli(*ask, "--json").out)["disk"]
    assert disk["kept_bytes"] == disk["out_bytes"] > 10**6
    assert disk["short_bytes"] == 0
    said = cli(*ask).out
    assert "MB of kept steps" in said
    assert f"MB for {tmp_path / 'engine'}" in said
    monkeypatch.setattr(module, "shares_blocks", lambda *_: True)
    assert "shares its blocks and takes no room" in cli(*ask).out
    monkeypatch.setattr(module, "free_bytes", lambda _: 1_000_000)
    assert "MB ARE MISSING" in cli(*ask).out
