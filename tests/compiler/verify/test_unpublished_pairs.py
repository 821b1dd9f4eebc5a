"""A graph as large as a model gets a temporary store, and nothing of it remains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peagle.compiler.verify.unpublished_pairs import scratch


def test_interruption_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "model.onnx.data").write_bytes(b"0" * 100)

    def interrupted() -> None:
        with scratch(tmp_path) as store:
            store.run("attach", 1, make)
            assert list(tmp_path.rglob("model.onnx.data"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["bisect.lock"]


def test_leftovers_of_dead_processes_are_removed_and_live_ones_kept(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom peagle.compiler.verify.unpublished_pairs import scratch\n"
    code += "with scratch(pathlib.Path(sys.argv[1])) as store:\n print(store.root, flush=True)\n sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with pytest.raises(BlockingIOError):
            _lock_at_once(tmp_path / "bisect.lock")
        other.kill()
    assert theirs.is_dir()
    with scratch(tmp_path):
        assert not theirs.exists()


def _lock_at_once(path: Path) -> None:
    import fcntl

    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
