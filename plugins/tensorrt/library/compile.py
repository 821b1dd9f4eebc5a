"""Compile the plugin library for this machine's processor and the named GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...cpu.compile import Compiler, compile_shared, find_compilers, machine_name
from ...errors import UsageError
from ...kernels.compile import Cubin
from ...kernels.pack import Pack, obtain
from ...kernels.sources import TARGETS, kernel_ops
from .sources import OPTIONS, digest, files

COST = (
    "the plugin library is compiled on each machine; without this library, only Python programs that register "
    "the plugins of peagle.plugins.tensorrt can load the plans"
)
_OLDEST = 75  # oldest compute capability that TensorRT supports


@dataclass(frozen=True)
class PluginLibrary:
    """The plugins of all ops with a kernel, as a shared library for one ``machine`` type (``linux-x86_64``).

    ``sms`` are the compute capabilities of its kernels (90 is 9.0), ``digest`` identifies the source, and ``compiler``
    is the first line of the compiler's version output.
    """

    machine: str
    sms: tuple[int, ...]
    digest: str
    code: bytes
    compiler: str = ""


def compile_library(sms: Iterable[int] = TARGETS, packs: Sequence[Pack] = ()) -> PluginLibrary:
    """Compile the library with kernels for these compute capabilities; ``packs`` are searched for kernels first.

    Raises ``UsageError`` for an unsupported GPU, ``EnvironmentProblem`` if there is no C++ compiler or NVRTC is needed
    and missing, and ``BuildError`` with every compiler's output if all fail.
    """
    wanted = sorted(set(sms))
    if not wanted or wanted[0] < _OLDEST:
        raise UsageError(
            f"the plugin library does not support sm_{wanted[0]}" if wanted else "no GPU was specified",
            why=f"TensorRT supports sm_{_OLDEST} and newer"
            if wanted
            else "the plugin library is compiled for specific GPUs",
            fix=f"specify supported GPUs, such as {', '.join(f'sm_{sm}' for sm in TARGETS)}",
        )
    compilers = find_compilers(COST)
    found = {(cubin.op, cubin.sm): cubin for sm in wanted for op in kernel_ops() for cubin in [obtain(op, sm, packs)]}
    return compile_with_cubins(list(found.values()), compilers)


def compile_with_cubins(cubins: Sequence[Cubin], compilers: Sequence[Compiler] = ()) -> PluginLibrary:
    """Compile the library with these kernels; raises the errors of ``compile_library``."""
    code, compiler = compile_shared(files(cubins), OPTIONS, compilers or find_compilers(COST), "the plugin library")
    sms = tuple(sorted({cubin.sm for cubin in cubins}))
    return PluginLibrary(machine_name(), sms, digest(cubins), code, compiler)
