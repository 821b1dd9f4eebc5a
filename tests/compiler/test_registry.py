"""Names: short ones, folders, and helpful refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.registry import PAIRS, resolve
from peagle.plugins.errors import UsageError


def test_every_short_name_brings_its_drafter_and_its_evidence() -> None:
    for name, pair in PAIRS.items():
        found = resolve(name)
        assert (found.target, found.drafter, found.pair) == (pair.target, pair.drafter, pair)
        assert found.target.is_dir()
        assert found.drafter.is_dir()
        assert pair.evidence


def test_a_folder_needs_a_drafter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a drafter"):
        resolve(str(tmp_path))


def test_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = resolve(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.target, found.drafter, found.pair) == (tmp_path / "a", tmp_path / "b", None)


def test_another_drafter_makes_it_another_pair(tmp_path: Path) -> None:
    found = resolve("demo", str(tmp_path))
    assert found.target == PAIRS["demo"].target
    assert found.pair is None
    assert resolve("demo", "demo").pair is PAIRS["demo"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dmeo", "did you mean demo?"),
        ("Demo", "did you mean demo?"),
        ("Qwen/Qwen3-8B", "Hugging Face Hub are not supported yet"),
        ("/no/such/folder", "no folder and no known name"),
        ("", "no folder and no known name"),
        ("a\0b", "no folder and no known name"),
        ("x" * 5000, "no folder and no known name"),
        ("~nobody-of-this-name", "no folder and no known name"),
    ],
)
def test_an_unknown_name_is_answered_with_what_exists(name: str, hint: str) -> None:
    for call in (lambda: resolve(name, "demo"), lambda: resolve("demo", name)):
        with pytest.raises(UsageError) as caught:
            call()
        assert hint in caught.value.why
        assert "known names are: demo" in caught.value.why
        assert "path of a checkpoint folder" in caught.value.fix
        assert caught.value.exit_code == 2
