"""Text that engines are measured on and nothing is calibrated with: code, prose, and answers of a chat model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from corpus import load_corpus

from peagle.compiler.bundled.prompts import questions
from peagle.engines import Engine, SamplingParams


@dataclass(frozen=True)
class Passages:
    """Token ids of one kind of text, a pass each. The first token of a passage is given, not predicted."""

    kind: str
    ids: tuple[tuple[int, ...], ...]

    @property
    def predicted(self) -> int:
        """How many tokens are predicted."""
        return sum(map(len, self.ids)) - len(self.ids)

    @property
    def digest(self) -> str:
        """Twelve hex digits that are the same where the same tokens were measured."""
        sha = hashlib.sha256()
        for ids in self.ids:
            sha.update(len(ids).to_bytes(8, "little") + np.asarray(ids, "<i8").tobytes())
        return sha.hexdigest()[:12]


@dataclass(frozen=True)
class Amount:
    """How much of a kind: ``windows`` (None: all) of ``length`` tokens, ``answers`` of ``answer_tokens`` at most."""

    windows: int | None
    length: int
    answers: int
    answer_tokens: int


def code(engine: Engine, amount: Amount) -> Passages:
    """Files of the standard library that the demo pair was not trained on."""
    return Passages("code", _windows(engine, [file.text for file in load_corpus().held_out], amount))


def prose(engine: Engine, amount: Amount) -> Passages:
    """The language reference, as Python's ``help`` has it."""
    from pydoc_data.topics import topics

    return Passages("prose", _windows(engine, list(topics.values()), amount))


def chat(engine: Engine, amount: Amount) -> Passages:
    """The bundled questions, each with the greedy answer of ``engine``, as its chat template writes them."""
    params = SamplingParams(max_tokens=amount.answer_tokens)
    dialogues = []
    for question in questions(amount.answers):
        messages = [{"role": "user", "content": question.text}]
        _, prompt = engine.chat_prompt(messages)
        dialogues.append((*prompt, *engine.chat(messages, params).token_ids))
    return Passages("chat", tuple(dialogues))


KINDS: dict[str, Callable[[Engine, Amount], Passages]] = {"code": code, "prose": prose, "chat": chat}


def _windows(engine: Engine, documents: Sequence[str], amount: Amount) -> tuple[tuple[int, ...], ...]:
    """Windows that share a token, spread evenly over all documents, each of which ends with the end-of-text token."""
    stream: list[int] = []
    for text in documents:
        stream += [*engine.tokenizer.encode(text), *engine.manifest.eos_token_ids[:1]]
    every = [tuple(stream[at : at + amount.length + 1]) for at in range(0, len(stream) - amount.length, amount.length)]
    count = len(every) if amount.windows is None else amount.windows
    return tuple(every[:: max(1, len(every) // count)][:count])
