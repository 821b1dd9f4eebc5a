"""Compilers of the CPU kernels to a shared library of this machine: the host's own, or the one that PyPI has."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ..errors import BuildError, EnvironmentProblem
from ..optional_packages import install, is_there
from .sources import OPTIONS, digest, source

_HOST_COMPILERS = ("c++", "g++", "clang++")
_COST = (
    "CPU kernels are compiled for the machine; without them ONNX Runtime's own are used, with which verifying drafts "
    "costs more, or the standard operators that mean the same, more slowly"
)
_LIMIT_SECONDS = 900  # ziglang first compiles its own C++ library, and machines are busy


@dataclass(frozen=True)
class CpuLibrary:
    """The CPU kernels of all ops, as machine code of one kind of ``machine`` (``linux-x86_64``).

    ``digest`` is that of the source it was made from, ``compiler`` the first line that it says of itself.
    """

    machine: str
    digest: str
    code: bytes
    compiler: str = ""


@dataclass(frozen=True)
class Compiler:
    """How a C++ compiler is called, and what only it needs to be told."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What tells it from every other compiler, and from itself before it was updated; nothing is run for that."""
        program = Path(os.path.realpath(self.command[0]))
        try:
            facts = program.stat()
        except OSError:  # it is gone since it was found; what runs it says so
            return str(program)
        package = version("ziglang") if "ziglang" in self.command else ""
        return f"{program} {facts.st_size} {facts.st_mtime_ns} {package}".strip()


def machine_name() -> str:
    """The kind of machine that this process runs on, such as ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine().lower()}"


def find_compilers(why: str = _COST) -> tuple[Compiler, ...]:
    """The compilers to try, the first that works is used: the one that ``$CXX`` names, else the host's, then ziglang's.

    ``EnvironmentProblem`` when there is none; ``why`` says what that costs.
    """
    named = os.environ.get("CXX")
    if named and shutil.which(named) is None:
        raise EnvironmentProblem(f"$CXX names no program: {named}", fix="set CXX to the path of a C++ compiler")
    found = [path for name in ([named] if named else _HOST_COMPILERS) if (path := shutil.which(name))]
    by_program: dict[str, str] = {}
    for path in found:  # called by the name that was found: a program may go by that
        by_program.setdefault(os.path.realpath(path), path)
    compilers = [Compiler((path,)) for path in by_program.values()]
    if is_there("ziglang"):
        # It would compile for this very machine, and kernels choose their instructions themselves.
        compilers.append(Compiler((sys.executable, "-m", "ziglang", "c++"), ("-mcpu=baseline",)))
    if not compilers:
        raise EnvironmentProblem(
            "no C++ compiler was found",
            why=why,
            fix=f"install g++ or clang++, or {install('cpu')}",
        )
    return tuple(compilers)


def compile_library() -> CpuLibrary:
    """Compile the kernels for this machine.

    ``EnvironmentProblem`` when there is no compiler, ``BuildError`` with the words of each when all of them fail.
    """
    made = compile_shared({"kernels.cpp": source().encode()}, OPTIONS, find_compilers(), "the CPU kernels")
    return CpuLibrary(machine_name(), digest(), *made)


def compile_shared(
    files: Mapping[str, bytes], options: Sequence[str], compilers: Sequence[Compiler], what: str
) -> tuple[bytes, str]:
    """Compile the first of the files, which may read the others, to a shared library; with the compiler's first words.

    The first compiler that works is used. ``BuildError`` with the words of each when all of them fail.
    """
    failures = []
    for compiler in compilers:
        try:
            return _compiled(compiler, files, options)
        except BuildError as error:
            failures.append(f"{compiler.command[0]}: {error.why}")
    raise BuildError(f"{what} cannot be compiled", why="; ".join(failures), fix="set CXX to another compiler")


def _compiled(compiler: Compiler, files: Mapping[str, bytes], options: Sequence[str]) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="peagle-cpu-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        main = next(iter(files))
        # Relative names, in a folder of its own: nothing of this machine gets into the machine code.
        _run([*compiler.command, *options, *compiler.options, main, "-o", "kernels.so"], folder)
        try:
            code = (Path(folder) / "kernels.so").read_bytes()
        except OSError as error:
            raise BuildError("a compiler failed", why="it reported success and wrote nothing") from error
        said = _run([*compiler.command, "--version"], folder).strip().splitlines()
    return code, said[0] if said else "of unknown version"


def _run(command: list[str], folder: str) -> str:
    """Everything the command printed. ``BuildError`` when it does not end well."""
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except OSError as error:
        raise BuildError("a compiler cannot be run", why=error.strerror or str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise BuildError("a compiler does not end", why=f"it was stopped after {_LIMIT_SECONDS} s") from error
    if process.returncode == 0:
        return process.stdout
    lines = process.stdout.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines[-3:]
    raise BuildError("a compiler failed", why=" | ".join(errors[:3]) or f"exit status {process.returncode}")
