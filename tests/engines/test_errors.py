"""Errors of a running engine, as other processes see them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from peagle.engines.errors import EngineClosed, EngineFailed, PromptTooLong, QueueFull
from peagle.plugins.errors import PeagleError, UsageError

ERRORS = (
    UsageError("a", why="b", fix="c"),
    QueueFull(3, 1),
    PromptTooLong("prompt", 9, 8, unit="characters"),
    EngineClosed(),
    EngineFailed(ValueError("a"), usable=True),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_error_is_the_same_in_another_process(error: PeagleError, copied: Callable[[PeagleError], PeagleError]) -> None:
    """A pool of processes carries errors by ``pickle``, and breaks if it cannot."""
    other = copied(error)
    assert type(other) is type(error)
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
