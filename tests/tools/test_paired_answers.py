"""Answers with and without drafts are compared token by token, and both are scored."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from paired_answers import Question, Run, decode, report

QUESTIONS = [Question("first", "def f("), Question("second", "import os")]


@pytest.fixture(scope="module")
def runs(talking_engine: Path) -> list[Run]:
    """What the engine answers."""
    return decode(talking_engine, QUESTIONS, 12, 2)


def test_texts_with_drafts_are_those_without(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    report(QUESTIONS, runs, "score", lambda number, text: number == 0 and bool(text))
    said = capsys.readouterr().out
    assert "| none | 24 | 1.00 | 1 of 2 | 50.0% |" in said
    assert "| P-EAGLE | 24 | " in said
    assert "2 of 2 texts are identical" in said


def test_one_other_token_is_named(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    plain, drafted = runs
    first, second = drafted.answers
    other = dataclasses.replace(second, token_ids=(*second.token_ids[:-1], second.token_ids[-1] + 1))
    with pytest.raises(SystemExit, match="different: second"):
        report(QUESTIONS, [plain, Run("changed", [first, other])], "score", None)
    assert "1 of 2 texts are identical" in capsys.readouterr().out
