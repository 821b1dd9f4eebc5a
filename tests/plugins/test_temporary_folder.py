"""The folder for temporary files is tempfile's, and its lack is reported with a fix."""

from __future__ import annotations

import tempfile

import pytest

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.temporary_folder import temporary_folder


def test_the_folder_is_that_of_the_standard_library() -> None:
    assert temporary_folder() == tempfile.gettempdir()


def test_a_machine_without_a_usable_folder_is_told_to_set_one(no_temporary_folder: None) -> None:
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files") as caught:
        temporary_folder()
    assert "/nope" in caught.value.why
    assert "set TMPDIR" in caught.value.fix
