"""Answers from outside the command line: a file of options (``--config``) and single ones (``--set``), typed."""

from __future__ import annotations

import reprlib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from ...plugins.errors import UsageError
from ..console.option_fields import Option

_KINDS = {str: "a text", int: "a whole number", float: "a number", Path: "a path"}


def read_config(path: Path) -> dict[str, Any]:
    """The mapping that a YAML or JSON file holds. Raises ``UsageError`` for another file."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read", why=str(error.strerror), fix="name a file") from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from None
    try:
        content = yaml.safe_load(text)
    except Exception as error:  # the loader also raises what int(), date() and deep nesting raise
        raise _unreadable(path, error) from None
    if content is not None and not isinstance(content, dict):
        raise UsageError(
            f"--config {path} holds no options", why="it is not a mapping", fix="for example: max_seq_len: 4096"
        )
    return content or {}


def _unreadable(path: Path, error: Exception) -> UsageError:
    """The refusal of a file that no mapping can be read from."""
    why = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"--config {path} is neither YAML nor JSON", why=why, fix="for example: max_seq_len: 4096")


def read_settings(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Names and texts of ``a.b=c``. Raises ``UsageError`` for what has no name or no ``=``."""
    pairs = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {setting} sets nothing", fix="for example --set sizes.max_seq_len=4096")
        pairs.append((name.strip(), text))
    return pairs


def typed(value: Any, kind: Any, option: Option, key: str) -> Any:
    """``value`` as the type of an option's field; a text is read as the command line reads it.

    Raises ``UsageError`` for a value of another type, or below the least.
    """
    inner = next(each for each in get_args(kind) if each is not types.NoneType) if _optional(kind) else kind
    if get_args(inner):  # several texts
        return _texts(value, option, key)
    result = _read(value, inner) if isinstance(value, str) and inner not in (str, Path) else _taken(value, inner)
    if result is None:
        raise UsageError(f"{key} {shown(value)} is not {_KINDS[inner]}", fix=f"see {option.flag}: {option.help}")
    if option.least is not None and result < option.least:
        raise UsageError(f"{key} {shown(result)} is below {option.least}", fix=f"see {option.flag}: {option.help}")
    return result


def shown(value: Any) -> str:
    """Write a value for an error, cut short: aliases in a small file can make an enormous one."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring = 2, 80
    try:
        return short.repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "of too many digits"


def _optional(kind: Any) -> bool:
    return types.NoneType in get_args(kind)


def _texts(value: Any, option: Option, key: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{key} {shown(value)} is not a list of texts", fix=f"see {option.flag}: {option.help}")
    if option.split:
        texts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(texts)


def _read(text: str | int, kind: Any) -> Any:
    """The number that a text says; None where it says none."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        return None


def _taken(value: Any, kind: Any) -> Any:
    """A value that has the type, or that it can be made of without loss; None for any other."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _read(value, kind)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
