"""How the models of a repository are to run, as ``peagle-compile triton`` is asked for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ....engines.folder.manifest import Manifest
from ....plugins.errors import UsageError

Placing = Literal["copy", "link", "path"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class RepositoryOptions:
    """The name of the models, and what their ``config.pbtxt`` says.

    ``path`` is where the server finds the engine, which then is neither copied nor linked. ``threads`` 0 leaves it to
    the engine; ``gpus`` are those that get ``instances`` of it each.
    """

    name: str
    placing: Placing = "copy"
    path: str = ""
    max_batch_size: int = 4
    max_queue_size: int = 256
    threads: int = 0
    request_timeout: float = 600.0
    instances: int = 1
    gpus: tuple[int, ...] = ()

    def require_possible(self, manifest: Manifest) -> None:
        """Raise ``UsageError`` for a name that is none, GPUs for an engine of a CPU, and a path that no config has."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} cannot be the name of a model",
                why="Triton and its clients write it in paths and addresses",
                fix="give a --name of letters, digits, points, - and _, which begins with a letter or a digit",
            )
        if self.gpus and not manifest.backend.gpus:
            raise UsageError(
                "--gpus was given for an engine of a CPU",
                why=f"it was built for {manifest.backend.name}",
                fix="leave it out",
            )
        if self.placing == "path" and not re.fullmatch(r"[^\x00-\x1f\"\\]+", self.path):
            raise UsageError(
                f"--engine-path is {self.path!r}", why="config.pbtxt cannot say it", fix="give a plain path"
            )

    def kind(self, manifest: Manifest) -> str:
        """What ``instance_group`` says of the device."""
        if not manifest.backend.gpus:
            return "kind: KIND_CPU"
        return f"kind: KIND_GPU gpus: [ {', '.join(map(str, self.gpus or (0,)))} ]"


def name_of(engine: Path) -> str:
    """The name that an engine's models have where none is given: that of its folder."""
    return engine.resolve().name
