"""Validates arguments of callers (numbers, texts, prompts, sizes) and converts them to plain Python values."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...plugins.errors import UsageError
from ..errors import PromptTooLong

ONE_PROMPT = "a str, or token ids: a sequence of ints or a one-dimensional array of them"
_BYTES = (str, bytes, bytearray, memoryview)


def integer(
    name: str, value: Any, minimum: int | None = None, maximum: int | None = None, *, why: str = "", fix: str = ""
) -> int:
    """Return ``value`` as an int in range; accepts Python's and NumPy's integers, no bool or float.

    Raises ``UsageError``.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if (minimum is None or number >= minimum) and (maximum is None or number <= maximum):
            return number
    accepted = "an integer"
    if minimum is not None:
        accepted += f" of {minimum} or more" if maximum is None else f" from {minimum} to {maximum}"
    raise refusal(name, accepted, value, why=why, fix=fix)


def number(name: str, value: Any, minimum: float, maximum: float = math.inf, *, is_above: bool = False) -> float:
    """Return ``value`` as a finite float from ``minimum`` (exclusive if ``is_above``) to ``maximum``.

    Raises ``UsageError``.
    """
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        if math.isfinite(real) and (minimum < real if is_above else minimum <= real) and real <= maximum:
            return real
    low = (
        f"above {minimum:g}" if is_above else f"of {minimum:g} or more" if maximum == math.inf else f"from {minimum:g}"
    )
    high = "" if maximum == math.inf else f" and at most {maximum:g}" if is_above else f" to {maximum:g}"
    raise refusal(name, f"a finite number {low}{high}", value)


def flag(name: str, value: Any) -> bool:
    """Return ``value`` as a bool, Python's or NumPy's. Raises ``UsageError``."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise refusal(name, "True or False", value)


def text_of(name: str, value: Any) -> str:
    """Return ``value`` as a str that can be encoded. Raises ``UsageError``, also for a lone surrogate."""
    if not isinstance(value, str):
        raise refusal(name, "a str", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} is not valid text: character {error.start} is the lone surrogate U+{ord(value[error.start]):X}",
            why="lone surrogates stand for bytes that are not valid UTF-8, or come from a damaged UTF-16 pair",
            fix="pass text that was decoded without errors",
        ) from None
    return str(value)


def texts_of(
    name: str, value: Any, *, max_count: int | None = None, max_characters: int | None = None
) -> tuple[str, ...]:
    """Return one str or a list of them as a tuple, None as an empty one.

    Raises ``UsageError``, also for empty text, more than ``max_count`` texts, or more than ``max_characters`` in all.
    """
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(each, str) and each for each in texts):
        raise refusal(name, "a str or a list of non-empty strings", value)
    require_at_most(name, len(texts), max_count, "texts")
    require_at_most(name, sum(map(len, texts)), max_characters, "characters")
    return tuple(text_of(name, each) for each in texts)


def require_at_most(name: str, count: int, limit: int | None, unit: str) -> None:
    """Raise ``UsageError`` with the limit if ``count`` exceeds ``limit``."""
    if limit is not None and count > limit:
        raise UsageError(f"{name} has {count} {unit}, but at most {limit} are allowed", fix=f"shorten {name}")


def prompts_of(value: Any) -> Sequence[Any]:
    """Return the list of prompts; its items are not checked. Raises ``UsageError``."""
    if isinstance(value, str):
        raise UsageError("prompts must be a list, not a str", fix=f"pass [{reprlib.repr(value)}]")
    if isinstance(value, Sequence) and not isinstance(value, _BYTES):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return list(value)
    raise refusal("prompts", f"a list of prompts, each of them {ONE_PROMPT}", value)


def token_ids_of(
    name: str, value: Any, vocab_size: int, max_seq_len: int, keep_last: int | None = None
) -> tuple[int, ...]:
    """Return a prompt's ids as a tuple, only the last ``keep_last`` of them if that is set.

    Raises ``UsageError`` for no ids, invalid or out-of-range ids, or too many.
    """
    sequence = _sequence(name, value)
    sequence = sequence if keep_last is None else sequence[-keep_last:]
    if not len(sequence):
        raise UsageError(f"{name} is empty", why="generation needs at least one token", fix="pass at least one token")
    if len(sequence) >= max_seq_len:
        raise PromptTooLong(name, len(sequence), max_seq_len)
    ids = integers(name, sequence)
    bad = [i for i in ids if not 0 <= i < vocab_size]
    if bad:
        raise UsageError(
            f"{name}: token id {shown(bad[0])} is out of range (one of {len(bad)} such ids)",
            why=f"the ids of the target's vocabulary are 0 to {vocab_size - 1}",
            fix="encode the prompt with this engine's tokenizer",
        )
    return ids


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        found: list[int] = value.tolist()
        return found
    if not isinstance(value, Sequence) or isinstance(value, _BYTES):
        raise refusal(name, ONE_PROMPT, value)
    return value


def integers(name: str, values: Sequence[Any], minimum: int | None = None) -> tuple[int, ...]:
    """Return ``values`` as ints of at least ``minimum``.

    Raises ``UsageError`` with the index of the first invalid one.
    """
    if {*map(type, values)} <= {int} and (minimum is None or min(values, default=minimum) >= minimum):
        return tuple(values)
    return tuple(integer(f"{name}[{at}]", each, minimum) for at, each in enumerate(values))


def refusal(name: str, accepted: str, value: Any, *, why: str = "", fix: str = "") -> UsageError:
    """Return an error with the parameter, the accepted values, and the given one."""
    description = "None" if value is None else f"{shown(value)} ({type(value).__name__})"
    return UsageError(f"{name} must be {accepted}, not {description}", why=why, fix=fix or f"change {name}")


def shown(value: Any) -> str:
    """Return a short text for any value, even if it is very long or cannot be printed."""
    try:
        return reprlib.repr(value)
    except Exception:  # integers with more digits than Python prints, or a failing repr
        return "a value"
