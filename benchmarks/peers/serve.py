"""The side of a peer: a line of JSON for each prompt, until standard input ends. Only the standard library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

Generate = Callable[[Sequence[int], int], tuple[list[int], float]]


def serve(load: Callable[[], tuple[str, Generate]]) -> None:
    """Answer prompts on standard input with what ``load`` gives: a version, and a function that decodes.

    In: ``{"prompt": ids, "count": n}``. Out: first ``{"version": text}``, then for each prompt
    ``{"tokens": n ids, "seconds": after the first}``. What a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version, generate = load()
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        tokens, seconds = generate(question["prompt"], question["count"])
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers, flush=True)
