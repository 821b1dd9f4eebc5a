"""What this machine and installation can build and run, and why not the rest."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...plugins.errors import PeagleError
from ...plugins.optional_packages import EXTRAS, install, is_there
from ...plugins.tensorrt.import_tensorrt import EXTRA_OF, Product
from ..hardware.gpus import RTX_SMS, sm_name
from ..hardware.machine import LocalGpu, Machine, look
from ..hardware.packages import EXPORT_PACKAGES
from ..request.choose_backend import choose_backend
from ..request.request import ONNXRUNTIME
from ..store.atomic_files import free_bytes
from ..store.cache_folder import cache_root, require_trusted
from .precision_support import PrecisionSupport, support

RUNTIME_PACKAGES = ("peagle-compile", "numpy", "onnxruntime", "tokenizers", "typer", "rich")
CUDA_PACKAGES = ("cuda-core", "cuda-bindings")


@dataclass(frozen=True)
class Ability:
    """Whether a backend can build, from checkpoints or an export, and run here, and in which precisions.

    An empty reason means that it can.
    """

    backend: str
    cannot_build: str
    cannot_build_exports: str
    cannot_run: str
    precisions: tuple[PrecisionSupport, ...]


@dataclass(frozen=True)
class Cuda:
    """The tools that run and compile kernels. Empty: not there; ``nvrtc_problem`` says why."""

    driver: str
    driver_supports: str
    nvrtc: str
    nvrtc_problem: str
    nvcc: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything `doctor` prints.

    ``cache_problem`` says why no build uses the cache; ``rtx_link`` is about a file that TensorRT-RTX's wheel lacks.
    """

    python: str
    system: str
    cpu_threads: int
    memory_bytes: int
    cache: str
    cache_free_bytes: int
    cache_problem: str
    folder_free_bytes: int
    gpus: tuple[LocalGpu, ...]
    cuda: Cuda
    packages: dict[str, str | None]
    providers: tuple[str, ...]
    cpu_compiler: str
    rtx_link: str
    abilities: tuple[Ability, ...]

    @property
    def healthy(self) -> bool:
        """Whether at least one backend can run engines."""
        return any(not ability.cannot_run for ability in self.abilities)

    def as_json(self) -> dict[str, Any]:
        """Every field, and whether it is healthy; of a GPU its architecture."""
        gpus = [
            {"name": gpu.name, "sm": sm_name(gpu.sm), "memory": gpu.memory, "driver": gpu.driver} for gpu in self.gpus
        ]
        return asdict(self) | {"gpus": gpus, "healthy": self.healthy}


def diagnose() -> Diagnosis:
    """Look at this machine; changes nothing."""
    machine = look()
    packages = {name: _installed(name) for name in (*RUNTIME_PACKAGES, *EXPORT_PACKAGES, *CUDA_PACKAGES)}
    packages |= {product: machine.products.get(product) for product in ("tensorrt", "tensorrt-rtx")}
    providers, broken = _onnxruntime()
    missing = [name for module, name in EXTRAS["export"].items() if not is_there(module)]
    cannot_build = f"missing {', '.join(missing)}: {install('export')}" if missing else ""
    root = cache_root()
    cuda = _cuda(machine.gpus)
    link, link_problem = _rtx_link()
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu_threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        cache=str(root),
        cache_free_bytes=free_bytes(root),
        cache_problem=_cache_problem(root),
        folder_free_bytes=free_bytes(Path.cwd()),
        gpus=machine.gpus,
        cuda=cuda,
        packages=packages,
        providers=providers,
        cpu_compiler=_cpu_compiler(),
        rtx_link=link,
        abilities=(
            Ability(
                ONNXRUNTIME, cannot_build or broken, "exports are for TensorRT", broken, support(ONNXRUNTIME, machine)
            ),
            _tensorrt("tensorrt", machine, cannot_build, cuda.nvrtc_problem, packages, ""),
            _tensorrt("tensorrt-rtx", machine, cannot_build, cuda.nvrtc_problem, packages, link_problem),
        ),
    )


