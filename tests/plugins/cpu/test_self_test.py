"""A library is used if it works with this ONNX Runtime; any other one does not end the process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from peagle.plugins.cpu.compile import find_compilers
from peagle.plugins.cpu.self_test import try_library
from peagle.plugins.errors import EnvironmentProblem
from tests.plugins.cpu.sessions import PATHS, paths_here


def test_the_kernels_work_on_every_path(cpu_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture has tried the best one."""
    assert set(paths_here(cpu_library)) <= set(PATHS)
    monkeypatch.setenv("PEAGLE_CPU_INSTRUCTIONS", "portable")
    assert try_library(cpu_library) == "portable"


def test_instructions_that_the_machine_has_not_are_named(cpu_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CPU_INSTRUCTIONS", "sve")
    with pytest.raises(EnvironmentProblem) as caught:
        try_library(cpu_library)
    assert "PEAGLE_CPU_INSTRUCTIONS is sve" in caught.value.why


def test_nothing_is_imported_from_the_current_folder(
    cpu_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a checkpoint, whose Python code must never run."""
    for name in ("numpy", "onnxruntime", "json"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder ran')")
    monkeypatch.chdir(tmp_path)
    assert try_library(cpu_library) in PATHS


OTHERS = {
    "a crash": ("void* RegisterCustomOps(void*, void*) { __builtin_trap(); }", "signal"),
    "no operators": ("void* RegisterCustomOps(void*, void*) { return 0; }", "SelfTest"),
    "another library": ("int nothing;", "RegisterCustomOps"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_library_that_does_not_work_is_refused(cpu_library: Path, tmp_path: Path, what: str) -> None:
    text, words = OTHERS[what]
    path = tmp_path / "other.so"
    command = [*find_compilers()[0].command, "-x", "c++", "-shared", "-fPIC", "-o", str(path), "-"]
    subprocess.run(command, input=f'extern "C" {{ {text} }}', text=True, check=True)
    with pytest.raises(EnvironmentProblem, match="do not work on this machine") as caught:
        try_library(path)
    assert words in caught.value.why
    assert "rebuild the engine" in caught.value.fix


@pytest.mark.parametrize("content", [b"no library", None])
def test_non_library_file_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kernels.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EnvironmentProblem, match="do not work on this machine") as caught:
        try_library(path)
    assert "kernels.so" in caught.value.why
