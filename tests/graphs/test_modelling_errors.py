"""Errors of transformers and torch about a configuration name its file, without a traceback."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest

from peagle.graphs.modelling_errors import modelling
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError, EnvironmentProblem, UsageError
from tests.models import CONFIGS


@pytest.mark.parametrize(
    "error",
    [
        KeyError("factor"),
        TypeError("'<' not supported"),
        ZeroDivisionError("by zero"),
        RuntimeError("a\n\nb"),
        RecursionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_library_error_names_the_file_and_message(error: Exception) -> None:
    with pytest.raises(BuildError) as caught, modelling("folder/config.json"):
        raise error
    assert caught.value.what.startswith("folder/config.json cannot")
    assert f"transformers raised {type(error).__name__}" in caught.value.why
    assert caught.value.__cause__ is error
    assert "\n" not in caught.value.why


@pytest.mark.parametrize("error", [UsageError("no"), ModuleNotFoundError("transformers"), KeyboardInterrupt()])
def test_descriptive_error_is_passed_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, modelling("config.json"):
        raise error
    assert caught.value is error


def test_missing_folder_for_temporary_files_is_not_the_configurations_fault(no_temporary_folder: None) -> None:
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files"), modelling("config.json"):
        tempfile.gettempdir()  # as torch calls it on import


@pytest.mark.parametrize("change", [{"hidden_act": "banana"}, {"pad_token_id": 5000}, {"initializer_range": "x"}])
def test_a_value_that_only_transformers_looks_at_is_refused(change: dict[str, Any]) -> None:
    skeleton = Skeleton(CONFIGS["llama"] | change, "folder/config.json")
    with pytest.raises(BuildError, match=r"folder/config\.json cannot be turned into a model"):
        skeleton.modules()
