"""``peagle-compile cache``: its listing of the cache, and what it removes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import StageStore
from tests.fixtures.commands import Run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a step of the demo, and an older one that does not say what it was made for."""
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path))
    for store, name, used in (
        (
            StageStore(tmp_path, stage_origin=StageOrigin("build", "demo", "demo", "int8", "ort")),
            "attach-target",
            1_790_000_000,
        ),
        (StageStore(tmp_path), "trace-target", 1_700_000_000),
    ):
        path = store.run(name, [], lambda folder: (folder / "weights").write_bytes(bytes(50_000)) and None).path
        os.utime(path, (used, used))
    return tmp_path


def test_build_records_the_purpose_of_its_steps(cli: Run, demo_engine: Path) -> None:
    listed = json.loads(cli("cache", "list", "--json").out)
    stage_origin = [entry["made_for"] for entry in listed["entries"] if entry["kind"] == "attach-target"]
    assert {
        "command": "build",
        "model": "demo",
        "drafter": "demo",
        "precision": "fp32",
        "lowering": "cpu",
    } in stage_origin
    assert listed["bytes"] == sum(entry["bytes"] for entry in listed["entries"])


def test_list_shows_purpose_size_and_time(cli: Run, cache: Path) -> None:
    lines = cli("cache", "list").out.splitlines()
    assert "demo, int8, ort" in lines[1]
    assert "50." in lines[1]
    assert "days ago" in lines[2]
    assert "unknown" in lines[2]
    assert f"in 2 steps below {cache}" in lines[-1]


@pytest.mark.parametrize(
    "command",
    [
        ("cache", "list"),
        ("cache", "prune"),
        ("build", "--model", "demo", "--out", "out"),
        ("build", "--model", "demo", "--out", "out", "--dry-run"),
    ],
)
@pytest.mark.parametrize("name", ["file", "file/cache", "link"])
def test_a_cache_that_is_not_a_folder_is_refused(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / name))
    done = cli(*command)
    assert (done.code, f"the cache {tmp_path / name} cannot be used" in done.err) == (3, True), done.err
    assert "set PEAGLE_CACHE to a folder" in done.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "link"]


def test_empty_cache_is_reported_empty(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "none"))
    assert cli("cache", "list").out == f"0 B in 0 steps below {tmp_path / 'none'}\n"
    assert "0 B were freed" in cli("cache", "prune").out


def test_pruning_reports_removed_and_remaining(cli: Run, cache: Path) -> None:
    dry = cli("cache", "prune", "--max-size", "60KB", "--dry-run")
    assert "would be removed" in dry.out
    done = json.loads(cli("cache", "prune", "--max-size", "60kb", "--json").out)
    assert [entry["kind"] for entry in done["removed"]] == ["trace-target"]
    assert (done["in_use"], done["dry_run"]) == ([], False)
    assert done["freed_bytes"] > 50_000
    assert [path.name for path in (cache / "trace-target").iterdir()] == []
    assert "were freed, 0 B remain" in cli("cache", "prune", "--older-than", "1.5h", "--max-size", "0").out


def test_interrupted_pruning_says_how_to_see_what_is_left(
    cli: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("peagle.compiler.store.cache_contents.prune", interrupt)
    done = cli("cache", "prune", "--max-size", "0")
    assert done.code == 130
    assert "some entries may have been removed; `peagle-compile cache list` shows the rest" in done.err


def test_without_an_option_only_leftovers_go(cli: Run, cache: Path) -> None:
    (step,) = (path for path in (cache / "trace-target").iterdir() if path.is_dir())
    left = step.with_name(f".{step.name}.killed")
    left.mkdir()
    assert "a killed process" in cli("cache", "list").out
    done = cli("cache", "prune")
    assert not left.exists()
    assert step.exists()
    assert "--older-than or --max-size" in done.err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--older-than", "30"),
        ("--older-than", "-1d"),
        ("--older-than", "soon"),
        ("--max-size", "-1"),
        ("--max-size", "x"),
        ("--max-size", "9" * 400),
        ("--max-size", "5\u212aB"),
    ],
)
def test_invalid_age_or_size_is_rejected(cli: Run, cache: Path, wrong: tuple[str, str]) -> None:
    done = cli("cache", "prune", *wrong)
    assert done.code == 2
    assert wrong[1] in done.err
    assert len(list(cache.glob("*/*"))) == 4


def test_the_group_alone_shows_its_verbs(cli: Run) -> None:
    done = cli("cache")
    assert done.code == 0
    assert "prune" in done.out


@pytest.mark.parametrize("place", ["/dev/null/x", "file"])
def test_cache_path_that_is_not_a_folder_is_rejected(
    cli: Run, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / place))
    for verb in ("list", "prune"):
        assert "fault in" not in cli("cache", verb).err
