"""Bundled prompts for choosing K, verification, benchmarks and demos. No head was trained on them."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from ...engines import Engine

_TEXTS = Path(__file__).parent / "texts"
TASKS = ("summarise", "translate", "json", "tools")
_WORDS = (8, 48)  # of a varied prompt, unless its text ends before


@dataclass(frozen=True)
class Prompt:
    """A text to continue or a question; ``kind`` is its category, such as ``code`` or ``prose``."""

    id: str
    text: str
    kind: str = "code"


def code_prompts(limit: int | None = None) -> list[Prompt]:
    """Return the first ``limit`` beginnings of Python files, all by default."""
    return _read("code")[:limit]


def questions(limit: int | None = None) -> list[Prompt]:
    """Return the first ``limit`` user turns for a chat model, all by default: code first, then prose."""
    return _read("questions")[:limit]


def tasks(name: str) -> list[Prompt]:
    """Return the user turns of one of ``TASKS`` for a chat model."""
    return _read(f"workloads/{name}")


def varied_prompts(first: int, count: int) -> list[Prompt]:
    """Return ``count`` prompts of an endless series, from number ``first`` on: pieces of bundled texts of all kinds.

    The number alone determines a prompt.
    """
    every = [*code_prompts(), *questions(), *(prompt for name in TASKS for prompt in tasks(name))]
    return [_piece(number, every) for number in range(first, first + count)]


def _piece(number: int, every: list[Prompt]) -> Prompt:
    dice = random.Random(number)
    text = dice.choice(every)
    words = re.findall(r"\S+\s*", text.text)
    start, length = dice.randrange(len(words)), dice.randint(*_WORDS)
    return Prompt(f"{number}: {text.id}", "".join(words[start : start + length]), text.kind)


def default_prompts(engine: Engine, limit: int | None = None) -> list[list[int]]:
    """Return up to ``limit`` typical prompts of all kinds as token ids.

    Questions use the engine's own chat template; without a usable one, beginnings of Python files replace them.
    """
    try:
        if engine.can_chat:
            every = questions()
            count = len(every) if limit is None else min(limit, len(every))
            spread = (every[i * len(every) // count] for i in range(count))
            return [question_ids(engine, question) for question in spread]
    except (UsageError, EnvironmentProblem):
        pass
    return [engine.tokenizer.encode(prompt.text) for prompt in code_prompts(limit)]


def question_ids(engine: Engine, question: Prompt) -> list[int]:
    """Encode a question as a one-turn dialogue, in the engine's chat template. Raises what rendering raises."""
    return engine.chat_prompt([{"role": "user", "content": question.text}])[1]


def _read(name: str) -> list[Prompt]:
    lines = (_TEXTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Prompt(**json.loads(line)) for line in lines]
