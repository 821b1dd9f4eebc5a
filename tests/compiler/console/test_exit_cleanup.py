"""Temporary paths are removed at the end of their block, and forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.console import exit_cleanup
from peagle.compiler.console.exit_cleanup import remove_on_exit


@pytest.mark.parametrize("name", ["file", "x" * 300])
def test_a_path_is_removed_and_forgotten(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    before = [*exit_cleanup._paths]
    with remove_on_exit(tmp_path / name):
        pass
    assert not os.path.lexists(tmp_path / name)
    assert exit_cleanup._paths == before
