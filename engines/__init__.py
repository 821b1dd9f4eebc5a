"""Run engines: ``Engine.load(path)``, then ``engine.generate(prompts, SamplingParams())``. Needs no torch, no onnx."""

from __future__ import annotations

from ..plugins.errors import EnvironmentProblem, PeagleError, UsageError
from .engine import Engine
from .errors import EngineClosed, EngineFailed, PromptTooLong, QueueFull
from .requests.params import SamplingParams
from .requests.results import Acceptance, Delta, RequestOutput, TokenLogprob
from .requests.structured_outputs import StructuredOutputsParams
from .running.submission import AsyncSubmission, Stream, Submission

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
