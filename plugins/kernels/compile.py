"""Compile an op's kernel for one GPU generation: nvcc ahead of time, NVRTC at run time."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from ..errors import REPORT, BuildError, EnvironmentProblem
from ..op_spec import OpSpec
from ..temporary_folder import temporary_folder
from .sources import OPTIONS, digest, entries, source


@dataclass(frozen=True)
class Usage:
    """ptxas statistics of an entry point: registers per thread, bytes spilled (stores and loads), static shared."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code of one op's kernel for GPUs of compute capability ``sm`` (90 is 9.0) and later minor versions.

    ``digest`` identifies the source; ``usage`` is keyed by entry point.
    """

    op: str
    sm: int
    digest: str
    code: bytes
    usage: Mapping[str, Usage]
    compiler: str = ""


def compile_nvcc(op: OpSpec, sm: int) -> Cubin:
    """Compile with nvcc: the one that ``$NVCC`` names, otherwise the wheel's, otherwise the one on the path.

    Raises ``EnvironmentProblem`` if there is none or it does not run, and ``BuildError`` with its output if it rejects
    the code.
    """
    nvcc = find_nvcc()
    name = f"{op.folder}.cu"
    with tempfile.TemporaryDirectory(prefix="peagle-nvcc-", dir=temporary_folder()) as folder:
        (Path(folder) / name).write_text(source(op), encoding="utf-8")
        # Relative names in a private folder keep paths of this machine out of the machine code.
        arguments = ["-cubin", f"-arch=sm_{sm}", *OPTIONS, "-Xptxas", "-v", "-o", "out.cubin", name]
        log = _run([str(nvcc), *arguments], folder, f"nvcc rejected the kernel of {op.name} for sm_{sm}")
        code = (Path(folder) / "out.cubin").read_bytes()
    return Cubin(op.name, sm, digest(op), code, read_usage(log, entries(op)), f"nvcc {nvcc_version(nvcc)}")


def find_nvcc() -> Path:
    """Return the nvcc to use. Raises ``EnvironmentProblem`` if there is none."""
    name = os.environ.get("NVCC")
    path = shutil.which(name) if name else _wheel_nvcc() or shutil.which("nvcc")
    if path is None:
        raise EnvironmentProblem(
            f"$NVCC is not a program: {name}" if name else "nvcc was not found",
            why="nvcc compiles the CUDA kernels ahead of time",
            fix="run `pip install nvidia-cuda-nvcc`, or set NVCC to the path of an nvcc 12.8 or newer",
        )
    return Path(path)


def nvcc_version(nvcc: Path) -> str:
    """Return the compiler's release, such as ``13.0``."""
    log = _run([str(nvcc), "--version"], None, f"cannot read the version of {nvcc}")
    match = re.search(r"release (\d+\.\d+)", log)
    return match[1] if match else "of unknown version"


