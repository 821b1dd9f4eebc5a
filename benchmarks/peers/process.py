"""A peer in its own process: it receives prompts and returns greedy tokens with their time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_IMPORTABLE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    """One runtime that decodes on request and is idle otherwise."""

    name: str
    version: str
    _link: _Link

    def generate(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """Return ``count`` greedy tokens after ``prompt`` (ids), and the seconds for those after the first."""
        answer = self.ask({"prompt": list(prompt), "count": count})
        return answer["tokens"], answer["seconds"]

    def prefill(self, prompt: Sequence[int]) -> float:
        """Return the seconds from ``prompt`` to the first token after it."""
        seconds: float = self.ask({"prompt": list(prompt), "count": 1})["first"]
        return seconds

    def window(self, prompt: Sequence[int], tokens: Sequence[int]) -> float | None:
        """Return the seconds of a pass over ``tokens`` after ``prompt``, or None if the peer cannot tell."""
        seconds: float | None = self.ask({"prompt": list(prompt), "window": list(tokens)})["seconds"]
        return seconds

    def bytes(self) -> int:
        """Return the bytes of the weights that a token reads."""
        return int(self.ask({"bytes": True})["bytes"])

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a peer with questions of its own. Raises ``SystemExit`` if it has ended."""
        return self._link.answer(question)


@contextmanager
def running(name: str, command: Sequence[str]) -> Iterator[Peer]:
    """Run ``command``, a server as in ``serve.py`` that may import ``peers``, while the block lasts.

    Raises ``SystemExit`` with the end of its output if it cannot be started or exits.
    """
    environment = {**os.environ, "PYTHONPATH": str(_IMPORTABLE)}
    with (
        tempfile.TemporaryFile("w+") as errors,  # not a pipe, which could fill up: nobody reads it during the run
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            link = _Link(name, process, errors)
            yield Peer(name, link.answer()["version"], link)
        finally:
            process.kill()


@dataclass(frozen=True)
class _Link:
    """JSON lines in both directions."""

    name: str
    process: subprocess.Popen[str]
    errors: IO[str]

    def answer(self, question: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send ``question``, if any, and return the next line."""
        line = ""
        try:
            if question is not None:
                print(json.dumps(question), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline() if self.process.stdout else ""
        except BrokenPipeError:
            pass
        if not line:
            self.errors.seek(0)
            raise SystemExit(f"{self.name} ended with {self.process.wait()}:\n{self.errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
