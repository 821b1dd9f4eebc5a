"""The library compiles reproducibly around kernels, and refuses unsupported ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins.cpu.compile import machine_name
from peagle.plugins.errors import BuildError, EnvironmentProblem, UsageError
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.pack import Pack
from peagle.plugins.kernels.sources import digest as digest_of
from peagle.plugins.kernels.sources import kernel_ops
from peagle.plugins.limits import finite
from peagle.plugins.op_spec import Attribute, OpSpec
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt.library import LIBRARY, sources
from peagle.plugins.tensorrt.library import __main__ as command
from peagle.plugins.tensorrt.library import compile as compiling
from peagle.plugins.tensorrt.library.compile import compile_library
from peagle.plugins.tensorrt.library.pack import read_index

PACK = Pack(tuple(Cubin(op.name, 120, digest_of(op), b"\x7fELF " + op.name.encode(), {}) for op in kernel_ops()))


def test_kernels_are_embedded_once_and_only_libc_is_linked(plugin_library: Path) -> None:
    code = plugin_library.read_bytes()
    assert [code.count(cubin.code) for cubin in PACK.cubins] == [1] * len(PACK.cubins)
    dynamic = subprocess.run(["readelf", "-d", plugin_library], capture_output=True, text=True, check=True).stdout
    needed = [line.partition("[")[2].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert all(name.startswith(("libc.so", "libdl.so", "libm.so", "ld-linux", "libpthread")) for name in needed), needed
    count = ctypes.c_int32()
    assert ctypes.CDLL(str(plugin_library)).getCreators(ctypes.byref(count))
    assert count.value == len(PACK.cubins)


@pytest.mark.slow
def test_same_source_gives_the_same_bytes(plugin_library: Path) -> None:
    assert compile_library([120], [PACK]).code == plugin_library.read_bytes()


def test_other_kernel_gives_another_digest() -> None:
    first, *others = PACK.cubins
    assert sources.digest([replace(first, code=b"\x7fELF other"), *others]) != sources.digest(PACK.cubins)


def test_index_describes_the_library(plugin_library: Path, tmp_path: Path) -> None:
    index = read_index(plugin_library.parent)
    assert index["gpus"] == ["sm_120"]  # what is for 12.0 runs on 12.1
    assert (index["machine"], index["bytes"]) == (machine_name(), plugin_library.stat().st_size)
    assert index["source_sha256"] == sources.digest(PACK.cubins)
    for text in ("", "[]", '{"format": 2}', '{"format": 1, "gpus": "sm_90"}'):
        (tmp_path / "plugin_library.json").write_text(text)
        with pytest.raises(EnvironmentProblem, match="does not describe a plugin library"):
            read_index(tmp_path)


@pytest.mark.parametrize(("sms", "words"), [([], "no GPU was specified"), ([70, 90], "does not support sm_70")])
def test_gpu_without_a_kernel_is_rejected(sms: list[int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        compile_library(sms, [PACK])


def test_missing_compiler_error_states_the_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.plugins.cpu.compile.is_installed", lambda name: False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentProblem, match="no C\\+\\+ compiler") as caught:
        compile_library([120], [PACK])
    assert "only Python programs" in caught.value.why


def test_compiler_error_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "files", lambda cubins: {"plugins.cpp": b"no such thing"})
    with pytest.raises(BuildError, match="the plugin library cannot be compiled") as caught:
        compile_library([120], [PACK])
    assert "error" in caught.value.why


def with_attribute(op: OpSpec) -> OpSpec:
    return replace(op, attributes=(Attribute("share", float, 1.0, "", finite),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda op: replace(op, check_dims=lambda dims: None), "the op's check_dims cannot be expressed as bounds"),
        (with_attribute, "share is not an integer with a lower bound"),
        (
            lambda op: replace(op, inputs=(replace(op.inputs[0], optional=True), *op.inputs[1:])),
            "of variable rank",
        ),
    ],
)
def test_a_spec_that_the_tables_cannot_say_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], OpSpec], words: str
) -> None:
    monkeypatch.setitem(OPS, "AcceptPrefix", change(OPS["AcceptPrefix"]))  # type: ignore[misc]
    with pytest.raises(BuildError, match="AcceptPrefix cannot be a plugin of the library") as caught:
        sources.files(PACK.cubins)
    assert words in caught.value.why


def test_the_command_writes_it_for_gpus_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    monkeypatch.setattr("peagle.plugins.kernels.pack.shipped", lambda: PACK)
    monkeypatch.setattr(compiling, "compile_shared", lambda *_: (b"\x7fELF", "a compiler"))
    monkeypatch.setattr(sys, "argv", ["", str(folder), "sm_120", "sm_121"])
    assert command.main() == 0
    assert read_index(folder)["gpus"] == ["sm_120"]
    assert "with kernels for sm_120, by a compiler" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["", str(folder / LIBRARY), "sm_120"])
    assert command.main() == 3
    assert f"cannot write {folder / LIBRARY}" in capsys.readouterr().err


def test_command_prints_its_usage(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "peagle.plugins.tensorrt.library"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("gpu", ["blackwell", "sm_70"])
def test_command_refuses_an_unknown_gpu(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "folder"), gpu])
    assert command.main() == 2
    assert "fix: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
