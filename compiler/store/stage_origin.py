"""The purpose of a stage, shown in listings of the cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "made_for.json"


@dataclass(frozen=True)
class StageOrigin:
    """The first command that needed a stage; later commands with the same inputs share it."""

    command: str
    model: str
    drafter: str = ""
    precision: str = ""
    lowering: str = ""

    def write(self, folder: Path) -> None:
        """Write it into a stage's folder."""
        (folder / FILE_NAME).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, folder: Path) -> StageOrigin | None:
        """Read it from a stage's folder; None if it is missing, as in older ones."""
        if not (folder / FILE_NAME).is_file():  # opening a pipe would block
            return None
        try:
            stage_origin = cls(**json.loads((folder / FILE_NAME).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return stage_origin if all(isinstance(text, str) for text in vars(stage_origin).values()) else None

    def __str__(self) -> str:
        drafter = self.drafter if self.drafter != self.model else ""
        names = " + ".join(filter(None, (self.model, drafter)))
        return ", ".join(filter(None, (names, self.precision, self.lowering)))
