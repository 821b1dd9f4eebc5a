"""What a step was made for: it comes back as it was written, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.store.made_for import FILE_NAME, MadeFor
from tests.attacks.world import guarded


@pytest.mark.parametrize(
    ("made_for", "said"),
    [
        (MadeFor("build", "demo", "demo", "fp32", "ort"), "demo, fp32, ort"),
        (MadeFor("build", "org/model", "org/head", "int8", "ort"), "org/model + org/head, int8, ort"),
        (MadeFor("quantize", "/models/qwen", precision="fp8"), "/models/qwen, fp8"),
    ],
)
def test_record_round_trips(tmp_path: Path, made_for: MadeFor, said: str) -> None:
    made_for.write(tmp_path)
    assert MadeFor.read(tmp_path) == made_for
    assert str(made_for) == said


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": "build"}', '{"command": 1, "model": 2}', "[" * 99999])
def test_invalid_record_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    assert MadeFor.read(tmp_path) is None
    assert MadeFor.read(tmp_path / "nowhere") is None


def test_pipe_instead_of_a_record_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with guarded(30):
        assert MadeFor.read(tmp_path) is None
