"""Dialogues and essays written by a chat model: many at once, turn by turn, without unusable answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from calibration_texts.least_tokens import least_tokens
from calibration_texts.subjects import (
    AFTER_CODE,
    AFTER_OTHERS,
    ASPECTS,
    CODE_QUESTIONS,
    ESSAYS,
    QUESTIONS,
    SYSTEMS,
)
from peagle.engines import Engine, SamplingParams

ANSWER_TOKENS, PART_TOKENS = 260, 300
TEMPERATURE, TOP_P = 0.6, 0.95
ATTEMPTS = 4
ESSAY = 500  # index of the first essay, so that its seeds differ from those of dialogues
SHORTEST = 25  # words of an answer
_RUN, _REPEATED = 5, 0.12  # maximum share of an answer's word runs of this length that occur earlier in the answer
_MAX_REPEATED_SHARE = 0.5  # maximum share that occur in earlier answers
_WORD = re.compile(r"\w+")
_PLAIN = re.compile(r"[\t\n\x20-\x7e\u2013-\u2026\u00a0-\u00ff]*")


def useless(answer: str, before: str = "") -> str:
    """Return why an answer is unusable, or nothing: too short, repetitive (also of ``before``), or odd characters."""
    words = _WORD.findall(answer.lower())
    if len(words) < SHORTEST:
        return "short"
    if not _PLAIN.fullmatch(answer):
        return "odd signs"
    runs = Counter(_runs(words))
    if sum(count - 1 for count in runs.values()) > _REPEATED * sum(runs.values()):
        return "repeats itself"
    words_before = set(_runs(_WORD.findall(before.lower())))
    if sum(count for run, count in runs.items() if run in words_before) > _MAX_REPEATED_SHARE * sum(runs.values()):
        return "repeats what was said"
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    return "repeats lines" if len(lines) > 8 and len(set(lines)) < 0.7 * len(lines) else ""


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1))


@dataclass
class Dialogue:
    """A dialogue being written; ``turns`` are the user's, as many as it takes to reach the length."""

    name: str
    index: int
    turns: Sequence[str]
    system: str | None
    answer_tokens: int
    answers: list[str] = field(default_factory=list)
    attempt: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The dialogue so far."""
        begun = [{"role": "system", "content": self.system}] if self.system else []
        for turn, answer in zip(self.turns, self.answers, strict=False):
            begun += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return begun

    @property
    def next_messages(self) -> list[dict[str, str]]:
        """The messages with the next question."""
        return [*self.messages, {"role": "user", "content": self.turns[len(self.answers)]}]

    @property
    def failed(self) -> bool:
        """True if it can no longer become long enough."""
        return self.attempt >= ATTEMPTS or len(self.answers) >= len(self.turns)

    def take(self, answer: str) -> None:
        """Append an answer, or count it as unusable."""
        why = useless(answer, "\n".join(self.answers))
        self.attempt = self.attempt + 1 if why else 0
        if why:
            self.dropped[why] += 1
        else:
            self.answers.append(answer)


def dialogues() -> list[Dialogue]:
    """Return the beginnings of all dialogues, code and others in turn."""
    begun = []
    for index, question in enumerate(QUESTIONS):
        after = AFTER_CODE if index < CODE_QUESTIONS else AFTER_OTHERS
        turns = (question, *(after[(index + step * 3) % len(after)] for step in range(6)))
        begun.append(Dialogue(f"dialogue-{index:02}", index, turns, SYSTEMS[index % len(SYSTEMS)], ANSWER_TOKENS))
    return begun


def essays() -> list[Dialogue]:
    """Return the beginnings of all essays: dialogues whose answers are the parts of a text."""
    ask = "You are a writer who explains things in plain paragraphs."
    return [
        Dialogue(f"essay-{index:02}", ESSAY + index, [each.format(subject) for each in ASPECTS], ask, PART_TOKENS)
        for index, subject in enumerate(ESSAYS)
    ]


def write(engine: Engine, begun: Sequence[Dialogue], tokens: int, seed: int) -> list[Dialogue]:
    """Return the dialogues whose answers have at least ``tokens`` tokens, in the order of ``begun``.

    The result depends only on engine and seed: requests do not influence one another.
    """
    open_ones = list(begun)
    while open_ones:
        submissions = [engine.submit_chat(each.next_messages, _params(each, seed)) for each in open_ones]
        for each, submission in zip(open_ones, submissions, strict=True):
            each.take(_whole(submission.result().text))
        open_ones = [each for each in open_ones if not _long(each, tokens) and not each.failed]
        print(f"{len(open_ones)} of {len(begun)} unfinished", flush=True)
    return [each for each in begun if _long(each, tokens)]


def _params(dialogue: Dialogue, seed: int) -> SamplingParams:
    drawn = seed * 1_000_000 + dialogue.index * 1000 + len(dialogue.answers) * 10 + dialogue.attempt
    return SamplingParams(max_tokens=dialogue.answer_tokens, temperature=TEMPERATURE, top_p=TOP_P, seed=drawn)


def _long(dialogue: Dialogue, tokens: int) -> bool:
    return sum(map(least_tokens, dialogue.answers)) >= tokens


def _whole(answer: str) -> str:
    """Return an answer cut after its last whole sentence or line."""
    answer = answer.strip()
    ends = [found.end() for found in re.finditer(r"[.!?](?=\s)|\n|```(?=\n)", answer)]
    return answer if answer.endswith((".", "!", "?", "```")) or not ends else answer[: ends[-1]].rstrip()
