"""peagle-compile: a large language model and its P-EAGLE drafter, compiled and run.

``from peagle import build, Engine, SamplingParams`` is the whole API. Names are imported when they are first used: a
host that only runs engines needs none of the packages that build them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler.api import build as build
    from .compiler.api import export as export
    from .compiler.api import quantize as quantize
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

# The wheels of ONNX Runtime report to their maker when they are imported and when a session is made, and keep an id of
# the device on disk. Only this, and only before that, keeps them from it; who sets it is obeyed.
# https://github.com/microsoft/onnxruntime/pull/27379
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "compiler.api": ("build", "export", "quantize", "verify"),
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
    "build",
    "export",
    "quantize",
    "show_progress",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
