"""Chat template files of checkpoints and engines: ``chat_template.jinja``, and named templates."""

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
MAX_BYTES = 2**17  # of a template; published ones have up to about 30,000
_MAX_CONFIG_BYTES = 2**26  # a tokenizer_config.json may list every added token
_RESTORE = "restore the checkpoint's original file, and build from that"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TOKEN_NAME = re.compile(r"[a-z][a-z0-9_]*_token")


def read_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates of a checkpoint or an engine by name; empty if there are none.

    A separate file takes precedence over ``chat_template.json``, and that over ``tokenizer_config.json``, as in
    ``transformers``. Raises ``EnvironmentProblem`` for a damaged file, and for a name that cannot be a file name.
    """
    for name in (CONFIG, _OF_A_PROCESSOR):
        path = folder / name
        declared = _templates_by_name(path, _object(path).get("chat_template"))
        if declared:
            break
    found = dict(declared)
    if (folder / TEMPLATE).is_file():
        found[DEFAULT] = _text(folder / TEMPLATE)
    for path in sorted((folder / NAMED).glob("*.jinja")):
        found[_checked(path.stem, path)] = _text(path)
    for name, text in found.items():
        if len(text) > MAX_BYTES:
            raise _damaged(folder / CONFIG, f"the chat template {name!r} has more than {MAX_BYTES:,} characters")
    return found


def read_template(path: Path) -> str:
    """Return the chat template in a file. Raises ``EnvironmentProblem`` for a file that cannot be one."""
    return _text(path, fix="use a file with a Jinja template in UTF-8")


def read_special_tokens(folder: Path) -> dict[str, Any]:
    """Return the special tokens that a template may write, such as ``bos_token``; lists of them too."""
    found: dict[str, Any] = {}
    for name in (SPECIAL, CONFIG):
        for key, value in _object(folder / name).items():
            if key == "additional_special_tokens" and isinstance(value, list):
                found[key] = [text for each in value if (text := _token(each)) is not None]
            elif _TOKEN_NAME.fullmatch(key) and (text := _token(value)) is not None:
                found[key] = text
    return found


def _token(value: Any) -> str | None:
    token = value.get("content") if isinstance(value, Mapping) else value
    return token if isinstance(token, str) else None


def _templates_by_name(path: Path, value: Any) -> dict[str, str]:
    """Return one template, or a list of them with names, as a dict."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        value = {each.get("name"): each.get("template") for each in value}
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in (*value, *value.values())):
        raise _damaged(path, "chat_template is neither a string nor a list of named templates")
    return {_checked(name, path): text for name, text in value.items()}


def _checked(name: str, path: Path) -> str:
    """Return a name that is safe as part of a file name."""
    if not _NAME.fullmatch(name):
        raise _damaged(path, f"the chat template name {name[:80]!r} is not a valid file name")
    return name


def _object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_text(path, _MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the file is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _damaged(path, "the file must contain a JSON object")
    return value


def _text(path: Path, max_bytes: int = MAX_BYTES, fix: str = _RESTORE) -> str:
    try:
        return read_regular(path, max_bytes).decode()
    except UnicodeDecodeError as error:
        raise _damaged(path, f"the file is not valid UTF-8 at byte {error.start}", fix) from None
    except ValueError as error:
        raise _damaged(path, str(error), fix) from None
    except OSError as error:
        raise _damaged(path, error.strerror or str(error), fix) from None


def _damaged(path: Path, why: str, fix: str = _RESTORE) -> EnvironmentProblem:
    return EnvironmentProblem(f"{path} cannot be read", why=why, fix=fix)
