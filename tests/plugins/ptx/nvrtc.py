"""The PTX of an op's kernel, as NVRTC makes it for one GPU generation from the text that ships."""

from __future__ import annotations

import functools

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels.compile import load_nvrtc
from peagle.plugins.kernels.sources import OPTIONS, source
from peagle.plugins.ops import OPS


@functools.cache
def missing() -> str | None:
    """Return why there is no NVRTC, None if there is one."""
    try:
        load_nvrtc()
    except EnvironmentProblem as problem:
        return str(problem)
    return None


@functools.cache
def ptx_of(op: str, sm: int) -> str:
    """Return the text for compute capability ``sm``, with the options that the cubins are compiled with."""
    nvrtc, spec = load_nvrtc(), OPS[op]
    status, program = nvrtc.nvrtcCreateProgram(source(spec).encode(), f"{spec.folder}.cu".encode(), 0, [], [])
    assert not int(status)
    options = [f"-arch=compute_{sm}".encode(), *(option.encode() for option in OPTIONS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert not int(status), status
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytearray(size)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()
