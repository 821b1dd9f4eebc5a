"""Evaluation prompts of engines and heads: HumanEval, and the project's own chat prompts."""

from __future__ import annotations

import json
from pathlib import Path

from peagle.compiler.bench.workloads import human_eval
from peagle.compiler.bundled.prompts import TASKS, questions, tasks

CHAT_FILE = Path(__file__).with_name("chat_prompts.jsonl")


def chat() -> list[str]:
    """Return the chat prompts stored beside this file."""
    return [json.loads(line)["text"] for line in CHAT_FILE.read_text().splitlines()]


def evaluation_prompts(human_eval_source: Path) -> list[str]:
    """Return all prompts that no head may be trained on: both sets, and the bundled questions and tasks."""
    bundled = [*questions(), *(task for name in TASKS for task in tasks(name))]
    return [*human_eval(human_eval_source), *chat(), *(prompt.text for prompt in bundled)]
