"""Files are replaced completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.store.atomic_files import replacing
from peagle.plugins.errors import EnvironmentProblem


def test_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_keeps_the_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as temporary:
        temporary.write_text("half \ud800")
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


def test_missing_folder_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot write to"), replacing(tmp_path / "gone" / "a") as temporary:
        temporary.write_text("new")
