"""The number of replicas for a load and an answer speed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fleet.scaling import SpeedPolicy, requests_per_replica
from hypothesis import given
from hypothesis import strategies as st

POSITIVE = st.floats(0.01, 1e4)


def _replicas(requests: float, tokens: dict[str, float], seconds: dict[str, float], wanted: float | None) -> float:
    """The result for a context as Ray gives it, with four requests per replica as the target."""
    context = SimpleNamespace(
        aggregated_metrics={"tokens": tokens, "seconds": seconds},
        total_num_requests=requests,
        config=SimpleNamespace(target_ongoing_requests=4.0),
    )
    return SpeedPolicy(wanted)(context)[0]


def test_queue_length_alone_sets_the_number_of_replicas_without_a_speed() -> None:
    assert _replicas(12, {"a": 10}, {"a": 10}, None) == 3


def test_answers_at_half_the_speed_require_twice_the_replicas() -> None:
    fast, slow = {"a": 300.0, "b": 100.0}, {"a": 150.0, "b": 50.0}
    assert _replicas(12, fast, {"a": 3, "b": 1}, 100) == 3
    assert _replicas(12, slow, {"a": 3, "b": 1}, 100) == 6


def test_a_deployment_without_answers_is_scaled_by_its_queue() -> None:
    assert _replicas(12, {}, {}, 100) == 3
    assert _replicas(12, {"a": 0}, {"a": 0}, 100) == 3


def test_metrics_that_ray_has_not_collected_yet_change_nothing() -> None:
    context = SimpleNamespace(
        aggregated_metrics=None, total_num_requests=8, config=SimpleNamespace(target_ongoing_requests=4.0)
    )
    assert SpeedPolicy(100)(context) == (2, {})


@given(st.floats(1, 100), st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1), POSITIVE)
def test_a_replica_has_at_least_one_request_and_at_most_the_target(
    target: float, answers: list[tuple[float, float]], wanted: float
) -> None:
    tokens, seconds = zip(*answers, strict=True)
    assert 1 <= requests_per_replica(target, tokens, seconds, wanted) <= target
    assert requests_per_replica(target, tokens, seconds, sum(tokens) / sum(seconds) / 2) == pytest.approx(target)
