"""The bundled prompts, used to choose K, to verify, to measure and to demonstrate. No head is trained on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from ...engines import Engine

_TEXTS = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class Prompt:
    """One text to be continued, or to be answered."""

    id: str
    text: str


def code_prompts(limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` beginnings of Python files, all by default."""
    return _read("code")[:limit]


def questions(limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` user turns for a chat model, all by default: code first, then prose."""
    return _read("questions")[:limit]


def usual_prompts(engine: Engine, limit: int | None = None) -> list[list[int]]:
    """The first ``limit`` prompts as token ids, such as the engine is likely to get.

    Questions in its own chat template; beginnings of Python files where it has none, or none that takes a question.
    """
    try:
        if engine.can_chat:
            asked = ([{"role": "user", "content": prompt.text}] for prompt in questions(limit))
            return [engine.chat_prompt(messages)[1] for messages in asked]
    except (UsageError, EnvironmentProblem):
        pass
    return [engine.tokenizer.encode(prompt.text) for prompt in code_prompts(limit)]


def _read(name: str) -> list[Prompt]:
    lines = (_TEXTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Prompt(**json.loads(line)) for line in lines]
