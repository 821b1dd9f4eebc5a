"""What this machine and installation can build and run, and why not the rest."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .durable import free_bytes
from .parts import EXPORT_PACKAGES
from .stages import StageStore

RUNTIME_PACKAGES = ("peagle-compile", "numpy", "onnxruntime", "tokenizers", "typer", "rich")
_LATER = "not in this version of peagle-compile"


@dataclass(frozen=True)
class Ability:
    """Whether a backend can build and run here. An empty reason means that it can."""

    backend: str
    cannot_build: str
    cannot_run: str


@dataclass(frozen=True)
class Diagnosis:
    """Everything `doctor` prints."""

    python: str
    system: str
    cpu_threads: int
    memory_bytes: int
    cache: str
    cache_free_bytes: int
    folder_free_bytes: int
    gpus: tuple[str, ...]
    packages: dict[str, str | None]
    providers: tuple[str, ...]
    abilities: tuple[Ability, ...]

    @property
    def healthy(self) -> bool:
        """Whether at least one backend can run engines."""
        return any(not ability.cannot_run for ability in self.abilities)


def diagnose() -> Diagnosis:
    """Look at this machine; changes nothing."""
    packages = {name: _installed(name) for name in (*RUNTIME_PACKAGES, *EXPORT_PACKAGES)}
    providers, broken = _onnxruntime()
    missing = [name for name in EXPORT_PACKAGES if packages[name] is None]
    cannot_build = f"missing {', '.join(missing)}: pip install 'peagle-compile[export]'" if missing else ""
    root = StageStore.default().root
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu_threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        cache=str(root),
        cache_free_bytes=free_bytes(root),
        folder_free_bytes=free_bytes(Path.cwd()),
        gpus=_gpus(),
        packages=packages,
        providers=providers,
        abilities=(
            Ability("onnxruntime", cannot_build or broken, broken),
            Ability("tensorrt", _LATER, _LATER),
            Ability("tensorrt-rtx", _LATER, _LATER),
        ),
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _onnxruntime() -> tuple[tuple[str, ...], str]:
    """Its execution providers, and why it does not work if it does not."""
    try:
        import onnxruntime
    except Exception as error:  # a broken native library raises many things
        return (), f"onnxruntime cannot be imported: {error}"
    return tuple(onnxruntime.get_available_providers()), ""


def _gpus() -> tuple[str, ...]:
    """NVIDIA GPUs as the driver names them; none without a driver."""
    if not shutil.which("nvidia-smi"):
        return ()
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in found.splitlines() if line.strip())
