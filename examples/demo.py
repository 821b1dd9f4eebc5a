"""Compare plain decoding, n-gram drafts and P-EAGLE on one engine: answers, speed, and equality of tokens.

    python examples/demo.py ENGINE_DIR

All methods run in one process and take turns on every question, so that disturbances affect all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import dataclass, field

from peagle.compiler.bundled.prompts import Prompt, question_ids, questions
from peagle.engines import Acceptance, Engine, SamplingParams

SHOWN = ("count-vowels", "photosynthesis")
POLICIES = {"greedy": 0.0, "sampled, temperature 0.8": 0.8}
KINDS = ("code", "prose")
INDENT = "    "
WAYS: dict[str, str | None] = {"plain": "none", "n-gram": "ngram", "P-EAGLE": None}  # values of the `draft` argument


@dataclass
class Run:
    """The results of one decoding method over all questions, by turn."""

    speeds: list[float] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)


def answer(engine: Engine, question: Prompt, max_tokens: int) -> None:
    """Print a question and its streamed answer, indented."""
    print(f"> {question.text}\n\n{INDENT}", end="")
    stream = engine.stream(question_ids(engine, question), SamplingParams(max_tokens=max_tokens))
    for delta in stream:
        print(delta.text.replace("\n", f"\n{INDENT}"), end="", flush=True)
    output = stream.result
    speed = (len(output.token_ids) - 1) / output.decode_seconds
    cut = ", cut here" if output.finish_reason == "length" else ""
    print(f"\n\n[{len(output.token_ids)} tokens{cut}; {output.acceptance.tokens_per_round:.2f} per round, "
          f"{speed:.0f} tokens/s]\n")  # fmt: skip


def compare(engine: Engine, prompts: list[list[int]], temperature: float, max_tokens: int) -> dict[str, Run]:
    """Decode every prompt with every method, in rotating order."""
    runs = {way: Run() for way in WAYS}
    for turn, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=turn, ignore_eos=True)
        first = turn % len(WAYS)
        for way in (*list(WAYS)[first:], *list(WAYS)[:first]):
            (output,) = engine.generate([prompt], params, draft=WAYS[way])
            run = runs[way]
            run.speeds.append((len(output.token_ids) - 1) / output.decode_seconds)
            run.tokens.append(output.token_ids)
            run.acceptance.add(output.acceptance)
    return runs


def rows(name: str, runs: dict[str, Run]) -> list[str]:
    """Format medians with the interquartile range; ``x plain`` is the median of the ratios per turn."""
    plain, lines = runs["plain"], [name]
    for way, run in runs.items():
        low, middle, high = statistics.quantiles(run.speeds, n=4)
        ratio = statistics.median(speed / base for speed, base in zip(run.speeds, plain.speeds, strict=True))
        same = "yes" if run.tokens == plain.tokens else "NO"
        spread = f"{middle:.0f} ({low:.0f} to {high:.0f})"
        lines.append(f"  {way:12}{spread:>20}{ratio:>10.2f}{run.acceptance.tokens_per_round:>14.2f}{same:>12}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ways of decoding on one engine.")
    parser.add_argument("engine", help="folder made by `peagle-compile build` of a model with a chat template")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--questions", type=int, help="questions of each kind. (default: all)")
    arguments = parser.parse_args()
    engine = Engine.load(arguments.engine, prefix_cache_bytes=0)
    chosen = questions()
    for question in chosen:
        if question.id in SHOWN:
            answer(engine, question, 2 * arguments.max_tokens)
    prompts = {
        kind: [question_ids(engine, each) for each in chosen if each.kind == kind][: arguments.questions]
        for kind in KINDS
    }
    compare(engine, prompts[KINDS[0]][:1], 0.0, 8)  # warm-up: first calls allocate
    counted = ", ".join(f"{len(each)} questions about {kind}" for kind, each in prompts.items())
    k, cores = engine.num_speculative_tokens, os.cpu_count()
    print(f"{counted}; {arguments.max_tokens} tokens each, K = {k} initially, {cores} cores\n")
    print(f"{'':14}{'tokens/s':>20}{'x plain':>10}{'tokens/round':>14}{'identical':>12}")
    for name, temperature in POLICIES.items():
        for kind, each in prompts.items():
            runs = compare(engine, each, temperature, arguments.max_tokens)
            print("\n".join(rows(f"{name}: {kind}", runs)), flush=True)
    print("\ntokens/s: median (middle half); x plain: median of the ratios paired per prompt")


if __name__ == "__main__":
    main()
