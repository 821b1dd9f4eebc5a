"""An answer is correct if its last number is the solution, in any notation."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from score_gsm8k import last_number, problems_of

from peagle.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She makes 9 * 2 = $18 every day at the farmer's market.", "18"),
        ("#### 1,450", "1450"),
        ("The answer is 18.", "18"),
        ("It costs $18.50, which is \\boxed{18.50}", "18.5"),
        ("x = -3", "-3"),
        ("There are 5-3 left", "3"),
        ("He is (7)-2 years old", "2"),
        ("3, 4, and 5, of course", "5"),
        ("No idea.", None),
        ("", None),
    ],
)
def test_last_number_of_an_answer_counts(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


def test_problems_are_read_as_the_dataset_has_them(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"question": "How many?", "answer": "He has 1 + 1,449 = 1,450.\n#### 1,450"}) + "\n")
    (problem,) = problems_of(path)
    assert problem.question == "How many?"
    assert problem.is_solved_by("1450.00")
    assert not problem.is_solved_by("1450 or 1451")
    assert not problem.is_solved_by("Many")


@pytest.mark.parametrize("content", ["{", '{"question": "How many?"}', '{"question": "", "answer": "many"}', "[1]"])
def test_any_other_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match="GSM8K"):
        problems_of(path)
    with pytest.raises(UsageError, match="GSM8K"):
        problems_of(tmp_path / "missing.jsonl")
