"""Options of a model repository, from the flags of ``peagle-compile triton``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ....engines.draft_options import engine_with, with_drafter
from ....engines.folder.manifest import Manifest
from ....engines.requests.arguments import number
from ....plugins.errors import UsageError

Placing = Literal["copy", "link", "path"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class RepositoryOptions:
    """The name of the models and the values in their ``config.pbtxt``.

    ``path`` is the engine's path on the server, if it is neither copied nor linked. ``threads`` 0 leaves it to the
    engine; each of ``gpus`` gets ``instances`` of the engine. ``draft`` is the drafter or draft method of requests that
    name none, empty for the engine's; ``drafters`` can be named as well.
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
    draft: str = ""
    drafters: tuple[str, ...] = ()

    def require_possible(self, manifest: Manifest) -> None:
        """Raise ``UsageError`` for invalid values, GPUs with a CPU engine, or drafters that the engine lacks."""
        if self.draft:
            engine_with(manifest, self.draft)
        for name in self.drafters:
            with_drafter(manifest, name)
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a valid model name",
                why="Triton and its clients use the name in paths and URLs",
                fix="choose a --name of at most 128 letters, digits, dots, - and _, starting with a letter or a digit",
            )
        number("--request-timeout", self.request_timeout, 0, is_above=True)
        if self.gpus and not manifest.backend.gpus:
            raise UsageError(
                "--gpus does not work with a CPU engine",
                why=f"the engine was built for {manifest.backend.name}",
                fix="omit --gpus",
            )
        if self.placing == "path" and not re.fullmatch(r"[^\x00-\x1f\"\\\ud800-\udfff]+", self.path):
            raise UsageError(
                f"invalid --engine-path {self.path!r}",
                why="a path in config.pbtxt cannot contain quotes, backslashes, control characters, or bytes that are "
                "not text in this locale",
                fix="use a path without these characters",
            )

    def kind(self, manifest: Manifest) -> str:
        """Return the device entry of ``instance_group``."""
        if not manifest.backend.gpus:
            return "kind: KIND_CPU"
        return f"kind: KIND_GPU gpus: [ {', '.join(map(str, self.gpus or (0,)))} ]"


def name_of(engine: Path) -> str:
    """Return the default model name: the name of the engine folder."""
    return engine.resolve().name
