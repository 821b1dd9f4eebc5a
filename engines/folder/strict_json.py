"""Strict conversion of JSON to frozen dataclasses: every problem is collected, and no field is guessed or dropped."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def decode(cls: type[T], data: Any, problems: list[str], path: str = "") -> T | None:
    """Return ``data`` as a ``cls``, or None after appending all problems to ``problems``.

    Field types can be ``int``, ``float``, ``str``, ``bool``, ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]`` and
    other dataclasses.
    """
    before = len(problems)
    value = _dataclass(cls, data, problems, path)
    return value if len(problems) == before else None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _dataclass(cls: Any, data: Any, problems: list[str], path: str) -> Any:
    if not isinstance(data, dict):
        problems.append(f"{path or 'the file'} must be an object, not {_kind(data)}")
        return None
    fields = {field.name: field for field in dataclasses.fields(cls)}
    prefix = f"{path}." if path else ""
    problems += [f"{prefix}{name} is not a known field" for name in data if name not in fields]
    before, values = len(problems), {}
    for name, field in fields.items():
        if name in data:
            values[name] = _value(_hints(cls)[name], data[name], problems, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{prefix}{name} is missing")
    return cls(**values) if len(problems) == before else None


def _value(hint: Any, data: Any, problems: list[str], path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, data, problems, path)
    if origin is types.UnionType:  # X | None
        return None if data is None else _value(args[0], data, problems, path)
    if origin is tuple:
        if isinstance(data, list):
            return tuple(_value(args[0], item, problems, f"{path}[{i}]") for i, item in enumerate(data))
        problems.append(f"{path} must be a list, not {_kind(data)}")
        return None
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(data, dict):
            return {key: _value(args[1], item, problems, f"{path}[{key!r}]") for key, item in data.items()}
        problems.append(f"{path} must be an object, not {_kind(data)}")
        return None
    if type(data) is hint:  # exact: JSON true is not the integer 1
        return data
    if hint is float and type(data) is int:
        try:
            return float(data)
        except OverflowError:
            problems.append(f"{path} is larger than any float")
            return None
    problems.append(f"{path} must be {hint.__name__}, not {_kind(data)}")
    return None


def _kind(data: Any) -> str:
    return "null" if data is None else type(data).__name__
