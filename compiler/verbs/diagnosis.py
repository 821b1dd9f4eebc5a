"""Diagnosis of this machine: which backends it can build for and run, and the reasons for the others."""

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
from ...plugins.optional_packages import EXTRAS, install, is_installed
from ...plugins.tensorrt.products import PRODUCTS, TensorRTProduct
from ..hardware.gpus import sm_name
from ..hardware.machine import LocalGpu, Machine, inspect_machine
from ..hardware.packages import EXPORT_PACKAGES
from ..hardware.processors import processors
from ..request.choose_backend import choose_backend
from ..request.request import ONNXRUNTIME
from ..store.atomic_files import free_bytes
from ..store.cache_folder import cache_root, require_folder, require_trusted
from .precision_support import PrecisionSupport, support

RUNTIME_PACKAGES = ("peagle-compile", "numpy", "onnxruntime", "tokenizers", "typer", "rich")
CUDA_PACKAGES = ("cuda-core", "cuda-bindings")


@dataclass(frozen=True)
class Ability:
    """The abilities of a backend here: to build from checkpoints or an export, to run, and its precisions.

    Each ``cannot_...`` is a reason; an empty one means that it can.
    """

    backend: str
    cannot_build: str
    cannot_build_exports: str
    cannot_run: str
    precisions: tuple[PrecisionSupport, ...]


@dataclass(frozen=True)
class Cuda:
    """Versions of the CUDA tools; empty for a missing one. ``nvrtc_problem`` is the reason why NVRTC is missing."""

    driver: str
    driver_supports: str
    nvrtc: str
    nvrtc_problem: str
    nvcc: str


@dataclass(frozen=True)
class Diagnosis:
    """The content of `doctor`'s report.

    ``cache_problem`` is the reason why builds cannot use the cache; ``rtx_link`` is the state of a library link that
    the TensorRT-RTX wheel lacks. ``gpu_problem`` is the reason if the GPUs are unknown.
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
    gpu_problem: str
    cuda: Cuda
    packages: dict[str, str | None]
    providers: tuple[str, ...]
    cpu_compiler: str
    rtx_link: str
    abilities: tuple[Ability, ...]

    @property
    def healthy(self) -> bool:
        """True if at least one backend can run engines."""
        return any(not ability.cannot_run for ability in self.abilities)

    def as_json(self) -> dict[str, Any]:
        """Return every field and ``healthy``, with GPU architectures by name."""
        gpus = [
            {"name": gpu.name, "sm": sm_name(gpu.sm), "memory": gpu.memory, "driver": gpu.driver} for gpu in self.gpus
        ]
        return asdict(self) | {"gpus": gpus, "healthy": self.healthy}


def diagnose() -> Diagnosis:
    """Inspect this machine without changing anything."""
    machine = inspect_machine()
    packages = {name: _installed(name) for name in (*RUNTIME_PACKAGES, *EXPORT_PACKAGES, *CUDA_PACKAGES)}
    packages |= {product: machine.products.get(product) for product in PRODUCTS}
    providers, broken = _onnxruntime()
    missing = [name for module, name in EXTRAS["export"].items() if not is_installed(module)]
    cannot_build = f"missing packages: {', '.join(missing)}; run `{install('export')}`" if missing else ""
    root = cache_root()
    cuda = _cuda(machine.gpus)
    link, link_problem = _rtx_link()
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu_threads=processors(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        cache=str(root),
        cache_free_bytes=free_bytes(root),
        cache_problem=_cache_problem(root),
        folder_free_bytes=free_bytes(Path.cwd()),
        gpus=machine.gpus,
        gpu_problem=machine.gpu_problem,
        cuda=cuda,
        packages=packages,
        providers=providers,
        cpu_compiler=_cpu_compiler(),
        rtx_link=link,
        abilities=(
            Ability(
                ONNXRUNTIME, cannot_build or broken, "exports are for TensorRT", broken, support(ONNXRUNTIME, machine)
            ),
            *(
                _tensorrt(each, machine, cannot_build, cuda.nvrtc_problem, packages, link_problem)
                for each in PRODUCTS.values()
            ),
        ),
    )


def _tensorrt(
    product: TensorRTProduct,
    machine: Machine,
    cannot_trace: str,
    cannot_compile: str,
    packages: Mapping[str, str | None],
    link_problem: str,
) -> Ability:
    """Return the abilities of a TensorRT product. All run plans on a supported GPU; some also build only there."""
    name, link_problem = product.name, link_problem if product.needs_link else ""
    supported = [sm_name(sm) for sm in machine.sms if product.supports(sm)]
    installed = "" if machine.has(name) else f"not installed; run `{install(product.extra)}`"
    cannot_plan = installed or cannot_compile or link_problem
    if not cannot_plan:
        cannot_plan = _problem(lambda: choose_backend(name, None, [] if supported else _named(product), machine))
    cannot_run = (
        installed
        or link_problem
        or ("" if packages["cuda-core"] else f"cuda-core is not installed; run `{install(product.extra)}`")
    )
    if not cannot_run and not supported:
        architectures = ", ".join(sm_name(sm) for sm in machine.sms)
        cannot_run = f"{name} does not support {architectures}" if architectures else machine.why_no_gpu
    return Ability(name, installed or cannot_trace or cannot_plan, cannot_plan, cannot_run, support(name, machine))


def _cache_problem(root: Path) -> str:
    """Return the reason why builds cannot use the cache, with the fix; empty if they can."""
    try:
        require_folder(root)
        require_trusted(root)
    except PeagleError as error:
        return error.one_line
    return ""


def _named(product: TensorRTProduct) -> list[str]:
    """Return a GPU to name in a trial build on a machine that has none."""
    return [sm_name(product.sms[-2])] if product.builds_ahead else []


def _problem(attempt: Callable[[], object]) -> str:
    """Return the reason why an attempt fails; empty if it succeeds."""
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
    """Return the execution providers of ONNX Runtime, and the reason if it does not work."""
    try:
        import onnxruntime
    except Exception as error:  # a broken native library raises many things
        return (), f"onnxruntime cannot be imported: {error}"
    return tuple(onnxruntime.get_available_providers()), ""


def _cpu_compiler() -> str:
    """Return the command of the first compiler for CPU kernels; empty if there is none."""
    from ...plugins.cpu.compile import find_compilers

    try:
        return " ".join(find_compilers()[0].command)
    except PeagleError:
        return ""


def _rtx_link() -> tuple[str, str]:
    """Describe whether the parser of TensorRT-RTX finds its library, and the problem if it cannot."""
    from ...plugins.tensorrt import import_tensorrt

    link = import_tensorrt.link_state()
    folder_hint = f" in {link.folder}" if link.folder else ""
    words = {
        "present": f"present{folder_hint}",
        "missing": f"missing{folder_hint}; the first build creates it",
        "cured": f"created{folder_hint}",
        "cannot": f"missing{folder_hint}, and cannot be created: {link.why}",
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
    except PeagleError:  # needed only for packaging
        nvcc = ""
    return Cuda(gpus[0].driver if gpus else "", _driver_cuda(), nvrtc, problem, nvcc)


def _driver_cuda() -> str:
    """Return the newest CUDA version that the driver supports, such as ``13.0``; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        number = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(number)):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
