"""Compile the CPU kernels to a shared library for this machine, with the host's compiler or ziglang from PyPI."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ..errors import BuildError, EnvironmentProblem
from ..optional_packages import install, is_installed
from ..temporary_folder import temporary_folder
from .sources import OPTIONS, digest, units

_HOST_COMPILERS = ("c++", "g++", "clang++")
_COST = (
    "CPU kernels are compiled on each machine; without compiled kernels, an engine verifies drafts more slowly, "
    "with ONNX Runtime's kernels or with standard operators"
)
_ANOTHER = "set CXX to another C++ compiler"
_LIMIT_SECONDS = 900  # seconds; ziglang first compiles its own C++ library


@dataclass(frozen=True)
class CpuLibrary:
    """The CPU kernels of all ops as machine code for one ``machine`` type (``linux-x86_64``).

    ``digest`` identifies the source; ``compiler`` is the first line of the compiler's version output.
    """

    machine: str
    digest: str
    code: bytes
    compiler: str = ""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler command with its compiler-specific options."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Return a string that identifies the compiler and its version.

        The program may be a wrapper such as ccache, which stays the same if the compiler behind it is replaced.
        """
        program = Path(os.path.realpath(self.command[0]))
        try:
            facts = program.stat()
        except OSError:  # removed since it was found; running it reports the error
            return str(program)
        return f"{program} {facts.st_size} {facts.st_mtime_ns} {self._version()}".strip()

    def _version(self) -> str:
        """Return what tells versions apart; empty if the compiler does not run, which compiling reports."""
        if "ziglang" in self.command:
            return version("ziglang")
        with _build_folder() as folder, suppress(BuildError):
            return _version_line(self, folder)
        return ""


def machine_name() -> str:
    """Return the machine type of this process, such as ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine().lower()}"


def find_compilers(why: str = _COST) -> tuple[Compiler, ...]:
    """Return the compilers to try in order: ``$CXX`` if set, otherwise the host's, then ziglang's.

    The first that works is used. Raises ``EnvironmentProblem`` if there is none; ``why`` explains the consequence.
    """
    named = os.environ.get("CXX")
    if named and shutil.which(named) is None:
        raise EnvironmentProblem(
            f"$CXX is not a program: {named}", fix="set CXX to the path of a C++ compiler, or unset it"
        )
    found = [path for name in ([named] if named else _HOST_COMPILERS) if (path := shutil.which(name))]
    by_program: dict[str, str] = {}
    for path in found:  # keep the name as found: some programs act on the name they are called by
        by_program.setdefault(os.path.realpath(path), path)
    compilers = [Compiler((path,)) for path in by_program.values()]
    if is_installed("ziglang"):
        # ziglang targets this exact CPU by default; the kernels select their instructions at run time instead.
        compilers.append(Compiler((sys.executable, "-m", "ziglang", "c++"), ("-mcpu=baseline",)))
    if not compilers:
        raise EnvironmentProblem(
            "no C++ compiler was found",
            why=why,
            fix=f"install g++ or clang++, or run `{install('cpu')}`",
        )
    return tuple(compilers)


def compile_library() -> CpuLibrary:
    """Compile the kernels for this machine.

    Raises ``EnvironmentProblem`` if there is no compiler or no folder for temporary files. Raises ``BuildError`` with
    every compiler's output if all fail.
    """
    files = {name: text.encode() for name, text in units().items()}
    made = compile_shared(files, OPTIONS, find_compilers(), "the CPU kernels")
    return CpuLibrary(machine_name(), digest(), *made)


def compile_shared(
    files: Mapping[str, bytes], options: Sequence[str], compilers: Sequence[Compiler], what: str
) -> tuple[bytes, str]:
    """Compile the ``.cpp`` files, all at once, to a shared library; also return the compiler's version.

    They may include the other files. Uses the first compiler that works. Raises ``BuildError`` with every compiler's
    output if all fail.
    """
    failures = []
    for compiler in compilers:
        try:
            return _compiled(compiler, files, options)
        except BuildError as error:
            failures.append(f"{compiler.command[0]}: {error.why}")
    raise BuildError(f"{what} cannot be compiled", why="; ".join(failures), fix=_ANOTHER)


def _compiled(compiler: Compiler, files: Mapping[str, bytes], options: Sequence[str]) -> tuple[bytes, str]:
    with _build_folder() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        # Relative names in a private folder keep paths of this machine out of the machine code.
        command = [*compiler.command, *options, *compiler.options]
        parts = [name for name in files if name.endswith(".cpp")]
        if len(parts) > 1:
            with ThreadPoolExecutor(len(parts)) as pool:
                parts = [*pool.map(lambda part: _compiled_part(command, part, folder), parts)]
        _run([*command, *parts, "-o", "kernels.so"], folder)
        try:
            code = (Path(folder) / "kernels.so").read_bytes()
        except OSError as error:
            raise BuildError(
                "the C++ compiler failed", why="the compiler reported success but wrote no output file", fix=_ANOTHER
            ) from error
        return code, _version_line(compiler, folder)


def _build_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="peagle-cpu-", dir=temporary_folder())


def _version_line(compiler: Compiler, folder: str) -> str:
    """Return the first line of the compiler's version output. Raises ``BuildError`` if it does not run."""
    said = _run([*compiler.command, "--version"], folder).strip().splitlines()
    return said[0] if said else "of unknown version"


def _compiled_part(command: Sequence[str], part: str, folder: str) -> str:
    """Compile one translation unit; return the name of its object file."""
    made = f"{part}.o"
    _run([*(option for option in command if option != "-shared"), "-c", part, "-o", made], folder)
    return made


def _run(command: list[str], folder: str) -> str:
    """Return everything the command printed. Raises ``BuildError`` if it fails."""
    # ziglang keeps what it compiles, its C++ library too: with the rest, unless the user has named a place.
    caches = {f"ZIG_{kind}_CACHE_DIR": str(Path(folder) / "zig") for kind in ("GLOBAL", "LOCAL")}
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            env=caches | os.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except OSError as error:
        raise BuildError("the C++ compiler cannot be run", why=error.strerror or str(error), fix=_ANOTHER) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            "the C++ compiler timed out", why=f"the compiler was stopped after {_LIMIT_SECONDS} s", fix=_ANOTHER
        ) from error
    if process.returncode == 0:
        return process.stdout
    lines = process.stdout.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines[-3:]
    why = " | ".join(errors[:3]) or f"exit status {process.returncode}"
    raise BuildError("the C++ compiler failed", why=why, fix=_ANOTHER)
