"""The token sequences that a target is calibrated with, from a JSON Lines file or the bundled set.

A line holds ``text``, or ``messages`` (role and content each), or ``input_ids``.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....plugins.errors import UsageError
from ....plugins.problems import counted
from .encoder import Encoder

if TYPE_CHECKING:
    from ....graphs.lowering import Lowering

BUNDLED = Path(__file__).parents[2] / "bundled" / "texts" / "calibration"
KINDS = ("code", "chat", "prose")  # of the bundled samples, a file each
_FORMS = ("text", "messages", "input_ids")
_FORM = 'write {"text": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"input_ids": [1, 2]}'
_WRONG_IDS = "tokenize the texts with the tokenizer of this model, or give them as text"


@dataclass(frozen=True)
class Samples:
    """Sequences of token ids, in an order that their content decides, whatever order they were given in.

    ``name`` says where they come from; ``warnings`` what was done to them.
    """

    name: str
    ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, name: str, sequences: Iterable[Sequence[int]], warnings: Iterable[str] = ()) -> Samples:
        """The sequences, put in order. Raises ``UsageError`` if there is none or one is empty."""
        ids = [tuple(int(token) for token in sequence) for sequence in sequences]
        if not ids or not all(ids):
            raise UsageError(
                f"{name} has no sample" if not ids else f"{name} has a sample without tokens",
                why="calibration measures what texts do inside the model",
                fix="give at least one text that is not empty",
            )
        return cls(name, tuple(sorted(ids, key=lambda each: (_digest(each), each))), tuple(warnings))

    @cached_property
    def digest(self) -> str:
        """Content hash of all sequences."""
        return hashlib.sha256("".join(map(_digest, self.ids)).encode()).hexdigest()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(len(each) for each in self.ids)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return sum(self.lengths)

    def asked(self, count: int | None, length: int | None) -> Samples:
        """Return the same samples, with a warning where a user asked for more or longer ones than there are."""
        few = count is not None and count > len(self.ids)
        short = length is not None and length > max(self.lengths)
        told = [f"{count} samples were asked for, and {self.name} are {len(self.ids)}"] if few else []
        told += [f"samples of {length} tokens were asked for, and {self.name} have {max(self.lengths)} at most"] * short
        return replace(self, warnings=(*self.warnings, *told))

    def check(self, vocab_size: int) -> None:
        """Raise ``UsageError`` if a token id is not one of the model's."""
        wrong = sorted({token for each in self.ids for token in each if not 0 <= token < vocab_size})
        if wrong:
            raise UsageError(
                f"{self.name} has token ids that the model does not have: {', '.join(map(str, wrong[:5]))}",
                why=f"ids go from 0 to {vocab_size - 1}",
                fix="tokenize the samples with the tokenizer of this model",
            )


@dataclass(frozen=True)
class SampleLimits:
    """How much of a data set is used, in tokens and lines; fewer than ``min_tokens`` in all are refused."""

    max_samples: int = 128
    max_length: int = 512
    min_tokens: int = 256

    def __post_init__(self) -> None:
        if min(self.max_samples, self.max_length, self.min_tokens) < 1:
            raise UsageError("a limit on calibration samples is below 1", fix="give positive numbers")


@dataclass(frozen=True)
class _Line:
    """One sample as its file holds it."""

    where: str
    kind: str
    content: Any

    @property
    def rank(self) -> str:
        """Chosen by content: the same lines in any order, and whatever else changes in the file, few others change."""
        return hashlib.sha256(json.dumps([self.kind, self.content], sort_keys=True).encode()).hexdigest()


# A plan fixes the scale of an input, and cuts off every number that no sample had: it gets many samples. An engine for
# the CPU rounds inputs while it runs. Samples only weigh the columns of its four-bit weights against each other, and
# after some hundred tokens more of them change nothing that can be measured (docs/precision.md).
FOR_PLANS = SampleLimits()
FOR_CPU = SampleLimits(max_samples=16, max_length=128)


def default_limits(lowering: Lowering) -> SampleLimits:
    """How much is measured for a lowering unless the user says how much."""
    return FOR_PLANS if lowering.is_tensorrt else FOR_CPU


def bundled(encoder: Encoder, vocab_size: int, limits: SampleLimits | None = None) -> Samples:
    """The samples that come with the package: as much code as chat and prose, the kinds in turn.

    System turns that the chat template refuses are left out, and ``Samples.warnings`` says so. A text in a script that
    the tokenizer knows nothing of is left out too.
    """
    limits = limits or SampleLimits()
    kinds = [sorted(_lines(BUNDLED / f"{kind}.jsonl", vocab_size), key=lambda line: line.rank) for kind in KINDS]
    lines = [line for places in zip_longest(*kinds) for line in places if line is not None]
    lines, told = _accepted(lines, encoder)
    encoded = (ids for line in lines if (ids := _encoded(line, encoder)))
    told += _template_warning(lines, encoder)
    return _samples("the bundled samples", islice(encoded, limits.max_samples), told, vocab_size, limits)


