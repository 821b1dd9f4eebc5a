"""Score an engine's greedy answers to GSM8K with drafts and without: the texts are equal, and so is the score.

    git clone https://github.com/openai/grade-school-math
    python tools/score_gsm8k.py ENGINE grade-school-math/grade_school_math/data/test.jsonl

Each question is asked as it is, without examples, through the engine's chat template. An answer is right if the last
number in it is that of the dataset (MIT licence; `--tasks` takes the first questions). The exit status is 1 if a text
differs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from paired_answers import Question, decode, parser_of, report

from peagle.plugins.errors import UsageError

_NUMBER = re.compile(r"(?:(?<![\w)])-)?\d[\d,]*(?:\.\d+)?")  # "5-3" has no negative number
_BEFORE_ANSWER = "#### "  # of a solution in the dataset


@dataclass(frozen=True)
class Problem:
    """A question with the number that answers it."""

    question: str
    answer: Decimal

    def is_solved_by(self, text: str) -> bool:
        """Return whether the last number of the text is the answer."""
        return last_number(text) == self.answer


def last_number(text: str) -> Decimal | None:
    """Return the last number of a text, None if it has none. Commas group digits."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def problems_of(path: Path) -> list[Problem]:
    """Return the problems of a file of GSM8K. Raises ``UsageError`` for any other file."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Problem(each["question"], Decimal(each["answer"].rpartition(_BEFORE_ANSWER)[2].replace(",", "")))
            for each in lines
        ]
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"cannot read {path} as problems of GSM8K: {error!r}",
            fix="pass grade_school_math/data/test.jsonl of the repository openai/grade-school-math",
        ) from None


def main() -> None:
    """Generate, compare, score, and set the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--tasks", type=int, default=1319, help="default: %(default)s, all of them")
    parser.add_argument("problems", type=Path, help="test.jsonl of the dataset")
    arguments = parser.parse_args()
    problems = problems_of(arguments.problems)[: arguments.tasks]
    questions = [Question(f"GSM8K/{number}", each.question) for number, each in enumerate(problems)]
    runs = decode(arguments.engine, questions, arguments.max_tokens, arguments.k)
    report(questions, runs, "exact match", lambda number, text: problems[number].is_solved_by(text))


if __name__ == "__main__":
    main()
