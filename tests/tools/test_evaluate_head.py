"""Saved answers are those of the same target, taps and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluate_head import answers_file

SAME: dict[str, Any] = {
    "name": "HumanEval", "dtype": torch.float32, "fingerprint": "ab12", "taps": (2, 15, 27), "prompts": ["def f(", "x"],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"name": "chat"}, {"dtype": torch.bfloat16}, {"fingerprint": "cd34"}, {"taps": (2, 15, 28)},
        {"prompts": ["def f("]},
    ],
)  # fmt: skip
def test_answers_of_anything_else_have_another_file(change: dict[str, Any], tmp_path: Path) -> None:
    assert answers_file(tmp_path, **SAME) == answers_file(tmp_path, **SAME)
    assert answers_file(tmp_path, **SAME | change) != answers_file(tmp_path, **SAME)
