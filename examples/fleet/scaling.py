"""The number of replicas: by the requests that run or wait, and by the speed of answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class SpeedPolicy:
    """An autoscaling policy of Ray Serve, which applies the limits and delays of the configuration to its result.

    A replica should have ``target_ongoing_requests``, and fewer if answers are too slow, whatever the reason: drafts
    that are accepted less often, a slower machine, or too many requests in a round.
    """

    def __init__(self, tokens_per_second: float | None = None) -> None:
        """``tokens_per_second`` is the speed that an answer should have; None leaves speed out."""
        self._wanted = tokens_per_second

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas for Ray's ``AutoscalingContext``, and no state."""
        measured = context.aggregated_metrics or {}
        tokens, seconds = (measured.get(name, {}).values() for name in ("tokens", "seconds"))
        target = requests_per_replica(context.config.target_ongoing_requests, tokens, seconds, self._wanted)
        return context.total_num_requests / target, {}


def requests_per_replica(
    target: float, tokens: Iterable[float], seconds: Iterable[float], wanted: float | None
) -> float:
    """Return ``target``, or less in proportion if answers have fewer than ``wanted`` tokens per second, but at least 1.

    ``tokens`` and ``seconds`` are those of the last answers, by replica. Without any, the target stays.
    """
    if wanted is None or not (time := sum(seconds)):
        return target
    return min(target, max(1.0, target * sum(tokens) / time / wanted))
