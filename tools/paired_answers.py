"""Answers of one engine with drafts and without: decoded, compared token by token, and their scores as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle.engines import Acceptance, Engine, RequestOutput, SamplingParams
from peagle.engines.draft_methods import METHODS


@dataclass(frozen=True)
class Question:
    """A question under the name that reports have for it."""

    name: str
    text: str


@dataclass(frozen=True)
class Run:
    """The answers to all questions, decoded in one way."""

    name: str
    answers: Sequence[RequestOutput]

    def row(self, right: int | None) -> str:
        """Return the row of the table."""
        total = Acceptance()
        for each in self.answers:
            total.add(each.acceptance)
        tokens, count = sum(len(each.token_ids) for each in self.answers), len(self.answers)
        score = "not run | " if right is None else f"{right} of {count} | {right / count:.1%}"
        return f"| {self.name} | {tokens:,} | {total.acceptance_length:.2f} | {score} |"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of an evaluation's command line, with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--max-tokens", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--k", type=int, help="drafts per round; default: as the engine chooses")
    return parser


def decode(folder: Path, questions: Sequence[Question], max_tokens: int, k: int | None) -> list[Run]:
    """Return the greedy answers without drafts and with, one at a time, through the engine's chat template."""
    params = SamplingParams(max_tokens=max_tokens)
    with Engine.load(folder, prefix_cache_bytes=0) as engine:
        conversations = [{"role": "user", "content": each.text} for each in questions]
        return [
            Run(name, [engine.chat([each], params, num_speculative_tokens=count) for each in conversations])
            for name, count in (("none", 0), (METHODS[engine.manifest.method].title, k))
        ]


def report(
    questions: Sequence[Question], runs: Sequence[Run], score: str, is_right: Callable[[int, str], bool] | None
) -> None:
    """Print the table and the comparison; exit with status 1 if a text differs.

    ``is_right`` gets a question's number and the text of an answer; None: answers are not scored.
    """
    print(f"| drafts | tokens | acceptance length | right | {score} |\n|---|---|---|---|---|")
    for run in runs:
        right = None
        if is_right:
            right = sum(is_right(number, each.text) for number, each in enumerate(run.answers))
        print(run.row(right), flush=True)
    plain, drafted = (run.answers for run in runs)
    differ = [
        each.name
        for each, a, b in zip(questions, plain, drafted, strict=True)
        if tuple(a.token_ids) != tuple(b.token_ids)
    ]
    print(f"\n{len(questions) - len(differ)} of {len(questions)} texts are identical")
    if differ:
        sys.exit(f"different: {', '.join(differ)}")
