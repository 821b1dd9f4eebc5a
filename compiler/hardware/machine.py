"""This machine as far as the choice of a backend depends on it: its GPUs and the TensorRT that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from .architectures import Product

_MODULES: Mapping[Product, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_DISTRIBUTIONS: Mapping[Product, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt-rtx": ("tensorrt-rtx",),
}


@dataclass(frozen=True)
class Device:
    """A GPU of this machine: its name and id as the driver gives them, and its SM number (``100``)."""

    name: str
    sm: int
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on: the GPUs, and the installed TensorRT products with their versions."""

    gpus: tuple[Device, ...] = ()
    products: Mapping[str, str] = field(default_factory=dict)

    @property
    def sms(self) -> tuple[int, ...]:
        """SM numbers of the GPUs, in the driver's order."""
        return tuple(gpu.sm for gpu in self.gpus)

    def has(self, product: Product) -> bool:
        """Whether a TensorRT product is installed."""
        return product in self.products


def look() -> Machine:
    """This machine, as its driver and its packages describe it; changes nothing and loads no TensorRT."""
    products = {str(product): found for product in _MODULES if (found := _product_version(product))}
    return Machine(_devices(), products)


def _product_version(product: Product) -> str:
    """Of an installed product; empty when it is not there."""
    if find_spec(_MODULES[product]) is None:
        return ""
    for name in _DISTRIBUTIONS[product]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def _devices() -> tuple[Device, ...]:
    """GPUs that this process may use; none without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not shutil.which("nvidia-smi") or (visible is not None and visible.strip() in ("", "-1")):
        return ()
    command = ["nvidia-smi", "--query-gpu=name,compute_cap,uuid", "--format=csv,noheader"]
    command += ["-i", visible] if visible else []
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(device for line in found.splitlines() if (device := _device(line)))


def _device(line: str) -> Device | None:
    """``NVIDIA B200, 10.0, GPU-8f...`` -> SM 100."""
    name, capability, uuid = (part.strip() for part in f",,{line}".rsplit(",", 2))
    digits = capability.split(".")
    if not name.strip(",") or len(digits) != 2 or not all(part.isdigit() for part in digits):
        return None
    return Device(name.strip(","), int("".join(digits)), uuid)
