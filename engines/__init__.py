"""Run engines: ``Engine.load(path)``, then ``engine.generate(prompts, SamplingParams())``. Needs no torch, no onnx."""

from __future__ import annotations

from .engine import Engine, Stream
from .results import Acceptance, Delta, RequestOutput
from .sampling import SamplingParams

__all__ = ["Acceptance", "Delta", "Engine", "RequestOutput", "SamplingParams", "Stream"]
