"""From an export to an engine in a clean environment with the base installation and the extra ``rtx``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from tests.fixtures.exports import Export
from tests.models import CONFIGS
from tests.plugins.tensorrt.rtx_builds import needs_rtx

pytestmark = [pytest.mark.slow, needs_rtx]

ROOT = Path(__file__).parents[2]
PACKAGE = ("compiler", "engines", "graphs", "plugins", "src", "LICENSE", "README.md", "pyproject.toml")
ABSENT = {"torch", "transformers", "onnx", "onnx-ir", "onnxscript", "ml-dtypes", "safetensors", "gguf", "ziglang"}
SYSTEM = "/usr/local/bin:/usr/bin:/bin"


def _run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that knows nothing of the environment of these tests."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    return subprocess.run(
        [str(each) for each in command], env={"PATH": SYSTEM} | kept | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a wheel of this tree and the extra ``rtx``, of the locked versions."""
    folder = tmp_path_factory.mktemp("clean")
    source = folder / "source"
    source.mkdir()
    for name in PACKAGE:
        ignored = shutil.ignore_patterns("__pycache__", "packed", "*.egg-info")
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source)
    pip = ("-m", "pip", "-qq", "--disable-pip-version-check", "--no-input")
    built = _run(sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    assert _run(sys.executable, "-m", "venv", folder / "venv").returncode == 0
    python = folder / "venv" / "bin" / "python"
    done = _run(python, *pip, "install", "--constraint", ROOT / "requirements.lock", f"{wheel}[rtx]")
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"there is no package index: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return folder / "venv"


def _peagle(
    environment: Path, folder: Path, *command: object, compiler: bool = True
) -> subprocess.CompletedProcess[str]:
    own = str(environment / "bin")
    return _run(
        environment / "bin" / "peagle-compile", *command, PATH=f"{own}:{SYSTEM}" if compiler else own,
        HOME="/nonexistent", PEAGLE_CACHE=str(folder / "stages"), CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip


def test_environment_has_no_tracing_packages(environment: Path) -> None:
    listed = _run(environment / "bin" / "python", "-m", "pip", "list", "--format", "json")
    names = {re.sub(r"[-_.]+", "-", each["name"]).lower() for each in json.loads(listed.stdout)}
    assert {"peagle-compile", "tensorrt-rtx", "cuda-core", "onnxruntime"} <= names
    assert names & ABSENT == set()
    assert _run(environment / "bin" / "python", "-m", "pip", "check").returncode == 0


@pytest.mark.parametrize("family", ["demo", *CONFIGS])
def test_an_export_becomes_an_engine(family: str, environment: Path, export_of: Export, tmp_path: Path) -> None:
    source = Path(shutil.copytree(export_of(family), tmp_path / "export"))
    out = tmp_path / "engine"
    done = _peagle(environment, tmp_path, "build", "--from", source, "--out", out, "--max-batch-size", 2, "--json")
    assert done.returncode == 0, done.stderr
    manifest = Manifest.read(out)
    check_files(manifest.files, out)
    assert (manifest.backend.name, manifest.backend.gpus) == ("tensorrt-rtx", ("sm_120",))
    assert {part.plan.layers["PLUGIN_V3"] for part in manifest.parts.values() if part.plan} == {1}
    assert set(json.loads(done.stdout)["matmuls"]) == {"target", "drafter"}
    shutil.rmtree(source)  # an engine needs it no more than the export its checkpoints
    shown = _peagle(environment, tmp_path, "inspect", out)
    assert shown.returncode == 0, shown.stderr
    assert "for sm_120" in shown.stdout
    ran = _peagle(environment, tmp_path, "run", out, "--prompt", "a")
    assert (ran.returncode, "no NVIDIA GPU" in ran.stderr) == (3, True), ran.stderr


def test_missing_compiler_only_drops_the_plugin_library(environment: Path, export_of: Export, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    done = _peagle(environment, tmp_path, "build", "--from", export_of("qwen3"), "--out", out, "-q", compiler=False)
    assert done.returncode == 0, done.stderr
    assert "the C++ plugin library was not built" in done.stderr
    assert "[cpu]'" in done.stderr
    manifest = Manifest.read(out)
    check_files(manifest.files, out)
    assert not [name for name in manifest.files if name.endswith(".so")]


def test_available_actions_are_reported(environment: Path, tmp_path: Path) -> None:
    told = _peagle(environment, tmp_path, "doctor")
    assert told.returncode == 0, told.stderr
    assert "only from an export made elsewhere, with `build --from`" in told.stdout
    refused = _peagle(environment, tmp_path, "build", "--model", "demo", "--out", tmp_path / "engine")
    assert (refused.returncode, "[export]'" in refused.stderr) == (3, True), refused.stderr
