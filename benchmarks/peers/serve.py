"""The server side of a peer: one line of JSON per question, until standard input ends. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Decoded:
    """Greedy tokens after a prompt, and the seconds until the first of them and from the first to the last."""

    tokens: list[int]
    first: float
    rest: float


Generate = Callable[[Sequence[int], int], Decoded]
Window = Callable[[Sequence[int], Sequence[int]], float]


@dataclass(frozen=True)
class Served:
    """A loaded runtime.

    ``bytes`` are those of the weights that a token reads. ``window`` returns the seconds of a pass over some tokens
    after a context that is in the cache.
    """

    version: str
    bytes: int
    generate: Generate
    window: Window | None = None


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every peer has."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("model", help="a GGUF file or a Hugging Face model folder, as the runtime reads")
    parser.add_argument("work", help="where files that the runtime makes are stored")
    parser.add_argument("--format", default="", help="of the weights; default: the runtime's own choice")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--drafts", type=int, default=0, help="drafts per round; default: plain decoding")
    parser.add_argument("--head", default="", help="drafts are those of this head, not of prompt lookup")
    return parser


def serve(load: Callable[[], Served]) -> None:
    """Answer the questions of ``process.Peer`` on standard input with the results of ``load``."""

    def load_answers() -> tuple[str, Answer]:
        served = load()

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            if "bytes" in question:
                return {"bytes": served.bytes}
            if "window" in question:
                window = served.window
                return {"seconds": window(question["prompt"], question["window"]) if window else None}
            found = served.generate(question["prompt"], question["count"])
            return {"tokens": found.tokens, "first": found.first, "seconds": found.rest}

        return served.version, answer

    serve_answers(load_answers)


def serve_answers(load: Callable[[], tuple[str, Answer]]) -> None:
    """Write ``{"version": text}``, then the answer to every question on standard input, as ``load`` returns them.

    Output of libraries goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version, answer = load()
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
