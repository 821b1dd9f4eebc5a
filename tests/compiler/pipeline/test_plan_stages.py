"""The library of plugins that a build makes beside its plans, or does without where nothing can compile it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.pipeline.plan_stages import build_plugin_library
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.store.stages import Stage, StageStore
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.pack import write_pack
from peagle.plugins.kernels.sources import digest, kernel_ops
from peagle.plugins.tensorrt.library import INDEX, LIBRARY

CUBINS = [Cubin(op.name, 100, digest(op), b"\x7fELF", {}) for op in kernel_ops()]


@pytest.fixture
def run(tmp_path: Path) -> PipelineRun:
    return PipelineRun.begin(StageStore(tmp_path / "store"), None)


@pytest.fixture
def kernels(run: PipelineRun) -> Stage:
    return run.store.run("kernels", [], lambda folder: write_pack(folder, CUBINS))


def compiler(folder: Path, does: str) -> str:
    """A compiler that does as it is told."""
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


def test_the_library_is_compiled_once_for_kernels_and_compiler(
    run: PipelineRun, kernels: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo code > kernels.so"))
    first, second = build_plugin_library(run, kernels).stage, build_plugin_library(run, kernels).stage
    assert first is not None
    assert second is not None
    assert set(first.files) == {LIBRARY, INDEX}
    assert (first.reused, second.reused, second.path) == (False, True, first.path)
    assert json.loads((first.path / INDEX).read_text())["gpus"] == ["sm_100"]
    other = run.store.run("kernels", ["new"], lambda folder: write_pack(folder, [replace(CUBINS[0], code=b"new")]))
    third = build_plugin_library(run, other).stage
    assert third is not None
    assert third.path != first.path


@pytest.mark.parametrize(
    ("does", "words"), [(None, "no C++ compiler was found"), ("echo 'error: no room'; exit 1", "error: no room")]
)
def test_without_a_library_the_build_goes_on_and_says_so(
    run: PipelineRun, kernels: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str | None, words: str
) -> None:
    monkeypatch.setattr("peagle.plugins.cpu.compile.is_there", lambda name: False)
    monkeypatch.setenv("PATH", "/bin" if does else "")
    monkeypatch.delenv("CXX", raising=False)
    if does:
        monkeypatch.setenv("CXX", compiler(tmp_path, does))
    library = build_plugin_library(run, kernels)
    assert library.stage is None
    (warning,) = library.warnings
    assert warning.startswith("there is no C++ library of the plugins: ")
    assert words in warning
