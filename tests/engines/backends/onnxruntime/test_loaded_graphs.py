"""Errors of ONNX Runtime become a ``PeagleError`` with its message and a fix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import loaded_graphs
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import FileEntry
from peagle.plugins.errors import EnvironmentProblem


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (RuntimeError("[ONNXRuntimeError] : 1 : FAIL : a node\nand more"), "rebuild the engine"),
        (ValueError("ONNXRuntimeError"), "rebuild the engine"),
        (MemoryError(), "max_batch_size"),
        (RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer"), "max_batch_size"),
    ],
)
def test_runtime_exceptions_become_project_errors(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, cure: str
) -> None:
    engine = Engine.load(tiny_folder, threads=1, check="sizes")

    class Broken:
        def __init__(self, session: Any) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def run_with_iobinding(self, binding: Any) -> None:
            raise error

    sessions: Any = engine._backend._sessions  # type: ignore[attr-defined]
    object.__setattr__(sessions, "drafter", Broken(sessions.drafter))
    with pytest.raises(EnvironmentProblem, match="failed to run a graph") as caught:
        engine.generate([[5, 6]], SamplingParams(max_tokens=4))
    assert caught.value.why == (str(error).splitlines() or ["MemoryError"])[0]
    assert cure in caught.value.fix


def test_an_engine_loads_from_a_folder_that_the_locale_cannot_decode(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moteur-é"
    shutil.copytree(tiny_folder, folder)
    code = "import sys; from peagle.engines import Engine; Engine.load(sys.argv[1], threads=1, check='sizes')"
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, os.fsencode(folder)], env=os.environ | variables, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_folder_name_that_is_not_utf_8_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"moteur-\xe9")
    shutil.copytree(tiny_folder, folder)
    with pytest.raises(EnvironmentProblem, match="the path is not UTF-8") as caught:
        Engine.load(folder, threads=1, check="sizes")
    assert caught.value.fix == "rename the folder"


def test_out_of_memory_becomes_a_project_error(tiny_folder: Path) -> None:
    session = loaded_graphs.open_session(tiny_folder / "target" / "model.onnx", 1)
    with pytest.raises(EnvironmentProblem, match="rejected the buffers"):
        loaded_graphs.bind(session, {"no_such_input": np.zeros(1, np.float32)}, {})


@pytest.mark.parametrize(
    ("mebibytes", "processors", "threads"),
    [(0.1, 2, 1), (7, 64, 1), (9, 64, 2), (9, 2, 0), (100, 64, 25), (900, 64, 0)],
)
def test_threads_go_with_the_weights_as_far_as_there_are_cores(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: float, processors: int, threads: int
) -> None:
    """0 is every physical core."""
    manifest = Manifest.read(tiny_folder)
    name = f"{manifest.target.file}.data"
    files = {name: FileEntry(int(mebibytes * 2**20), "0" * 64), "drafter/model.onnx": FileEntry(2**40, "0" * 64)}
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert loaded_graphs.default_threads(replace(manifest, files=files)) == threads


def test_threads_spin_between_nodes_but_not_after_a_run() -> None:
    assert loaded_graphs.waiting(Path("kernels.so")) == {"session.intra_op.allow_spinning": "0"}
    assert loaded_graphs.waiting(None)["session.force_spinning_stop"] == "1"


def test_interruption_is_passed_through() -> None:
    with pytest.raises(KeyboardInterrupt), loaded_graphs.Refusals("it", "that"):
        raise KeyboardInterrupt
