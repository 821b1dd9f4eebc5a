"""Token sequences for calibrating a target, from a JSON Lines file or the bundled set.

A line has ``text``, ``messages`` (each with role and content), or ``input_ids``.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
KINDS = ("code", "chat", "prose")  # one file of bundled samples each
_FORMS = ("text", "messages", "input_ids")
_FORM = 'use {"text": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"input_ids": [1, 2]}'
_MAX_LINE = 2**26  # characters; the only line of a device never ends
_WRONG_IDS = "tokenize the texts with the tokenizer of this model, or pass them as text"


@dataclass(frozen=True)
class Samples:
    """Sequences of token ids, in an order determined by their content, independent of the input order.

    ``name`` states their origin; ``warnings`` list changes made to them.
    """

    name: str
    ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, name: str, sequences: Iterable[Sequence[int]], warnings: Iterable[str] = ()) -> Samples:
        """Order the sequences. Raises ``UsageError`` if there are none or one is empty."""
        ids = [tuple(int(token) for token in sequence) for sequence in sequences]
        if not ids or not all(ids):
            raise UsageError(
                f"{name} has no samples" if not ids else f"{name} has a sample without tokens",
                why="calibration measures the model's activations on texts",
                fix="provide at least one text that is not empty",
            )
        return cls(name, tuple(sorted(ids, key=lambda each: (_digest(each), each))), tuple(warnings))

    @cached_property
    def digest(self) -> str:
        """Content hash of all sequences."""
        return hashlib.sha256("".join(map(_digest, self.ids)).encode()).hexdigest()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each sequence."""
        return tuple(len(each) for each in self.ids)

    @property
    def tokens(self) -> int:
        """The total number of tokens."""
        return sum(self.lengths)

    def with_shortage_warnings(self, count: int | None, length: int | None) -> Samples:
        """Return the same samples, with a warning if more or longer ones were requested than exist."""
        is_short_of_samples = count is not None and count > len(self.ids)
        short = length is not None and length > max(self.lengths)
        warnings = (
            [f"{count} samples were requested, but {self.name} has only {len(self.ids)}"] if is_short_of_samples else []
        )
        warnings += [
            f"samples of {length} tokens were requested, but the longest of {self.name} has {max(self.lengths)}"
        ] * short
        return replace(self, warnings=(*self.warnings, *warnings))

    def check(self, vocab_size: int) -> None:
        """Raise ``UsageError`` for a token id outside the model's vocabulary."""
        wrong = sorted({token for each in self.ids for token in each if not 0 <= token < vocab_size})
        if wrong:
            raise UsageError(
                f"{self.name} has token ids that are not in the model's vocabulary: {', '.join(map(str, wrong[:5]))}",
                why=f"ids must be from 0 to {vocab_size - 1}",
                fix="tokenize the samples with the tokenizer of this model",
            )


@dataclass(frozen=True)
class SampleLimits:
    """Limits on the samples of a data set, in lines and tokens. Fewer than ``min_tokens`` in total are an error."""

    max_samples: int = 128
    max_length: int = 512
    min_tokens: int = 256

    def __post_init__(self) -> None:
        smallest = min(self.max_samples, self.max_length, self.min_tokens)
        if smallest < 1:
            raise UsageError(f"limits on calibration samples must be at least 1, not {smallest}", fix="use 1 or more")


@dataclass(frozen=True)
class _Line:
    """One sample as stored in its file."""

    location: str
    kind: str
    content: Any

    @property
    def rank(self) -> str:
        """A content hash for selecting samples: independent of order, and stable when other lines change."""
        return hashlib.sha256(json.dumps([self.kind, self.content], sort_keys=True).encode()).hexdigest()


# A plan fixes the scale of each input and clips all values beyond it, so it needs many samples. CPU engines quantize
# inputs at run time: samples only weight the columns of four-bit weights against each other, and beyond a few hundred
# tokens more of them make no measurable difference (docs/precision.md).
FOR_PLANS = SampleLimits()
FOR_CPU = SampleLimits(max_samples=16, max_length=128)


def default_limits(lowering: Lowering) -> SampleLimits:
    """Return the default amount of calibration data for a lowering."""
    return FOR_PLANS if lowering.is_tensorrt else FOR_CPU


def bundled(encoder: Encoder, vocab_size: int, limits: SampleLimits | None = None) -> Samples:
    """Return the bundled samples: equal parts of code, chat and prose, in turn.

    System turns that the chat template rejects are removed, with a note in ``Samples.warnings``. Texts in a script that
    the tokenizer does not know are skipped.
    """
    limits = limits or SampleLimits()
    kinds = [sorted(_lines(BUNDLED / f"{kind}.jsonl", vocab_size), key=lambda line: line.rank) for kind in KINDS]
    lines = [line for row in zip_longest(*kinds) for line in row if line is not None]
    lines, warnings = _accepted(lines, encoder)
    encoded = (ids for line in lines if (ids := _encoded(line, encoder)))
    warnings += _template_warning(lines, encoder)
    return _samples("the bundled samples", islice(encoded, limits.max_samples), warnings, vocab_size, limits)


