"""Prompt files: the formats of public question sets, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.bench.prompt_file import read_prompts
from peagle.compiler.bundled.prompts import Prompt
from peagle.compiler.console import input_text
from peagle.plugins.errors import UsageError

USER = {"role": "user", "content": "Hello?"}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        # Spec-Bench
        ({"question_id": 81, "category": "writing", "turns": ["Hello?", "More."], "reference": []},
         Prompt("81", "Hello?", "writing")),
        # SPEED-Bench
        ({"question_id": "a1", "category": "coding", "sub_category": "x", "turns": ["Hello?"], "multiturn": False},
         Prompt("a1", "Hello?", "coding")),
        # HumanEval
        ({"task_id": "HumanEval/0", "prompt": "Hello?", "test": ""}, Prompt("HumanEval/0", "Hello?", "prompts")),
        ({"messages": [{"role": "system", "content": "Be brief."}, USER]}, Prompt("1", "Hello?", "prompts")),
        ({"id": "b", "text": "Hello?", "category": "chat"}, Prompt("b", "Hello?", "chat")),
    ],
)  # fmt: skip
def test_public_forms_are_read(tmp_path: Path, line: Any, prompt: Prompt) -> None:
    assert read_prompts(written(tmp_path, line, "")) == [prompt]


def test_lines_end_where_json_lines_do(tmp_path: Path) -> None:
    """Texts may contain other line separators, and editors put a mark at the start of a file."""
    texts = [f"Hello{separator}again" for separator in "\u2028\u2029\x85"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    path = tmp_path / "questions.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert [each.text for each in read_prompts(path)] == texts


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "questions.jsonl:2 is not valid JSON"),
        ("[1]", "questions.jsonl:2 is not a JSON object"),
        ({"turns": []}, "questions.jsonl:2 has no prompt"),
        ({"messages": [{"role": "system", "content": "x"}]}, "questions.jsonl:2 has no prompt"),
        ({"prompt": 3}, "questions.jsonl:2 has no prompt"),
        ({"category": "x"}, "questions.jsonl:2 has no prompt"),
    ],
)
def test_invalid_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_prompts(written(tmp_path, {"prompt": "fine"}, line))
    assert said in str(error.value)


def test_files_without_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="has no prompts"):
        read_prompts(written(tmp_path, ""))
    monkeypatch.setattr(input_text, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(UsageError, match="--prompts /dev/zero is longer than"):
        read_prompts(Path("/dev/zero"))
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_prompts(tmp_path / "latin")
