"""Advice on the type of the LM head, from the measured loss of a quantized head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....plugins.number_formats import NUMBER_FORMATS

if TYPE_CHECKING:
    from ..recipes import Recipe

Array = np.ndarray[Any, Any]

MAX_CHANGED_SHARE = 0.02  # of the tokens
MAX_DIVERGENCE = 0.1  # of the divergence that a whole model in the format may have


@dataclass(frozen=True)
class LmHeadLoss:
    """The loss in the format ``kind``: ``divergence`` of the logits in nats per token, and the share ``changed``.

    ``changed`` counts the tokens whose most likely next token is another one.
    """

    kind: str
    divergence: float
    changed: float

    @classmethod
    def of(cls, costs: Mapping[str, Array]) -> list[LmHeadLoss]:
        """Return the losses that a calibration measured (``Scales.head_costs``)."""
        return [cls(kind, float(cost[0]), float(cost[1])) for kind, cost in costs.items()]

    @property
    def is_small(self) -> bool:
        """True if the head can be in this format without a noticeable loss."""
        return self.divergence <= self._max_divergence and self.changed <= MAX_CHANGED_SHARE

    @property
    def _max_divergence(self) -> float:
        return MAX_DIVERGENCE * NUMBER_FORMATS[self.kind].limits.kl_mean

    def note(self, recipe: Recipe, *, tensorrt: bool) -> str:
        """Return advice on the head's type in ``recipe``; empty if there is nothing to change.

        A head in the recipe's format loses too much, or a head in the wide type would lose little. Kernels that do not
        round inputs with calibrated scales lose another amount, so nothing is said about them.
        """
        if not NUMBER_FORMATS[self.kind].is_calibrated(tensorrt=tensorrt):
            return ""
        changes = (
            f"the logits of the calibration samples by {self.divergence:.2g} nats per token, and the most likely next "
            f"token at {self.changed:.1%} of the positions"
        )
        if recipe.lm_head == self.kind and not self.is_small:
            return (
                f"lm_head in {self.kind} changes {changes} (limits: {self._max_divergence:.2g} nats, "
                f"{MAX_CHANGED_SHARE:.0%}); --lm-head-precision {recipe.wide} avoids this"
            )
        if recipe.lm_head == recipe.wide and recipe.weights == self.kind and self.is_small:
            return (
                f"--lm-head-precision {self.kind} would make every round read fewer bytes, and would change only "
                f"{changes}"
            )
        return ""
