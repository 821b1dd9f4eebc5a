"""Run engines: ``Engine.load(path)``, then ``engine.generate(prompts, SamplingParams())``. Needs no torch, no onnx."""

from __future__ import annotations

from .engine import Engine
from .requests.params import SamplingParams
from .requests.results import Acceptance, Delta, RequestOutput
from .stream import Stream

__all__ = ["Acceptance", "Delta", "Engine", "RequestOutput", "SamplingParams", "Stream"]
