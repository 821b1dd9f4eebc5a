"""Temporary paths are removed at the end of their block, and forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.console import exit_cleanup
from peagle.compiler.console.exit_cleanup import remove_on_exit, remove_on_failure


@pytest.mark.parametrize("name", ["file", "x" * 300])
def test_a_path_is_removed_and_forgotten(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    before = [*exit_cleanup._paths]
    with remove_on_exit(tmp_path / name):
        pass
    assert not os.path.lexists(tmp_path / name)
    assert exit_cleanup._paths == before


@pytest.mark.parametrize("is_kept", [False, True])
def test_paths_of_a_failed_block_are_removed_and_forgotten(tmp_path: Path, is_kept: bool) -> None:
    paths, before = (tmp_path / "file", tmp_path / "folder"), [*exit_cleanup._paths]

    def fail() -> None:
        with remove_on_failure(*paths) as keep:
            paths[0].touch()
            paths[1].mkdir()
            if is_kept:
                keep()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert {path.exists() for path in paths} == {is_kept}
    assert exit_cleanup._paths == before
