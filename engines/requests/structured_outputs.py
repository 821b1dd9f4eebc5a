"""Structured output parameters: a JSON schema, a regular expression, a list of choices or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from ...plugins.errors import UsageError
from .arguments import flag, refusal, text_of, texts_of

NAME = "structured_outputs"
MAX_CHARACTERS = 1 << 16  # of a schema, a grammar or all choices
MAX_REGEX_CHARACTERS = 1 << 13
MAX_LEVELS = 120  # nesting of a schema; llguidance reads 128 levels of JSON and adds some of its own
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_OF_JSON = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_OF_VLLM = ("structural_tag",)  # accepted if null


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The format of a text, set by exactly one of five fields; names and meanings as in vLLM.

    ``json`` is a JSON schema, given as text, a dict or a bool, and stored as text; ``json_object`` is any JSON object.
    ``regex`` is a regular expression for the whole text, in the syntax of Rust's ``regex`` crate. ``choice`` lists the
    possible texts. ``grammar`` is in Lark's or llama.cpp's format. The parts of JSON can be separated by a space, or by
    a newline with indentation; ``disable_any_whitespace`` allows neither, and ``whitespace_pattern`` replaces both.

    An object of the schema allows only the keys that it declares, unless it sets ``additionalProperties``. If
    ``disable_additional_properties`` is False, objects that do not set it allow other keys, as in the standard.

    Raises ``UsageError`` if a field is invalid.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = True
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        checks = {"json": _schema, "choice": _choices, "json_object": flag}
        checks |= {"disable_any_whitespace": flag, "disable_additional_properties": flag}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                object.__setattr__(self, field.name, field.default)
            else:
                checked = checks.get(field.name, _expression)(f"{NAME}.{field.name}", value)
                object.__setattr__(self, field.name, checked)  # the dataclass is frozen
        given_kinds = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given_kinds) != 1:
            raise UsageError(
                f"{NAME} must set exactly one format, not {' and '.join(given_kinds) or 'none'}",
                why=f"the formats are {', '.join(_KINDS)}",
                fix="set exactly one of them",
            )
        odd = [field.name for field in fields(self) if field.name in _OF_JSON and self._is_set(field)]
        if not self.is_json and odd:
            raise UsageError(f"{NAME}.{odd[0]} requires JSON, not {given_kinds[0]}", fix=f"remove {odd[0]}")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise UsageError(
                f"{NAME}: disable_any_whitespace and whitespace_pattern cannot be combined", fix="remove one of them"
            )

    def _is_set(self, field: Field[Any]) -> bool:
        return bool(getattr(self, field.name) != field.default)

    @property
    def kind(self) -> str:
        """The name of the field that sets the format."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    @property
    def is_json(self) -> bool:
        """Return True if the text is JSON."""
        return self.kind in ("json", "json_object")

    @property
    def is_from_start(self) -> bool:
        """Return True if the format holds from the start of the text, so that no reasoning can precede it."""
        return True

    def after_prompt(self, *, in_thought: bool) -> StructuredOutputsParams:
        """Return the format of an answer that begins inside reasoning if ``in_thought``."""
        del in_thought
        return self


@dataclass(frozen=True)
class OptionalForm(StructuredOutputsParams):
    """A grammar that allows any text, until the text begins what the grammar constrains.

    ``grammar_in_thought`` replaces ``grammar`` if the text begins inside reasoning.
    """

    grammar_in_thought: str | None = None

    @property
    def is_from_start(self) -> bool:
        """Return False: reasoning can precede it."""
        return False

    def after_prompt(self, *, in_thought: bool) -> OptionalForm:
        """Return the format with the grammar of such an answer only."""
        return OptionalForm(grammar=(self.grammar_in_thought if in_thought else None) or self.grammar)


def structured_of(name: str, value: Any) -> StructuredOutputsParams | None:
    """Return the parameters given as an object or a dict of fields; None allows any text. Raises ``UsageError``."""
    if value is None or isinstance(value, StructuredOutputsParams):
        return value
    known = [field.name for field in fields(StructuredOutputsParams)]
    if not isinstance(value, Mapping):
        raise refusal(name, "StructuredOutputsParams or a dict of its fields", value)
    if odd := [key for key in value if key not in known and not (key in _OF_VLLM and value[key] is None)]:
        raise refusal(f"a field of {name}", f"one of {', '.join(known)}", odd[0])
    return StructuredOutputsParams(**{key: value[key] for key in value if key in known})


def _expression(name: str, value: Any) -> str:
    """Return text that is neither empty nor too long. Raises ``UsageError``."""
    text = text_of(name, value)
    if not text:
        raise UsageError(f"{name} is empty", fix=f"set {name} to a non-empty string")
    max_characters = MAX_REGEX_CHARACTERS if name.endswith(("regex", "_pattern")) else MAX_CHARACTERS
    if len(text) > max_characters:
        raise UsageError(
            f"{name} has {len(text)} characters",
            why=f"at most {max_characters} are allowed",
            fix="shorten it; move repeated parts to definitions ($defs) or grammar rules",
        )
    return text


def _choices(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not value:
        raise refusal(name, "a list of at least one string", value)
    found = texts_of(name, value)
    _expression(name, "".join(found))
    return found


def _schema(name: str, value: Any) -> str:
    """Return a JSON schema as text. Raises ``UsageError`` for an invalid schema."""
    try:
        if isinstance(value, str):
            content = json.loads(_expression(name, value))
        else:
            content = dict(value) if isinstance(value, Mapping) else value
            value = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise _too_deep(name) from None
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{name} is not valid JSON", why=str(error) or type(error).__name__, fix=f"correct {name}"
        ) from None
    if not isinstance(content, dict | bool):
        raise refusal(name, "a JSON schema: an object, true or false", content)
    text = _expression(name, value)
    if levels_of(content) > MAX_LEVELS:
        raise _too_deep(name)
    return text


def levels_of(content: Any) -> int:
    """Return the nesting depth of a JSON value: 0 for a number, 1 for an empty object."""
    levels, inside = 0, [content]
    while inside := [each for each in inside if isinstance(each, dict | list | tuple)]:
        levels += 1
        inside = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    return levels


def _too_deep(name: str) -> UsageError:
    return UsageError(
        f"{name} is nested more than {MAX_LEVELS} levels deep",
        why="compiling needs stack memory for every nested object or list",
        fix="move inner schemas to definitions ($defs), and refer to them by $ref",
    )
