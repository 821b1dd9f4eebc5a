"""The PTX of an op's kernel for one GPU generation, from the text and with the options that ship.

NVRTC compiles at first use what nvcc did not compile ahead of time. Their texts differ where a kernel is large.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels.compile import find_nvcc, load_nvrtc
from peagle.plugins.kernels.sources import OPTIONS, source
from peagle.plugins.ops import OPS

NVRTC, NVCC = "NVRTC", "nvcc"


@functools.cache
def missing(compiler: str = NVRTC) -> str | None:
    """Return why a compiler cannot be used, None if it can."""
    try:
        load_nvrtc() if compiler == NVRTC else find_nvcc()
    except EnvironmentProblem as problem:
        return str(problem)
    return None if compiler == NVRTC or shutil.which("g++") else "nvcc needs g++"


def ptx_of(op: str, sm: int, compiler: str = NVRTC) -> str:
    """Return the PTX for compute capability ``sm``, compiled once."""
    return _compiled(op, sm, compiler)


@functools.cache
def _compiled(op: str, sm: int, compiler: str) -> str:
    spec = OPS[op]
    if compiler == NVCC:
        with tempfile.TemporaryDirectory(prefix="peagle-ptx-") as folder:
            (Path(folder) / f"{spec.folder}.cu").write_text(source(spec))
            command = [str(find_nvcc()), "-ptx", f"-arch=compute_{sm}", *OPTIONS, "-o", "out.ptx", f"{spec.folder}.cu"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            return (Path(folder) / "out.ptx").read_text()
    nvrtc = load_nvrtc()
    status, program = nvrtc.nvrtcCreateProgram(source(spec).encode(), f"{spec.folder}.cu".encode(), 0, [], [])
    assert not int(status), status
    options = [f"-arch=compute_{sm}".encode(), *(option.encode() for option in OPTIONS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert not int(status), status
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytearray(size)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()