def _wheel_nvcc() -> str | None:
    """Return nvcc from the package nvidia-cuda-nvcc, newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    paths = [path for root in roots for path in root.glob("cu*/bin/nvcc")]
    newest = sorted(paths, key=lambda path: int(re.sub(r"\D", "", path.parts[-3]) or 0))
    return str(newest[-1]) if newest else None


def _run(command: list[str], folder: str | None, message: str) -> str:
    """Return everything the command printed."""
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
        )
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot run {command[0]}: {error}", fix="set NVCC to the path of a working nvcc"
        ) from error
    if process.returncode == 0:
        return process.stdout
    lines = process.stdout.strip().splitlines()
    if re.search(r"host compiler|(gcc|g\+\+): not found", process.stdout):
        raise EnvironmentProblem(f"{message}: no C++ compiler was found", why=_tail(lines), fix="install g++")
    raise BuildError(message, why=_tail(lines), fix="use an nvcc that supports this GPU (12.8 or newer)")


def _tail(lines: list[str]) -> str:
    """Return the last lines of a log, preferring errors; a full log would hide the cause."""
    errors = [line for line in lines if "error" in line.lower()]
    return " | ".join((errors or lines)[:5])


def compile_nvrtc(op: OpSpec, sm: int) -> Cubin:
    """Compile with NVRTC, which needs neither a GPU nor a C++ compiler.

    Raises ``EnvironmentProblem`` if it is missing or too old for the GPU, and ``BuildError`` with its output if it
    rejects the code.
    """
    nvrtc = load_nvrtc()
    text = source(op)
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), f"{op.folder}.cu".encode(), 0, [], []))
    try:
        # With a driver present, NVRTC keeps what it compiled, and its log then lacks the statistics.
        arguments = f"-arch=sm_{sm}", *OPTIONS, "--no-cache", "--ptxas-options=-v"
        options = [option.encode() for option in arguments]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _refused(nvrtc, f"NVRTC rejected the kernel of {op.name} for sm_{sm}", log, status)
        code = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(op.name, sm, digest(op), bytes(code), read_usage(log, entries(op)), f"NVRTC {nvrtc_version(nvrtc)}")


def load_nvrtc() -> Any:
    """Return ``cuda.bindings.nvrtc`` with its library loaded. Raises ``EnvironmentProblem`` if either is missing."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the loader's exception types differ between releases
        raise EnvironmentProblem(
            "CUDA kernels cannot be compiled on this machine",
            why=f"NVRTC is missing: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            fix="run `pip install 'cuda-bindings>=13,<14' 'nvidia-cuda-nvrtc>=13,<14'`",
        ) from error
    return nvrtc


def nvrtc_identity() -> str:
    """Return what tells compilers that ``compile_nvrtc`` could use apart, without loading a packaged one.

    Raises ``EnvironmentProblem`` if there is none.
    """
    try:
        return f"NVRTC {metadata.version('nvidia-cuda-nvrtc')}"
    except metadata.PackageNotFoundError:  # that of a CUDA toolkit, which tells its release only
        return f"NVRTC {nvrtc_version(load_nvrtc())}"


def nvrtc_version(nvrtc: Any) -> str:
    """Return the compiler's release, such as ``13.0``."""
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """Return the result of a call. A failure here is not caused by the kernel's source."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise EnvironmentProblem(f"NVRTC failed: {status.name}", fix="reinstall nvidia-cuda-nvrtc")
    return values[0] if values else None


def _log(nvrtc: Any, program: Any) -> str:
    raw = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, raw))
    return raw.rstrip(b"\0").decode(errors="replace")


def _refused(nvrtc: Any, message: str, log: str, status: Any) -> NoReturn:
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
        raise EnvironmentProblem(message, why=_tail(log.splitlines()), fix="install a newer nvidia-cuda-nvrtc")
    raise BuildError(message, why=_tail(log.splitlines()) or status.name, fix=REPORT)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def read_usage(log: str, names: tuple[str, ...]) -> dict[str, Usage]:
    """Parse the statistics of each entry point from ``ptxas -v``.

    Raises ``BuildError`` unless exactly these are listed.
    """
    usage: dict[str, Usage] = {}
    for part in re.split(r"(?=Compiling entry function)", log)[1:]:
        entry, registers = _ENTRY.search(part), _REGISTERS.search(part)
        if entry and registers:
            spills, shared = _SPILLS.search(part), _SHARED.search(part)
            spilled = int(spills[1]) + int(spills[2]) if spills else 0
            usage[entry[1]] = Usage(int(registers[1]), spilled, int(shared[1]) if shared else 0)
    if set(usage) != set(names):
        raise BuildError(
            "the entry points of the compiled kernel differ from its spec",
            why=f"compiled: {', '.join(sorted(usage)) or 'none'}; expected: {', '.join(names)}",
            fix=REPORT,
        )
    return {name: usage[name] for name in names}
