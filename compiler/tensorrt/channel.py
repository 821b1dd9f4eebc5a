"""What the building process says to its parent: one JSON object a line.

``{"done": permille}`` while it builds, then either ``{"facts": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, TextIO

from ...plugins import errors
from ...plugins.errors import BuildError, PeagleError
from .request import PlanFacts

STEPS = 1000


@dataclass(frozen=True)
class Channel:
    """The building process's end. TensorRT calls back from several threads."""

    file: TextIO
    lock: Lock

    @classmethod
    def take_stdout(cls) -> Channel:
        """Keep standard output for messages; whatever libraries print there goes to standard error from now on."""
        file = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return cls(file, Lock())

    def done(self, permille: int) -> None:
        """How far the build is. TensorRT asks for this, and does not survive an exception: a lost parent is ignored."""
        with suppress(BrokenPipeError):
            self._send({"done": permille})

    def facts(self, facts: PlanFacts) -> None:
        """The last message of a build that went well."""
        self._send({"facts": facts.to_record()})

    def error(self, error: PeagleError) -> None:
        """The last message of one that did not."""
        record = {"type": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
        self._send({"error": record})

    def _send(self, message: dict[str, Any]) -> None:
        with self.lock:
            self.file.write(json.dumps(message) + "\n")


def raised(record: dict[str, str]) -> PeagleError:
    """The error that ``Channel.error`` was given."""
    kind = getattr(errors, record["type"], BuildError)
    error: PeagleError = kind(record["what"], why=record["why"], fix=record["fix"])
    return error
