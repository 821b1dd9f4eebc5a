"""The server side of a peer: one line of JSON per question, until standard input ends. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

Generate = Callable[[Sequence[int], int], tuple[list[int], float]]
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(load: Callable[[], tuple[str, Generate]]) -> None:
    """Answer prompts from standard input with the results of ``load``: a version and a decoding function.

    Input: ``{"prompt": ids, "count": n}``. Output: first ``{"version": text}``, then for each prompt
    ``{"tokens": n ids, "seconds": after the first}``.
    """

    def load_timed() -> tuple[str, Answer]:
        version, generate = load()

        def answer(question: dict[str, Any]) -> dict[str, Any]:
            tokens, seconds = generate(question["prompt"], question["count"])
            return {"tokens": tokens, "seconds": seconds}

        return version, answer

    serve_answers(load_timed)


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
