"""Builds from an export that are stopped, killed or out of disk leave no partial engine, and the next one continues."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peagle.compiler.store.stages import StageStore
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from tests.fixtures.exports import Export
from tests.plugins.tensorrt.rtx_builds import needs_rtx

pytestmark = [needs_rtx, pytest.mark.begins_first]

PROGRAM = "from peagle.compiler.cli import main; main()"
# Builds with a disk of some bytes at a folder of its own, then gives that disk room, and builds again.
DISK = """
mount -t tmpfs -o size=$1,mode=700 none "$2" || exit 77
disk=$2 notes=$3; shift 3
"$@" >"$notes.first" 2>"$notes.said"; echo $? >"$notes.code"
find "$disk" -name '.*' ! -name '*.lock' >"$notes.left"
mount -o remount,size=400m "$disk"
"$@" >"$notes.second"
"""


@pytest.fixture
def cache(export_of: Export, tmp_path: Path) -> Path:
    """A stage cache without plans, and with the kernels that the session has."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for name in ("kernels", "plugin-library"):
        kept = StageStore.default().root / name
        if kept.exists():
            (folder / name).symlink_to(kept)
    return folder


def _build(source: Path, out: Path) -> list[str]:
    command = ["build", "--from", str(source), "--out", str(out), "--max-batch-size", "1", "--json"]
    return [sys.executable, "-c", PROGRAM, *command]


def _made(text: str) -> dict[str, bool]:
    """Which steps a build took from earlier ones."""
    return {phase["phase"]: phase["reused"] for phase in json.loads(text)["phases"] if "reused" in phase}


def _half_made(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.suffix != ".lock"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_stopped_build_leaves_no_engine_and_the_next_resumes(
    number: signal.Signals, code: int, export_of: Export, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "engine"
    command, environment = (
        _build(export_of("qwen3"), out),
        os.environ
        | {
            "PEAGLE_CACHE": str(cache),
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 240
        while process.poll() is None and not [*cache.glob("plan-drafter/.*")] and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert (b"the same command resumes from them" in said) is (number == signal.SIGINT)
    assert not out.exists()
    if number != signal.SIGKILL:
        assert _half_made(tmp_path) == []
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    steps = _made(again.stdout)
    assert (steps["plan target"], steps["plan drafter"]) == (True, False)
    check_files(Manifest.read(out).files, out)
    assert _half_made(tmp_path) == []


def _on_a_small_disk(command: list[str], size: str, disk: Path, cache: Path, notes: Path) -> None:
    """Build with a small disk and again with a large one; what was said of both is in files that begin as ``notes``."""
    disk.mkdir()
    inside = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount"]
    environment = os.environ | {"PEAGLE_CACHE": str(cache), "CUDA_VISIBLE_DEVICES": ""}
    if not shutil.which("unshare"):
        pytest.skip("a disk of a few bytes needs unshare")
    done = subprocess.run(
        [*inside, "sh", "-c", DISK, "sh", size, str(disk), str(notes), *command],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"this machine lets nobody mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert _told(notes, "first") == ""
    assert _told(notes, "left") == ""
    said = _told(notes, "said")
    assert int(_told(notes, "code")) == 5, said
    assert "nothing was published" in said
    assert "fault" not in said


def _told(notes: Path, name: str) -> str:
    return notes.with_name(f"{notes.name}.{name}").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "says"), [("1m", "is full"), ("64k", "")])
def test_full_disk_during_plans_leaves_no_engine_and_the_next_build_resumes(
    size: str, says: str, export_of: Export, cache: Path, tmp_path: Path
) -> None:
    out, notes = tmp_path / "engine", tmp_path / "notes"
    _on_a_small_disk(_build(export_of("qwen3"), out), size, cache / "plan-target", cache, notes)
    assert says in _told(notes, "said")
    assert _made(_told(notes, "second"))["plan target"] is False
    check_files(Manifest.read(out).files, out)


@pytest.mark.slow
def test_a_full_disk_of_the_engine_leaves_none_and_the_next_build_has_every_step(
    export_of: Export, cache: Path, tmp_path: Path
) -> None:
    disk, notes = tmp_path / "disk", tmp_path / "notes"
    _on_a_small_disk(_build(export_of("qwen3"), disk / "engine"), "1m", disk, cache, notes)
    assert all(_made(_told(notes, "second")).values())