def read_jsonl(path: Path, encoder: Encoder | None, vocab_size: int, limits: SampleLimits | None = None) -> Samples:
    """The samples of a JSON Lines file; ``encoder`` may be absent where all are ``input_ids``.

    Of more than ``limits.max_samples`` lines those are taken whose content hashes lowest. Raises ``UsageError`` naming
    the line for one that is malformed or has ids out of range, and for a set that is empty or too short.
    """
    limits = limits or SampleLimits()
    chosen = heapq.nsmallest(limits.max_samples, _lines(path, vocab_size), key=lambda line: line.rank)
    ids, told = [_ids(line, encoder) for line in chosen], _template_warning(chosen, encoder)
    return _samples(str(path), ids, told, vocab_size, limits)


def _lines(path: Path, vocab_size: int) -> Iterator[_Line]:
    """Every line that is not blank, checked."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    yield _line(f"{path}, line {number}", raw, vocab_size)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}", why=str(error), fix="give a JSON Lines file in UTF-8 that can be read"
        ) from None


def _line(where: str, raw: str, vocab_size: int) -> _Line:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _bad(where, f"it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise _bad(where, "it is not a JSON object")
    kinds = [kind for kind in _FORMS if kind in content]
    if len(kinds) != 1:
        has = f"both {' and '.join(kinds)}, and one line is one sample" if kinds else f"none of {', '.join(_FORMS)}"
        raise _bad(where, f"it has {has}")
    kind = kinds[0]
    complaint = _CHECKS[kind](content[kind], vocab_size)
    if complaint:
        raise _bad(where, complaint, _WRONG_IDS if complaint.startswith("token id ") else _FORM)
    return _Line(where, kind, content[kind])


def _check_text(value: Any, _: int) -> str:
    return "" if isinstance(value, str) and value else "its text is not a string, or is empty"


def _check_messages(value: Any, _: int) -> str:
    fits = isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in value
    )
    return "" if fits and value else "its messages are not a list of objects with the strings role and content"


def _check_ids(value: Any, vocab_size: int) -> str:
    if not isinstance(value, list) or not value or any(type(token) is not int for token in value):
        return "its input_ids are not a list of integers, or it is empty"
    wrong = [token for token in value if not 0 <= token < vocab_size]
    return f"token id {wrong[0]} is not one of the model's, 0 to {vocab_size - 1}" if wrong else ""


_CHECKS: dict[str, Callable[[Any, int], str]] = {
    "text": _check_text, "messages": _check_messages, "input_ids": _check_ids,
}  # fmt: skip


def _accepted(lines: Sequence[_Line], encoder: Encoder) -> tuple[list[_Line], list[str]]:
    """The lines with no system turn where the chat template takes none, and what to say of it."""
    if not encoder.template or not any(map(_begins_with_system, lines)) or encoder.takes_system:
        return list(lines), []
    less = [replace(line, content=line.content[1:]) if _begins_with_system(line) else line for line in lines]
    return less, ["the chat template takes no system turn: the bundled samples are read without theirs"]


def _begins_with_system(line: _Line) -> bool:
    return line.kind == "messages" and bool(line.content[0]["role"] == "system")


def _samples(
    name: str, sequences: Iterable[list[int]], told: Sequence[str], vocab_size: int, limits: SampleLimits
) -> Samples:
    """The sequences, each cut to its limit. Raises ``UsageError`` where that is too little."""
    samples = Samples.of(name, [ids[: limits.max_length] for ids in sequences], told)
    samples.check(vocab_size)
    if samples.tokens < limits.min_tokens:
        raise UsageError(
            f"too little text to calibrate with: {samples.tokens} tokens in {counted(samples.ids, 'sample')} of {name}",
            why=f"ranges seen in fewer than {limits.min_tokens} tokens say little about others",
            fix="add texts like those the model will serve",
        )
    return samples


def _ids(line: _Line, encoder: Encoder | None) -> list[int]:
    ids = _encoded(line, encoder)
    if not ids:
        raise _bad(line.where, "the tokenizer makes no token of it")
    return ids


def _encoded(line: _Line, encoder: Encoder | None) -> list[int]:
    if line.kind == "input_ids":
        return list(line.content)
    if encoder is None:
        raise _bad(line.where, f"it holds {line.kind}, and there is no tokenizer to read it with")
    try:
        return encoder.encode(line.content) if line.kind == "text" else encoder.converse(line.content)
    except ValueError as error:
        raise _bad(line.where, str(error)) from None


def _template_warning(lines: Sequence[_Line], encoder: Encoder | None) -> list[str]:
    if encoder is None or encoder.template or all(line.kind != "messages" for line in lines):
        return []
    return ["the checkpoint has no chat template: conversations were read as plain text"]


def _bad(where: str, why: str, fix: str = _FORM) -> UsageError:
    return UsageError(f"{where} is not a calibration sample", why=why, fix=fix)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()
