"""The server side of a peer: one line of JSON per prompt, until standard input ends. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

Generate = Callable[[Sequence[int], int], tuple[list[int], float]]


def serve(load: Callable[[], tuple[str, Generate]]) -> None:
    """Answer prompts from standard input with the results of ``load``: a version and a decoding function.

    Input: ``{"prompt": ids, "count": n}``. Output: first ``{"version": text}``, then for each prompt
    ``{"tokens": n ids, "seconds": after the first}``. Output of libraries goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    version, generate = load()
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        tokens, seconds = generate(question["prompt"], question["count"])
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers, flush=True)
