"""The origin of a stage is read back as written, and anything else is unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.store.stage_origin import FILE_NAME, StageOrigin
from tests.attacks.world import guarded


@pytest.mark.parametrize(
    ("stage_origin", "text"),
    [
        (StageOrigin("build", "demo", "demo", "fp32", "ort"), "demo, fp32, ort"),
        (StageOrigin("build", "org/model", "org/head", "int8", "ort"), "org/model + org/head, int8, ort"),
        (StageOrigin("quantize", "/models/qwen", precision="fp8"), "/models/qwen, fp8"),
    ],
)
def test_record_round_trips(tmp_path: Path, stage_origin: StageOrigin, text: str) -> None:
    stage_origin.write(tmp_path)
    assert StageOrigin.read(tmp_path) == stage_origin
    assert str(stage_origin) == text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": "build"}', '{"command": 1, "model": 2}', "[" * 99999])
def test_invalid_record_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert StageOrigin.read(tmp_path) is None
    assert StageOrigin.read(tmp_path / "nowhere") is None


def test_pipe_instead_of_a_record_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with guarded(30):
        assert StageOrigin.read(tmp_path) is None
