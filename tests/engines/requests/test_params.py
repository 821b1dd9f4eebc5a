"""Policies are checked when they are made."""

from __future__ import annotations

import pytest

from peagle.engines import SamplingParams
from peagle.engines.requests.params import policy_of
from peagle.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"stop": ("",)}, "stop"),
        ({"stop": "text"}, "stop"),
    ],
)
def test_an_illegal_parameter_is_named(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SamplingParams(**bad)  # type: ignore[arg-type]


def test_every_illegal_parameter_is_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"max_tokens.*temperature.*top_p"):
        SamplingParams(max_tokens=-1, temperature=-1, top_p=2)


def test_a_policy_has_the_dtypes_of_the_graph() -> None:
    policy = policy_of(SamplingParams(temperature=0.5, top_k=3))
    assert list(policy) == ["temperature", "top_k", "top_p", "min_p", "tolerance"]
    assert [value.dtype.name for value in policy.values()] == ["float32", "int32", "float32", "float32", "float32"]
    assert [value.tolist() for value in policy.values()] == [[0.5], [3], [1.0], [0.0], [0.0]]
