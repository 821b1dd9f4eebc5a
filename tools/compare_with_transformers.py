"""Compare an engine's greedy answers with those of `transformers` on the same weights, in FP32.

    python tools/compare_with_transformers.py ENGINE

The questions go through the engine's chat template; both get the same ids. At the first difference, the output shows
the margin: the logit that `transformers` gives its own token minus the one it gives the engine's. A margin within
rounding is a tie; any other is a bug. Exits with 1 if a margin reaches ``--margin``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hugging_face_folder import write_folder
from transformers import AutoModelForCausalLM

from peagle.compiler.bundled.prompts import questions
from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.engines import Engine, SamplingParams


@dataclass(frozen=True)
class Difference:
    """The first different token: its position in the answer, both ids, and the margin between them."""

    place: int
    expected: int
    actual: int
    margin: float


@torch.no_grad()
def first_difference(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Difference | None:
    """Return the first difference of ``model``'s greedy tokens after ``prompt`` from ``answer``, or None."""
    ids, cache = torch.tensor([list(prompt)]), None
    for place, token in enumerate(answer):
        out = model(ids, past_key_values=cache, use_cache=True)
        logits, cache = out.logits[0, -1], out.past_key_values
        expected = int(logits.argmax())
        if expected != token:
            return Difference(place, expected, token, float(logits[expected] - logits[token]))
        ids = torch.tensor([[token]])
    return None


def main() -> None:
    """Compare, print, and set the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--margin", type=float, default=1e-3, help="a smaller logit difference is a tie")
    arguments = parser.parse_args()
    engine = Engine.load(arguments.engine, prefix_cache_bytes=0)
    chosen = questions(arguments.questions)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Checkpoint.open(Path(engine.manifest.target.origin.source)), Path(folder) / "target")
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "target", dtype=torch.float32).eval()
    same, worst = 0, 0.0
    for question in chosen:
        messages = [{"role": "user", "content": question.text}]
        _, prompt = engine.chat_prompt(messages)
        answer = engine.chat(messages, SamplingParams(max_tokens=arguments.tokens)).token_ids
        found = first_difference(model, prompt, answer)
        if found is None:
            same += 1
            print(f"{question.id:20} {len(answer):4} tokens  identical")
        else:
            worst = max(worst, found.margin)
            expected, actual = (engine.tokenizer.decode([token]) for token in (found.expected, found.actual))
            print(f"{question.id:20} {len(answer):4} tokens  at {found.place}: transformers {expected!r}, "
                  f"engine {actual!r}, margin {found.margin:.1e}")  # fmt: skip
    print(f"\n{same} of {len(chosen)} answers are identical; largest margin of the others: {worst:.1e}")
    if worst >= arguments.margin:
        sys.exit(1)


if __name__ == "__main__":
    main()
