"""What a kept step was made for, so that who lists the cache knows what he would lose."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "made_for.json"


@dataclass(frozen=True)
class MadeFor:
    """The first command that wanted a step; later ones with the same inputs use it too."""

    command: str
    model: str
    drafter: str = ""
    precision: str = ""
    lowering: str = ""

    def write(self, folder: Path) -> None:
        """Write it into the folder of a step."""
        (folder / FILE_NAME).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, folder: Path) -> MadeFor | None:
        """Return what the folder of a step was made for; None where it does not say, as in older ones."""
        if not (folder / FILE_NAME).is_file():  # a pipe would wait for a writer
            return None
        try:
            made_for = cls(**json.loads((folder / FILE_NAME).read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return made_for if all(isinstance(text, str) for text in vars(made_for).values()) else None

    def __str__(self) -> str:
        drafter = self.drafter if self.drafter != self.model else ""
        names = " + ".join(filter(None, (self.model, drafter)))
        return ", ".join(filter(None, (names, self.precision, self.lowering)))
