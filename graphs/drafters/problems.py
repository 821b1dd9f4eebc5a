"""Collects every misfit, so that a user fixes a checkpoint once."""

from __future__ import annotations

from ...plugins.errors import BuildError


class Problems:
    """What does not fit, in the order it was found."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Remember one misfit; the same one twice is one."""
        if problem not in self.found:
            self.found.append(problem)

    def raise_any(self) -> None:
        """Raise one ``BuildError`` that names them all, if there are any."""
        if self.found:
            raise BuildError(
                f"the drafter head does not fit ({len(self.found)} problem{'s' * (len(self.found) > 1)}):\n"
                + "\n".join(f"    - {p}" for p in self.found),
                why="a head works only with the target, the taps and the vocabulary it was trained for",
                fix="use the P-EAGLE head that was trained for this target",
            )
