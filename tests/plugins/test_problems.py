"""Problems: one error lists everything that is wrong, and says how much it omits."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.plugins.errors import BuildError
from peagle.plugins.problems import MAX, Problems, counted, lack_of, listed, shown


def raised(problems: Problems) -> BuildError:
    with pytest.raises(BuildError) as caught:
        problems.raise_any()
    return caught.value


def test_no_problem_raises_nothing() -> None:
    problems = Problems("folder", "cannot be used")
    problems.raise_any()
    assert not problems


def test_single_problem_is_raised_unchanged() -> None:
    problems = Problems("folder", "cannot be used")
    problems.add("a is missing", why="it was not downloaded", fix="download it")
    assert problems
    error = raised(problems)
    assert (error.what, error.why, error.fix) == ("a is missing", "it was not downloaded", "download it")


def test_several_problems_are_grouped_by_fix_without_duplicates() -> None:
    problems = Problems("folder", "cannot be used")
    problems.add("a is missing", why="it was not downloaded", fix="download it")
    problems.add("b is damaged", fix="copy it again")
    with problems.collecting():
        raise BuildError("c is missing", fix="download it")
    problems.add("b is damaged", fix="copy it again")
    error = raised(problems)
    assert error.what.splitlines() == [
        "folder cannot be used (3 problems):",
        "    - a is missing (it was not downloaded)",
        "    - c is missing",
        "    - b is damaged",
    ]
    assert error.fix == "download it; copy it again"


def test_with_one_cure_for_all_even_a_single_problem_is_a_line_of_the_list() -> None:
    problems = Problems("the head", "does not fit", why="it is another's", fix="use its own")
    problems.add("8 layers, not 7")
    error = raised(problems)
    assert error.what == "the head does not fit (1 problem):\n    - 8 layers, not 7"
    assert (error.why, error.fix) == ("it is another's", "use its own")


def test_many_problems_of_one_kind_are_cut_short_and_counted() -> None:
    problems = Problems("folder", "cannot be used")
    for number in range(MAX + 3):
        problems.add(f"{number} is missing", fix="download it")
    lines = raised(problems).what.splitlines()
    assert (len(lines), lines[-1]) == (MAX + 2, "    - and 3 more of this kind")


def test_long_list_states_the_number_of_omitted_items() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed("abc", 2) == "a, b and 1 more"
    assert listed("abcd", 2, "; ") == "a; b; and 2 more"
    assert listed([]) == ""
    assert [counted(["x"] * count, "weight") for count in (0, 1, 2)] == ["0 weights", "1 weight", "2 weights"]


def test_names_from_files_are_shown_in_one_line_without_control_characters() -> None:
    assert shown("model.weight") == "model.weight"
    assert shown("a\nb\x1b") == "'a\\nb\\x1b'"
    assert len(shown("a" * 1000)) < 250
    assert listed(["a\n"]) == "'a\\n'"


def test_path_that_is_not_the_expected_folder_is_described(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert lack_of(tmp_path / "typo", "a") == "the folder does not exist"
    assert lack_of(tmp_path / "file", "a") == "it is not a folder"
    assert lack_of(tmp_path, "a") == "the folder contains no a"
    assert lack_of(tmp_path, "a", "b", "c") == "the folder contains no a, b or c"
    assert lack_of(tmp_path / ("x" * 300), "a") == "the folder does not exist"
