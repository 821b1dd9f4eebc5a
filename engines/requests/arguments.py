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
    name: str, value: Any, least: int | None = None, most: int | None = None, *, why: str = "", fix: str = ""
) -> int:
    """Return ``value`` as an int in range; accepts Python's and NumPy's integers, no bool or float.

    Raises ``UsageError``.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    accepted = "an integer"
    if least is not None:
        accepted += f" of {least} or more" if most is None else f" from {least} to {most}"
    raise refusal(name, accepted, value, why=why, fix=fix)


def number(name: str, value: Any, least: float, most: float = math.inf, *, is_above: bool = False) -> float:
    """Return ``value`` as a finite float from ``least`` (exclusive if ``is_above``) to ``most``.

    Raises ``UsageError``.
    """
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        if math.isfinite(real) and (least < real if is_above else least <= real) and real <= most:
            return real
    low = f"above {least:g}" if is_above else f"of {least:g} or more" if most == math.inf else f"from {least:g}"
    high = "" if most == math.inf else f" and at most {most:g}" if is_above else f" to {most:g}"
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
            why="Python uses lone surrogates for bytes that are not UTF-8, and for surrogates without their pair",
            fix="pass text that was decoded without errors",
        ) from None
    return str(value)


def texts_of(name: str, value: Any, *, most: int | None = None, most_characters: int | None = None) -> tuple[str, ...]:
    """Return one str or a list of them as a tuple, None as an empty one.

    Raises ``UsageError``, also for empty text, more than ``most`` texts, or more than ``most_characters`` in all.
    """
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) and each for each in given):
        raise refusal(name, "a str or a list of non-empty strings", value)
    require_at_most(name, len(given), most, "texts")
    require_at_most(name, sum(map(len, given)), most_characters, "characters")
    return tuple(text_of(name, each) for each in given)


def require_at_most(name: str, count: int, most: int | None, unit: str) -> None:
    """Raise ``UsageError`` with the limit if ``count`` exceeds ``most``."""
    if most is not None and count > most:
        raise UsageError(f"{name} has {count} {unit}, but at most {most} are allowed", fix=f"shorten {name}")


def prompts_of(value: Any) -> Sequence[Any]:
    """Return the list of prompts; its items are not checked. Raises ``UsageError``."""
    if isinstance(value, str):
        raise UsageError("prompts must be a list, not a str", fix=f"pass [{reprlib.repr(value)}]")
    if isinstance(value, Sequence) and not isinstance(value, _BYTES):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return list(value)
    raise refusal("prompts", f"a list of prompts, each of them {ONE_PROMPT}", value)


def token_ids_of(name: str, value: Any, vocab_size: int, max_seq_len: int, kept: int | None = None) -> tuple[int, ...]:
    """Return a prompt's ids as a tuple, only the last ``kept`` of them if that is set.

    Raises ``UsageError`` for no ids, invalid or out-of-range ids, or too many.
    """
    given = _sequence(name, value)
    given = given if kept is None else given[-kept:]
    if not len(given):
        raise UsageError(f"{name} is empty", why="generation needs at least one token", fix="pass at least one token")
    if len(given) >= max_seq_len:
        raise PromptTooLong(name, len(given), max_seq_len)
    ids = integers(name, given)
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


def integers(name: str, values: Sequence[Any], least: int | None = None) -> tuple[int, ...]:
    """Return ``values`` as ints of at least ``least``.

    Raises ``UsageError`` with the index of the first invalid one.
    """
    if {*map(type, values)} <= {int} and (least is None or min(values, default=least) >= least):
        return tuple(values)
    return tuple(integer(f"{name}[{at}]", each, least) for at, each in enumerate(values))


def refusal(name: str, accepted: str, value: Any, *, why: str = "", fix: str = "") -> UsageError:
    """Return an error with the parameter, the accepted values, and the given one."""
    given = "None" if value is None else f"{shown(value)} ({type(value).__name__})"
    return UsageError(f"{name} must be {accepted}, not {given}", why=why, fix=fix or f"change {name}")


def shown(value: Any) -> str:
    """Return a short text for any value, even if it is very long or cannot be printed."""
    try:
        return reprlib.repr(value)
    except Exception:  # integers with more digits than Python prints, or a failing repr
        return "a value"