def _tensorrt(
    product: Product,
    machine: Machine,
    cannot_trace: str,
    cannot_compile: str,
    packages: Mapping[str, str | None],
    link_problem: str,
) -> Ability:
    """Whether a TensorRT product builds and runs; both read a plan on a GPU of theirs, TensorRT builds there too."""
    ours = [sm_name(sm) for sm in machine.sms if product == "tensorrt" or sm in RTX_SMS]
    installed = "" if product in machine.products else f"not installed: {install(EXTRA_OF[product])}"
    cannot_plan = installed or cannot_compile or link_problem
    if not cannot_plan:
        cannot_plan = _problem(lambda: choose_backend(product, None, [] if ours else _named(product), machine))
    cannot_run = (
        installed
        or link_problem
        or ("" if packages["cuda-core"] else f"cuda-core is not installed: {install(EXTRA_OF[product])}")
    )
    if not cannot_run and not ours:
        architectures = ", ".join(sm_name(sm) for sm in machine.sms)
        cannot_run = f"it has no code for {architectures}" if architectures else "there is no NVIDIA GPU"
    return Ability(
        product, installed or cannot_trace or cannot_plan, cannot_plan, cannot_run, support(product, machine)
    )


def _cache_problem(root: Path) -> str:
    """Why no build uses the cache, and the cure; empty when builds use it."""
    try:
        require_trusted(root)
    except PeagleError as error:
        return error.in_a_line
    return ""


def _named(product: str) -> list[str]:
    """A GPU that a build could name where there is none."""
    return [sm_name(RTX_SMS[-2])] if product == "tensorrt-rtx" else []


def _problem(attempt: Callable[[], object]) -> str:
    """Why it cannot be done; empty when it can."""
    try:
        attempt()
    except PeagleError as error:
        return error.why or error.what
    return ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _onnxruntime() -> tuple[tuple[str, ...], str]:
    """The execution providers of ONNX Runtime, and why it does not work if it does not."""
    try:
        import onnxruntime
    except Exception as error:  # a broken native library raises many things
        return (), f"onnxruntime cannot be imported: {error}"
    return tuple(onnxruntime.get_available_providers()), ""


def _cpu_compiler() -> str:
    """The command of the compiler that CPU kernels are tried with first; empty where there is none."""
    from ...plugins.cpu.compile import find_compilers

    try:
        return " ".join(find_compilers()[0].command)
    except PeagleError:
        return ""


def _rtx_link() -> tuple[str, str]:
    """Whether the parser of TensorRT-RTX finds its library, in words, and why it cannot be used if it cannot."""
    from ...plugins.tensorrt import import_tensorrt

    link = import_tensorrt.link_state()
    where = f" in {link.folder}" if link.folder else ""
    words = {
        "present": f"present{where}",
        "missing": f"missing{where}; the first build makes it",
        "cured": f"made{where}",
        "cannot": f"missing{where}, and cannot be made: {link.why}",
        "absent": "",
    }[link.state]
    return words, words if link.state == "cannot" else ""


def _cuda(gpus: tuple[LocalGpu, ...]) -> Cuda:
    from ...plugins.kernels import compile as compilers

    nvrtc, nvcc, problem = "", "", ""
    try:
        nvrtc = compilers.nvrtc_version(compilers.load_nvrtc())
    except PeagleError as error:
        problem = f"{error.why}: {error.fix}"
    try:
        path = compilers.find_nvcc()
        nvcc = f"{compilers.nvcc_version(path)}, {path}"
    except PeagleError:  # it is needed by those alone who make packages
        nvcc = ""
    return Cuda(gpus[0].driver if gpus else "", _driver_cuda(), nvrtc, problem, nvcc)


def _driver_cuda() -> str:
    """The newest CUDA that the driver runs, such as ``13.0``; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(number)):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
