"""Chat templates as checkpoints store them, and as engines do: ``chat_template.jinja``, and others by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...plugins.errors import EnvironmentProblem
from ...plugins.regular_files import read_regular

TEMPLATE, NAMED = "chat_template.jinja", "additional_chat_templates"
CONFIG, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
DEFAULT = "default"
_OF_A_PROCESSOR = "chat_template.json"
_MOST_BYTES = 2**17  # of a template; those of published models have up to some 30,000
_MOST_CONFIG_BYTES = 2**26  # a tokenizer_config.json may list every added token
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN_NAME = re.compile(r"[a-z][a-z0-9_]*_token")


def read_templates(folder: Path) -> dict[str, str]:
    """Return a checkpoint's or an engine's chat templates by name, empty if there are none.

    A file of its own goes before what ``chat_template.json`` and then ``tokenizer_config.json`` say, as in
    ``transformers``. Raises ``EnvironmentProblem`` for a file that is damaged, and for a name that is no file's.
    """
    for name in (CONFIG, _OF_A_PROCESSOR):
        path = folder / name
        stated = _stated(path, _object(path).get("chat_template"))
        if stated:
            break
    found = dict(stated)
    if (folder / TEMPLATE).is_file():
        found[DEFAULT] = _text(folder / TEMPLATE)
    for path in sorted((folder / NAMED).glob("*.jinja")):
        found[_checked(path.stem, path)] = _text(path)
    for name, text in found.items():
        if len(text) > _MOST_BYTES:
            raise _damaged(folder / CONFIG, f"the chat template {name!r} has more than {_MOST_BYTES:,} characters")
    return found


def read_special_tokens(folder: Path) -> dict[str, Any]:
    """Return the special tokens that a template may write, as ``bos_token`` and the like; lists of them too."""
    found: dict[str, Any] = {}
    for name in (SPECIAL, CONFIG):
        for key, value in _object(folder / name).items():
            if key == "additional_special_tokens" and isinstance(value, list):
                found[key] = [text for each in value if (text := _token(each)) is not None]
            elif _TOKEN_NAME.fullmatch(key) and (text := _token(value)) is not None:
                found[key] = text
    return found


def _token(value: Any) -> str | None:
    stated = value.get("content") if isinstance(value, Mapping) else value
    return stated if isinstance(stated, str) else None


def _stated(path: Path, value: Any) -> dict[str, str]:
    """One template, or a list of them with names."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        value = {each.get("name"): each.get("template") for each in value}
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in (*value, *value.values())):
        raise _damaged(path, "chat_template is neither a text nor a list of templates with names")
    return {_checked(name, path): text for name, text in value.items()}


def _checked(name: str, path: Path) -> str:
    """A name that may become a file's."""
    if not _NAME.fullmatch(name):
        raise _damaged(path, f"a chat template has the name {name[:80]!r}, which is none for a file")
    return name


def _object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_text(path, _MOST_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _damaged(path, "it must hold an object")
    return value


def _text(path: Path, most: int = _MOST_BYTES) -> str:
    try:
        return read_regular(path, most).decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None


def _damaged(path: Path, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path} cannot be read", why=why, fix="take the file that belongs to the checkpoint, and build from that"
    )
