"""The CPU kernels compile reproducibly with any supported compiler, or the error says why not."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from peagle.plugins.cpu import compile as compiling
from peagle.plugins.cpu.compile import Compiler, compile_library, find_compilers, machine_name
from peagle.plugins.cpu.self_test import try_library
from peagle.plugins.cpu.sources import OPTIONS, cpu_ops, digest, units
from peagle.plugins.errors import BuildError, EnvironmentProblem
from tests.fixtures.cpu_kernels import GIVEN
from tests.plugins.cpu import other_machine

TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_ziglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_installed", lambda name: False)
    monkeypatch.delenv("CXX", raising=False)


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_hosts_compilers_are_tried_in_order_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None
) -> None:
    first, last = program(tmp_path, "g++", "exit 1"), program(tmp_path, "clang++", "exit 1")
    (tmp_path / "c++").symlink_to(last)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compilers() == (Compiler((str(tmp_path / "c++"),)), Compiler((str(first),)))


def test_pypi_compiler_comes_last_with_a_generic_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_installed", lambda name: name == "ziglang")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert find_compilers() == (Compiler((sys.executable, "-m", "ziglang", "c++"), ("-mcpu=baseline",)),)


def test_missing_folder_for_temporary_files_is_not_the_compilers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None, no_temporary_folder: None
) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path, "mine", "exit 0")))
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files"):
        compile_library()


def test_named_compiler_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None) -> None:
    named = program(tmp_path, "mine", "exit 1")
    monkeypatch.setenv("CXX", str(named))
    assert find_compilers() == (Compiler((str(named),)),)
    monkeypatch.setenv("CXX", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentProblem, match="CXX is not a program"):
        find_compilers()


def test_missing_compiler_error_states_the_consequence(monkeypatch: pytest.MonkeyPatch, no_ziglang: None) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentProblem, match="no C\\+\\+ compiler") as caught:
        compile_library()
    assert "more slowly" in caught.value.why
    assert "cpu]" in caught.value.fix


TWO_UNITS = {
    "first.cpp": 'int g(); extern "C" __attribute__((visibility("default"))) int f() { return g(); }',
    "second.cpp": "int g() { return 7; }",
}
FAILURES = {
    "an error": ("echo 'kernels.cpp:3: error: no such thing'; echo noise; exit 1", "error: no such thing"),
    "a failure without a word": ("exit 7", "exit status 7"),
    "success without a library": ("exit 0", "wrote no output file"),
    "a signal": ("kill -9 $$", "exit status -9"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_compiler_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None, failure: str
) -> None:
    text, words = FAILURES[failure]
    monkeypatch.setenv("CXX", str(program(tmp_path, "broken", text)))
    with pytest.raises(BuildError, match="cannot be compiled") as caught:
        compile_library()
    assert words in caught.value.why


def test_a_compiler_that_fails_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None
) -> None:
    program(tmp_path, "c++", "exit 1")
    program(tmp_path, "g++", 'case "$*" in *--version*) echo that one;; *kernels.so*) echo code > kernels.so;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    library = compile_library()
    assert (library.code, library.compiler) == (b"code\n", "that one")
    assert (library.machine, library.digest) == (machine_name(), digest())


def test_another_compiler_behind_a_wrapper_has_another_identity(tmp_path: Path) -> None:
    wrapper = Compiler((str(program(tmp_path, "c++", f"cat {tmp_path}/version")),))
    (tmp_path / "version").write_text("c++ 12.2.0\nCopyright\n")
    old, again = wrapper.identity, wrapper.identity
    assert old == again
    (tmp_path / "version").write_text("c++ 14.1.0\nCopyright\n")
    assert wrapper.identity != old
    (tmp_path / "version").unlink()  # compiling reports that it does not run
    assert wrapper.identity not in ("", old)


def test_local_compiler_builds_a_loadable_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_library: Path
) -> None:
    """A short source; the kernels are compiled only if they are not cached."""
    monkeypatch.setattr(compiling, "units", lambda: TWO_UNITS)
    path = tmp_path / "kernels.so"
    path.write_bytes(compile_library().code)
    assert ctypes.CDLL(str(path)).f() == 7


def test_library_contains_nothing_of_the_machine(cpu_library: Path) -> None:
    code = cpu_library.read_bytes()
    assert b"kernels.cpp" not in code
    for place in (Path.home(), Path.cwd(), cpu_library.parent):
        assert str(place).encode() not in code


def test_an_error_in_any_unit_is_quoted(monkeypatch: pytest.MonkeyPatch, cpu_library: Path) -> None:
    monkeypatch.setattr(compiling, "units", lambda: TWO_UNITS | {"third.cpp": "nonsense"})
    with pytest.raises(BuildError, match="cannot be compiled") as caught:
        compile_library()
    assert "third.cpp" in caught.value.why


@pytest.mark.parametrize("named", [None, "/given"])
def test_pypi_compiler_caches_only_in_the_private_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_ziglang: None, named: str | None
) -> None:
    written = tmp_path / "caches"
    text = f'echo "$PWD $ZIG_GLOBAL_CACHE_DIR $ZIG_LOCAL_CACHE_DIR" > {written}; echo code > kernels.so'
    monkeypatch.setenv("CXX", str(program(tmp_path, "mine", text)))
    for variable in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
        if named:
            monkeypatch.setenv(variable, named)
    compile_library()
    folder, *caches = written.read_text().split()
    assert caches == [named or f"{folder}/zig"] * 2


@pytest.mark.slow
def test_same_source_gives_the_same_bytes(cpu_library: Path) -> None:
    assert compile_library().code == cpu_library.read_bytes()


@pytest.mark.slow
def test_pypi_compiler_builds_working_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs ziglang (pip install 'peagle-compile[cpu]')")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    path = tmp_path / "kernels.so"
    path.write_bytes(compile_library().code)
    assert try_library(path)


def arm_compiler() -> list[str]:
    """ziglang's compiler for any ARM machine of 64 bits, without looking at the one it runs on."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("needs ziglang (pip install 'peagle-compile[cpu]')")
    return [sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"]


def compile_units(command: Sequence[str], texts: Mapping[str, str], to: Path) -> None:
    for name, text in texts.items():
        (to.parent / name).write_text(text)
    command = [*command, *(str(to.parent / name) for name in texts), "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_kernels_compile_to_a_library_for_arm_machines(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    compile_units([*arm_compiler(), "-target", "aarch64-linux-gnu", *OPTIONS], units(), path)
    header = path.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183, "AArch64"


@pytest.mark.slow
def test_kernels_give_the_same_bits_on_arm_machines(tmp_path: Path) -> None:
    """The tests of the ops again, on an emulated machine next to this one: references and all bits."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("needs qemu-aarch64 (Debian: apt-get install qemu-user)")
    path = tmp_path / "kernels"
    options = [option for option in OPTIONS if option not in ("-fPIC", "-shared")]
    command = [*arm_compiler(), "-target", "aarch64-linux-musl", "-static", *options, "-pthread"]
    compile_units(command, other_machine.program(), path)
    rerun_tests_of_ops({other_machine.COMMAND: shlex.join([emulator, str(path)])})


@pytest.mark.slow
def test_kernels_stay_in_bounds(tmp_path: Path) -> None:
    """The tests of the ops once more, with the address and undefined-behaviour sanitizers; and no warnings."""
    compiler = find_compilers()[0].command
    names = ("libasan.so", "libubsan.so")
    print_names = [[*compiler, f"-print-file-name={name}"] for name in names]
    found = [subprocess.run(c, capture_output=True, text=True, check=True).stdout.strip() for c in print_names]
    if not all(Path(path).is_absolute() for path in found):
        pytest.skip("the compiler has no sanitizer libraries here")
    library = tmp_path / "sanitized.so"
    options = [option for option in OPTIONS if option not in ("-O3", "-s", "-w")]
    # GCC's own headers begin registers with themselves.
    options += ["-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
    options += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    compile_units([*compiler, *options], units(), library)
    sanitizers = {
        GIVEN: str(library),
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0,detect_stack_use_after_return=0",
    }
    rerun_tests_of_ops(sanitizers)


def rerun_tests_of_ops(settings: dict[str, str]) -> None:
    """The tests of every kernel, in a process of its own with these variables."""
    folders = {op.folder: TESTS / "plugins/ops" / op.folder for op in cpu_ops()}
    files = [path if path.exists() else TESTS / f"plugins/ops/test_{op}.py" for op, path in folders.items()]
    files += [TESTS / "plugins/cpu/fused_region"]
    tests = [str(path) for path in [*files, TESTS / "scenarios/test_chains_on_cpu.py"]]
    command = [sys.executable, "-m", "pytest", "-x", *tests, "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
