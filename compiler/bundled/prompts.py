"""The bundled prompts: beginnings of Python files, used to choose K, to verify and to demonstrate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).parent / "texts" / "code.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One beginning to be continued."""

    id: str
    text: str


def code_prompts(limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` bundled prompts, all by default."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return [Prompt(**json.loads(line)) for line in lines][:limit]
