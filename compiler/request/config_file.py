"""Option values from a file (``--config``) and from ``--set``, converted to the types of the options."""

from __future__ import annotations

import reprlib
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from ...plugins.errors import UsageError
from ..console.input_text import file_text
from ..console.option_fields import Option
from .repeated_keys import repeated_key

_KINDS = {str: "a string", int: "an integer", float: "a number", Path: "a path"}


def read_config(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML or JSON file. Raises ``UsageError`` for any other file."""
    import yaml

    text = file_text("--config", path)
    try:
        content, repeated = yaml.safe_load(text), repeated_key(text)
    except Exception as error:  # the loader also passes on errors of int(), date() and deep nesting
        raise _unreadable(path, error) from None
    if repeated is not None:
        key, line = repeated
        raise UsageError(
            f"--config {path} sets {shown(key)} twice",
            why=f"line {line} sets it again, and only one value can apply",
            fix="remove one of the two",
        )
    if content is not None and not isinstance(content, dict):
        raise UsageError(
            f"--config {path} contains no options",
            why="the content of the file is not a mapping",
            fix="write options such as max_seq_len: 4096",
        )
    return content or {}


def _unreadable(path: Path, error: Exception) -> UsageError:
    """Return the error for a file that is neither YAML nor JSON."""
    why = " ".join(str(error).split()) or type(error).__name__
    return UsageError(
        f"--config {path} is neither YAML nor JSON", why=why, fix="write options such as max_seq_len: 4096"
    )


def read_settings(settings: Sequence[str]) -> list[tuple[str, str]]:
    """Split settings ``a.b=c`` into names and texts. Raises ``UsageError`` if the name or the ``=`` is missing."""
    pairs = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--set {setting} is not NAME=VALUE", fix="use NAME=VALUE, for example --set sizes.max_seq_len=4096"
            )
        pairs.append((name.strip(), text))
    return pairs


def typed(value: Any, kind: Any, option: Option, key: str) -> Any:
    """Convert ``value`` to the type of an option; text is parsed as on the command line.

    Raises ``UsageError`` for a value of another type or below the minimum.
    """
    inner = next(each for each in get_args(kind) if each is not types.NoneType) if _optional(kind) else kind
    if get_args(inner):  # a list of texts
        return _texts(value, option, key)
    result = _read(value, inner) if isinstance(value, str) and inner not in (str, Path) else _converted(value, inner)
    if result is None:
        raise UsageError(f"{key} {shown(value)} is not {_KINDS[inner]}", fix=f"see {option.flag}: {option.help}")
    if option.minimum is not None and result < option.minimum:
        raise UsageError(f"{key} {shown(result)} is below {option.minimum}", fix=f"see {option.flag}: {option.help}")
    return result


def shown(value: Any) -> str:
    """Format a value for an error, shortened: aliases in a small YAML file can make an enormous value."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring = 2, 80
    try:
        return short.repr(value)
    except ValueError:  # Python does not format integers of more than 4300 digits
        return "(too many digits)"


def _optional(kind: Any) -> bool:
    return types.NoneType in get_args(kind)


def _texts(value: Any, option: Option, key: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{key} {shown(value)} is not a list of strings", fix=f"see {option.flag}: {option.help}")
    if option.split:
        texts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(texts)


def _read(text: str | int, kind: Any) -> Any:
    """Parse a number; None if the text is not one."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        return None


def _converted(value: Any, kind: Any) -> Any:
    """Return a value of the type, converted without loss if needed; None for any other."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _read(value, kind)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
