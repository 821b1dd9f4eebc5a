"""Facts about this machine: its GPUs and the installed TensorRT, for choosing a backend, and its processor."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import is_installed
from ...plugins.tensorrt.products import PRODUCTS, TensorRTProduct
from .gpus import sm_name

_PACKAGES = ("peagle-compile", "onnxruntime", *PRODUCTS, "numpy")  # that determine what an engine says
_PATIENCE = 30  # seconds; without persistence mode, the driver first initializes every GPU
_FIELDS = ("name", "compute_cap", "uuid", "memory.total", "driver_version")


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine as reported by the driver, with its SM number (``100``)."""

    name: str
    sm: int
    uuid: str = ""
    memory: str = ""
    driver: str = ""

    @property
    def in_words(self) -> str:
        """The name and the driver."""
        return f"{self.name}, driver {self.driver}"


@dataclass(frozen=True)
class Machine:
    """The GPUs, and the installed TensorRT products with their versions.

    ``gpu_problem`` is the reason if the GPUs are unknown.
    """

    gpus: tuple[LocalGpu, ...] = ()
    products: Mapping[str, str] = field(default_factory=dict)
    gpu_problem: str = ""

    @property
    def why_no_gpu(self) -> str:
        """The reason why there are no ``gpus``."""
        return self.gpu_problem or "there is no NVIDIA GPU"

    @property
    def sms(self) -> tuple[int, ...]:
        """SM numbers of the GPUs, in the driver's order."""
        return tuple(gpu.sm for gpu in self.gpus)

    def builds_on(self, gpus: Collection[str]) -> LocalGpu | None:
        """Return the GPU on which TensorRT builds for ``gpus`` (``sm_100``): the first one of these; None without."""
        return next((gpu for gpu in self.gpus if sm_name(gpu.sm) in gpus), None)

    def with_known_gpus(self) -> Machine:
        """Return this machine, for a build on one of its GPUs. Raises ``EnvironmentProblem`` if they are unknown."""
        if self.gpu_problem:
            raise EnvironmentProblem(
                "TensorRT cannot build on this machine",
                why=self.gpu_problem,
                fix="run `nvidia-smi` to see what is wrong, and then the same command again",
            )
        return self

    def has(self, product: str) -> bool:
        """Return True if a TensorRT product is installed."""
        return product in self.products


def inspect_machine() -> Machine:
    """Inspect this machine through its driver and its packages; changes nothing and does not load TensorRT."""
    products = {name: number for name, product in PRODUCTS.items() if (number := _product_version(product))}
    gpus, problem = _local_gpus()
    return Machine(gpus, products, problem)


def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system does not report the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def processor_in_words() -> str:
    """Return the processor, the number of CPUs and the system of this machine in one line."""
    return f"{processor_name()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"


def versions_in_words() -> str:
    """Return the versions of Python and of the packages that run engines, in one line."""
    found = [f"{name} {number}" for name in _PACKAGES if (number := _installed(name))]
    return ", ".join([f"Python {platform.python_version()}", *found])


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _product_version(product: TensorRTProduct) -> str:
    """Return the version of an installed product; empty if it is not installed."""
    if not is_installed(product.module):
        return ""
    return next(filter(None, map(_installed, product.distributions)), "unknown")


def _local_gpus() -> tuple[tuple[LocalGpu, ...], str]:
    """Return the GPUs available to this process, none without a driver; and the reason if they are unknown."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not shutil.which("nvidia-smi") or (visible is not None and visible.strip() in ("", "-1")):
        return (), ""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    command += ["-i", visible] if visible else []
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout
    except subprocess.TimeoutExpired:
        return (), f"the GPUs are unknown, because nvidia-smi did not answer within {_PATIENCE} seconds"
    except (OSError, subprocess.SubprocessError):
        return (), ""
    return tuple(gpu for line in text.splitlines() if (gpu := _local_gpu(line))), ""


def _local_gpu(line: str) -> LocalGpu | None:
    """Parse a line such as ``NVIDIA B200, 10.0, GPU-8f..., 183359 MiB, 580.65.06``, which has SM 100."""
    cells = [cell.strip() for cell in line.rsplit(",", len(_FIELDS) - 1)]
    if len(cells) != len(_FIELDS) or not cells[0]:
        return None
    digits = cells[1].split(".")
    if len(digits) != 2 or not all(part.isdigit() for part in digits):
        return None
    return LocalGpu(cells[0], int("".join(digits)), *cells[2:])
