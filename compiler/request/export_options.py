"""What an export is asked for, and the refusals that need nothing but the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...graphs.lowering import ORT, Lowering
from ...plugins.errors import UsageError
from ..precision.calibration.ranges import RangesFrom
from ..precision.legal import available, require_known, require_legal
from ..precision.recipes import RECIPES, Overrides, Recipe
from ..store.publish import require_apart, require_publishable


@dataclass(frozen=True)
class ExportOptions:
    """What to export. ``lowering`` says what the graphs are for; ``precision`` None takes the one that suits it.

    ``overrides`` and ``ranges`` are those of ``BuildOptions``.
    """

    model: str
    out: Path
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    lowering: Lowering = ORT
    precision: str | None = None
    num_speculative_tokens: int | None = None
    max_seq_len: int = 2048
    force: bool = False
    overrides: Overrides = field(default=Overrides())
    ranges: RangesFrom = field(default=RangesFrom())

    @property
    def chosen_precision(self) -> str:
        """The precision asked for, else the first that the lowering has."""
        return self.precision or available(self.lowering)[0]

    def recipe(self, wide: str | None = None) -> Recipe:
        """The table of types over ``wide``; None stands for what the checkpoint will say.

        Raises ``UsageError`` for one that the lowering lacks.
        """
        narrow = RECIPES[self.chosen_precision].narrow
        over = wide if wide and self.lowering.is_tensorrt else available(self.lowering)[0]
        recipe = RECIPES[self.chosen_precision].on(over if narrow else self.chosen_precision, self.lowering)
        recipe = self.overrides.of(recipe)
        require_legal(recipe, self.lowering, settled=wide is not None)
        return recipe

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        require_known(self.precision)
        self.recipe()
        self.ranges.check()
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is below 1",
                fix="it is the number of tokens drafted per round; the caches have room for two rounds of them",
            )
        if self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="2048 is the default")
        require_apart(self.out, self.model, self.draft)
        require_publishable(self.out)