def read_jsonl(path: Path, encoder: Encoder | None, vocab_size: int, limits: SampleLimits | None = None) -> Samples:
    """Read the samples of a JSON Lines file; ``encoder`` is optional if all lines are ``input_ids``.

    If there are more than ``limits.max_samples`` lines, those with the lowest content hash are used. Raises
    ``UsageError`` naming the line if it is malformed or has ids out of range, and for a set that is empty or too short.
    """
    limits = limits or SampleLimits()
    chosen = heapq.nsmallest(limits.max_samples, _lines(path, vocab_size), key=lambda line: line.rank)
    ids, warnings = [_ids(line, encoder) for line in chosen], _template_warning(chosen, encoder)
    return _samples(str(path), ids, warnings, vocab_size, limits)


def _lines(path: Path, vocab_size: int) -> Iterator[_Line]:
    """Yield every line that is not blank, checked."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, raw in enumerate(iter(partial(file.readline, _MAX_LINE + 1), ""), 1):
                if len(raw) > _MAX_LINE:
                    raise _bad(f"{path}, line {number}", f"the line has more than {_MAX_LINE:,} characters")
                if raw.strip():
                    yield _line(f"{path}, line {number}", raw, vocab_size)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}", why=str(error), fix="pass a readable JSON Lines file in UTF-8"
        ) from None


def _line(location: str, raw: str, vocab_size: int) -> _Line:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _bad(location, f"the line is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise _bad(location, "the line is not a JSON object")
    kinds = [kind for kind in _FORMS if kind in content]
    if len(kinds) != 1:
        both = f"both {' and '.join(kinds)}, but each line must have one sample"
        has = both if kinds else f"none of {', '.join(_FORMS)}"
        raise _bad(location, f"the line has {has}")
    kind = kinds[0]
    problem = _CHECKS[kind](content[kind], vocab_size)
    if problem:
        raise _bad(location, problem, _WRONG_IDS if problem.startswith("token id ") else _FORM)
    return _Line(location, kind, content[kind])


def _check_text(value: Any, _: int) -> str:
    return "" if isinstance(value, str) and value else "the text is not a string, or is empty"


def _check_messages(value: Any, _: int) -> str:
    fits = isinstance(value, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in value
    )
    return "" if fits and value else "the messages are not a list of objects with a role and a content, both strings"


def _check_ids(value: Any, vocab_size: int) -> str:
    if not isinstance(value, list) or not value or any(type(token) is not int for token in value):
        return "the input_ids are not a list of integers, or are empty"
    wrong = [token for token in value if not 0 <= token < vocab_size]
    return f"token id {wrong[0]} is not in the model's vocabulary, 0 to {vocab_size - 1}" if wrong else ""


_CHECKS: dict[str, Callable[[Any, int], str]] = {
    "text": _check_text, "messages": _check_messages, "input_ids": _check_ids,
}  # fmt: skip


def _accepted(lines: Sequence[_Line], encoder: Encoder) -> tuple[list[_Line], list[str]]:
    """Remove system turns if the chat template rejects them; returns the lines and warnings."""
    if not encoder.template or not any(map(_begins_with_system, lines)) or encoder.accepts_system:
        return list(lines), []
    less = [replace(line, content=line.content[1:]) if _begins_with_system(line) else line for line in lines]
    return less, ["the chat template rejects system messages: they were removed from the bundled samples"]


def _begins_with_system(line: _Line) -> bool:
    return line.kind == "messages" and bool(line.content[0]["role"] == "system")


def _samples(
    name: str, sequences: Iterable[list[int]], warnings: Sequence[str], vocab_size: int, limits: SampleLimits
) -> Samples:
    """Truncate sequences to the limit. Raises ``UsageError`` if there is too little text."""
    whole = list(sequences)
    samples = Samples.of(name, [ids[: limits.max_length] for ids in whole], warnings)
    samples.check(vocab_size)
    if samples.tokens < limits.min_tokens:
        fixes = ["increase --calib-samples"] * (len(whole) == limits.max_samples)
        fixes += ["increase --calib-length"] * (max(map(len, whole)) > limits.max_length)
        if len(fixes) < 2:  # else, further texts have no effect
            fixes.append("add texts similar to those that the model will process")
        raise UsageError(
            f"too little text for calibration: {name} has {samples.tokens} tokens in {counted(samples.ids, 'sample')}",
            why=f"calibration needs at least {limits.min_tokens} tokens: ranges from fewer tokens do not generalize",
            fix=", or ".join(fixes),
        )
    return samples


def _ids(line: _Line, encoder: Encoder | None) -> list[int]:
    ids = _encoded(line, encoder)
    if not ids:
        raise _bad(line.location, "the tokenizer returns no tokens for this line")
    return ids


def _encoded(line: _Line, encoder: Encoder | None) -> list[int]:
    if line.kind == "input_ids":
        return list(line.content)
    if encoder is None:
        raise _bad(line.location, f"the line contains {line.kind}, but the checkpoint has no tokenizer")
    try:
        return encoder.encode(line.content) if line.kind == "text" else encoder.converse(line.content)
    except ValueError as error:
        raise _bad(line.location, str(error)) from None


def _template_warning(lines: Sequence[_Line], encoder: Encoder | None) -> list[str]:
    if encoder is None or encoder.template or all(line.kind != "messages" for line in lines):
        return []
    return ["the checkpoint has no chat template, so conversations were read as plain text"]


def _bad(location: str, why: str, fix: str = _FORM) -> UsageError:
    return UsageError(f"{location} is not a calibration sample", why=why, fix=fix)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(ids, "<i8").tobytes()).hexdigest()
