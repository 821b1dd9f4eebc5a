"""peagle-compile: compiles and runs a large language model with its P-EAGLE drafter.

The API is ``from peagle import build, Engine, SamplingParams``. Names are imported on first use: a host that only runs
engines needs none of the packages that build them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler.api import add_drafter as add_drafter
    from .compiler.api import bench as bench
    from .compiler.api import build as build
    from .compiler.api import export as export
    from .compiler.api import list_drafters as list_drafters
    from .compiler.api import quantize as quantize
    from .compiler.api import remove_drafter as remove_drafter
    from .compiler.api import tune as tune
    from .compiler.api import verify as verify
    from .compiler.console.progress import Progress as Progress
    from .compiler.console.progress import show_progress as show_progress
    from .engines import Engine as Engine
    from .engines import SamplingParams as SamplingParams
    from .plugins.errors import BuildError as BuildError
    from .plugins.errors import EnvironmentProblem as EnvironmentProblem
    from .plugins.errors import PeagleError as PeagleError
    from .plugins.errors import UsageError as UsageError
    from .plugins.errors import VerificationError as VerificationError

# ONNX Runtime's wheels send telemetry on import and when a session is created, and store a device id on disk. Only this
# variable, set before the import, prevents it; a value set by the user is kept.
# https://github.com/microsoft/onnxruntime/pull/27379
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "compiler.api": (
        "add_drafter",
        "bench",
        "build",
        "export",
        "list_drafters",
        "quantize",
        "remove_drafter",
        "tune",
        "verify",
    ),
    "compiler.console.progress": ("Progress", "show_progress"),
    "engines": ("Engine", "SamplingParams"),
    "plugins.errors": ("BuildError", "EnvironmentProblem", "PeagleError", "UsageError", "VerificationError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "BuildError",
    "Engine",
    "EnvironmentProblem",
    "PeagleError",
    "Progress",
    "SamplingParams",
    "UsageError",
    "VerificationError",
    "add_drafter",
    "bench",
    "build",
    "export",
    "list_drafters",
    "quantize",
    "remove_drafter",
    "show_progress",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
