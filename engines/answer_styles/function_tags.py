"""Tool calls of Qwen3-Coder: a tag per parameter, between tags: ``<function=NAME><parameter=KEY>VALUE</parameter>``.

Text parameters stand there as they are, so a grammar can enforce only some keywords of their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plugins.errors import UsageError
from . import tagged_calls
from .json_calls import quoted
from .record import AnswerStyle
from .tagged_calls import CLOSE, OPEN, TAG, ToolCallReader, is_returned_as_text

_STRING_KEYWORDS = {"type", "enum", "const", "minLength", "maxLength"}
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_SHARED = ("$defs", "definitions")  # parameter schemas can refer to these
_NOT_IN_TEXT = ("</parameter>", "<parameter=", "</function>", CLOSE)


def _frame(*, repeats: bool, must_call: bool) -> list[str]:
    bad = "|".join(text.replace("/", chr(92) + "/") for text in _NOT_IN_TEXT)
    return [*tagged_calls.frame(repeats=repeats, must_call=must_call), f"BAD: /(?s:.*)({bad})(?s:.*)/"]


def _calls(name: str, function: str, path: str, schema: Mapping[str, Any], json_of: Callable[[Any], str]) -> list[str]:
    """Return the rules of a call with a tag per parameter, in the order of the schema. Raises ``UsageError``."""
    parameters = f"{path}.function.parameters"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not _are_texts(required):
        raise UsageError(f"{parameters} is not an object schema", fix='use {"type": "object", "properties": {...}}')
    known = {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_ANNOTATIONS, *_SHARED}
    if odd := [key for key in schema if key not in known]:
        raise _unenforceable(f"{parameters}.{odd[0]}")
    shared = {key: schema[key] for key in _SHARED if key in schema}
    parts, rules = list[str](), list[str]()
    for number, key in enumerate([*properties, *(key for key in required if key not in properties)]):
        one, rule = properties.get(key, {}), f"{name}_p{number}"
        begin = quoted(f"<parameter={_tag(key, f'a property of {parameters}')}>\n")
        parts.append(rule if key in required else f"{rule}?")
        if is_returned_as_text(one):
            rules.append(f"{rule}: {begin} {rule.upper()}")
            rules.append(f'{rule.upper()}: {_text(f"{parameters}.properties.{key}", one)} "\\n</parameter>\\n"')
        else:
            rules.append(f'{rule}: {begin} {rule}_v "\\n</parameter>\\n"')
            rules.append(f"{rule}_v: {json_of(shared | dict(one) if isinstance(one, Mapping) else one)}")
    begin = quoted(f"<function={_tag(function, f'{path}.function.name')}>\n")
    return [f'{name}: {" ".join([begin, *parts])} "</function>"', *rules]


def _text(path: str, schema: Any) -> str:
    """The expression of a parameter that is text as it stands. Raises ``UsageError`` for what cannot be kept."""
    fields = dict(schema) if isinstance(schema, Mapping) else {}
    if odd := [key for key in fields if key not in _STRING_KEYWORDS | _ANNOTATIONS]:
        raise _unenforceable(f"{path}.{odd[0]}")
    values = [fields["const"]] if "const" in fields else fields.get("enum")
    if values is not None:
        if not _are_texts(values) or not values or any(bad in value for value in values for bad in _NOT_IN_TEXT):
            raise _unenforceable(f"{path}.{'const' if 'const' in fields else 'enum'}")
        return f"({' | '.join(map(quoted, values))})"
    min_length, max_length = fields.get("minLength", 0), fields.get("maxLength", "")
    for limit in (min_length, max_length):
        if limit != "" and (type(limit) is not int or limit < 0):
            raise UsageError(f"{path}: minLength and maxLength must be integers of 0 or more", fix="correct the schema")
    return f"(/(?s:.){{{min_length},{max_length}}}/ & ~BAD)"


def _tag(text: str, path: str) -> str:
    """Return text for use in a tag. Raises ``UsageError`` for characters that would end it."""
    if text.strip() != text or not text or any(sign in text for sign in ">\n"):
        raise UsageError(f"{path} cannot be used in a tag: {text[:60]!r}", fix="use letters, digits, _ and -")
    return text


def _unenforceable(path: str) -> UsageError:
    return UsageError(
        f"{path} cannot be enforced in the tool calls of this model",
        why="the model writes parameters as text between tags, not as JSON",
        fix='remove the keyword, or set tool_choice to "auto"',
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_of(templates: Sequence[str]) -> bool:
    knows_calls = any(OPEN in template and "tools" in template for template in templates)
    return knows_calls and any(OPEN in template and TAG in template for template in templates)


# A call has the parameters of the schema, so it would have none without.
STYLE = AnswerStyle("tags", _is_of, ToolCallReader, _frame, _calls, markers=(OPEN, CLOSE), takes_any_arguments=False)
