"""Runs engines: ``Engine.load(path)``, then ``engine.generate(prompts, SamplingParams())``.

Requires neither torch nor onnx. Names are imported on first use, so reading a manifest or the table of draft methods
loads no runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..plugins.errors import EnvironmentProblem as EnvironmentProblem
    from ..plugins.errors import PeagleError as PeagleError
    from ..plugins.errors import UsageError as UsageError
    from .engine import Engine as Engine
    from .errors import EngineClosed as EngineClosed
    from .errors import EngineFailed as EngineFailed
    from .errors import PromptTooLong as PromptTooLong
    from .errors import QueueFull as QueueFull
    from .requests.params import SamplingParams as SamplingParams
    from .requests.results import Acceptance as Acceptance
    from .requests.results import Delta as Delta
    from .requests.results import RequestOutput as RequestOutput
    from .requests.results import TokenLogprob as TokenLogprob
    from .requests.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
    from .running.submission import AsyncSubmission as AsyncSubmission
    from .running.submission import Stream as Stream
    from .running.submission import Submission as Submission

_HOMES = {
    "..plugins.errors": ("EnvironmentProblem", "PeagleError", "UsageError"),
    ".engine": ("Engine",),
    ".errors": ("EngineClosed", "EngineFailed", "PromptTooLong", "QueueFull"),
    ".requests.params": ("SamplingParams",),
    ".requests.results": ("Acceptance", "Delta", "RequestOutput", "TokenLogprob"),
    ".requests.structured_outputs": ("StructuredOutputsParams",),
    ".running.submission": ("AsyncSubmission", "Stream", "Submission"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "Acceptance",
    "AsyncSubmission",
    "Delta",
    "Engine",
    "EngineClosed",
    "EngineFailed",
    "EnvironmentProblem",
    "PeagleError",
    "PromptTooLong",
    "QueueFull",
    "RequestOutput",
    "SamplingParams",
    "Stream",
    "StructuredOutputsParams",
    "Submission",
    "TokenLogprob",
    "UsageError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
