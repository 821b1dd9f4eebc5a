"""A program that opens the library gets its plugins registered, with its own or the system's TensorRT."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.plugins.cpu.compile import find_compilers
from peagle.plugins.kernels.sources import kernel_ops

REGISTRY = Path(__file__).with_name("registry.cpp")
ALL = [f"peagle::{op.name}" for op in kernel_ops()]


def tensorrt(folder: Path, name: str, version: int, position: int) -> Path:
    """The folder of a library of that name. Source of version and position: NvInferRuntimeCommon.h of that release."""
    folder.mkdir(exist_ok=True)
    defined = [f"-DVERSION={version}", f"-DPOSITION={position}"]
    command = [
        *find_compilers()[0].command,
        *defined,
        "-shared",
        "-fPIC",
        "-w",
        str(REGISTRY),
        "-o",
        str(folder / name),
    ]
    subprocess.run(command, check=True)
    return folder


def opened(library: Path, before: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return the output of a process that opens it, after another library."""
    loads = f"import ctypes\n{before and f'ctypes.CDLL({before!r})'}\nctypes.CDLL({str(library)!r})"
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder or "")}
    return subprocess.run([sys.executable, "-c", loads], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("name", "version", "position"),
    [("libnvinfer.so.10", 101_500, 12), ("libnvinfer.so.11", 110_100, 8), ("libtensorrt_rtx.so.1", 10_701, 8)],
)
def test_loaded_tensorrt_registry_gets_every_plugin(
    plugin_library: Path, tmp_path: Path, name: str, version: int, position: int
) -> None:
    place = tensorrt(tmp_path / "trt", name, version, position) / name
    done = opened(plugin_library, before=str(place))
    assert (done.stdout.splitlines(), done.stderr) == (ALL, "")


def test_system_tensorrt_is_loaded_when_none_is_present(plugin_library: Path, tmp_path: Path) -> None:
    folder = tensorrt(tmp_path, "libnvinfer.so.11", 110_100, 8)
    assert opened(plugin_library, folder=folder).stdout.splitlines() == ALL
    done = opened(plugin_library)
    assert done.stdout == ""
    assert "TensorRT is not loaded in this process" in done.stderr


@pytest.mark.parametrize(("name", "version"), [("libnvinfer.so.12", 120_000), ("libtensorrt_rtx.so.1", 10_600)])
def test_unknown_registry_version_is_untouched(plugin_library: Path, tmp_path: Path, name: str, version: int) -> None:
    done = opened(plugin_library, before=str(tensorrt(tmp_path / "trt", name, version, 8) / name))
    assert done.stdout == ""
    assert f"TensorRT {version} is not supported" in done.stderr
