"""The settings of a deployment: one record in a Ray actor, which commands change and replicas follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Drafters:
    """The drafter that replicas use, and a ``candidate`` that a ``share`` of them uses instead.

    None is the drafter that the engine was built with.
    """

    usual: str | None = None
    candidate: str | None = None
    share: Fraction = Fraction(0)

    def of(self, rank: int) -> str | None:
        """Return the drafter of the replica with this rank; Ray numbers the replicas from 0.

        Of n replicas, ceil(n * share) use the candidate. A replica keeps its drafter when others start or end.
        """
        is_canary = math.ceil((rank + 1) * self.share) > math.ceil(rank * self.share)
        return self.candidate if is_canary else self.usual

    def promoted(self) -> Drafters:
        """Return the same with the candidate for all replicas."""
        return Drafters(self.candidate)

    def rolled_back(self) -> Drafters:
        """Return the same without a candidate."""
        return Drafters(self.usual)


@dataclass(frozen=True)
class Scaling:
    """The number of replicas, from ``least`` to ``most``.

    ``ongoing``: running and waiting requests per replica; fewer if answers are slower than ``tokens_per_second``. The
    delays are in seconds.
    """

    least: int
    most: int
    ongoing: float
    tokens_per_second: float | None = None
    up_delay: float = 30.0
    down_delay: float = 600.0


@dataclass(frozen=True)
class Fleet:
    """All settings of the replicas; ``surge`` is the percentage of extra replicas while an engine is replaced."""

    engine: str
    max_batch_size: int
    threads: int
    prefix_cache_bytes: int
    scaling: Scaling
    surge: int = 0
    drafters: Drafters = field(default_factory=Drafters)


class Holder:
    """Keeps the current ``Fleet``, as a Ray actor."""

    NAME, NAMESPACE = "peagle-fleet", "serve"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def get(self) -> Fleet:
        """Return what the deployment should be."""
        return self._fleet

    def set(self, fleet: Fleet) -> None:
        """Change it."""
        self._fleet = fleet

    @classmethod
    def actor(cls) -> Any:
        """Return the actor's handle. Raises ``ValueError`` if there is none."""
        import ray

        return ray.get_actor(cls.NAME, cls.NAMESPACE)
