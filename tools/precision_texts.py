"""Evaluation text that is never used for calibration: code, prose, and answers of a chat model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from corpus import load_corpus

from peagle.compiler.bundled.prompts import questions
from peagle.engines import Engine, SamplingParams
from peagle.plugins.errors import UsageError


@dataclass(frozen=True)
class Passages:
    """Token ids of one kind of text, one pass per passage. The first ``given`` tokens of a passage are not scored."""

    kind: str
    ids: tuple[tuple[int, ...], ...]
    given: tuple[int, ...]

    @property
    def predicted(self) -> int:
        """The number of predicted tokens."""
        return sum(map(len, self.ids)) - sum(self.given)

    @property
    def digest(self) -> str:
        """Twelve hex digits that identify the measured tokens."""
        sha = hashlib.sha256()
        for ids, given in zip(self.ids, self.given, strict=True):
            sha.update(np.asarray([len(ids), given, *ids], "<i8").tobytes())
        return sha.hexdigest()[:12]


@dataclass(frozen=True)
class Amount:
    """The amount of text: ``windows`` (None: all) of ``length`` tokens, ``answers`` of at most ``answer_tokens``."""

    windows: int | None
    length: int
    answers: int
    answer_tokens: int


def code(engine: Engine, amount: Amount) -> Passages:
    """Return standard-library files that the demo pair was not trained on."""
    return _windows("code", engine, [file.text for file in load_corpus().held_out], amount)


def prose(engine: Engine, amount: Amount) -> Passages:
    """Return the Python language reference, from Python's ``help``."""
    from pydoc_data.topics import topics

    return _windows("prose", engine, list(topics.values()), amount)


def chat(engine: Engine, amount: Amount) -> Passages:
    """Return the greedy answers of ``engine`` to the bundled questions; the chat-templated questions are not scored."""
    params = SamplingParams(max_tokens=amount.answer_tokens)
    conversations = ([{"role": "user", "content": question.text}] for question in questions(amount.answers))
    answers = [engine.chat(messages, params) for messages in conversations]
    ids = tuple((*answer.prompt_token_ids, *answer.token_ids) for answer in answers)
    return Passages("chat", ids, tuple(len(answer.prompt_token_ids) for answer in answers))


KINDS: dict[str, Callable[[Engine, Amount], Passages]] = {"code": code, "prose": prose, "chat": chat}


def _windows(kind: str, engine: Engine, documents: Sequence[str], amount: Amount) -> Passages:
    """Return windows that overlap by one token, spread over all documents, which end with the end-of-text token."""
    stream: list[int] = []
    for text in documents:
        stream += [*engine.tokenizer.encode(text), *engine.manifest.eos_token_ids[:1]]
    every = [tuple(stream[at : at + amount.length + 1]) for at in range(0, len(stream) - amount.length, amount.length)]
    if not every:
        raise UsageError(
            f"a window of {amount.length} tokens is longer than the text",
            why=f"the {kind} text has {len(stream)} tokens",
            fix="use shorter windows",
        )
    count = len(every) if amount.windows is None else amount.windows
    ids = tuple(every[:: max(1, len(every) // count)][:count])
    return Passages(kind, ids, (1,) * len(ids))
