"""Grammar for answers that consist only of tool calls, in the model's own call format, or that end with them.

``text.tool_calls`` parses these calls: every call of the grammar has arguments that match the tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plugins.errors import UsageError
from ..requests.structured_outputs import MAX_CHARACTERS, MAX_LEVELS, StructuredOutputsParams, levels_of
from ..text.answer_styles import Style
from ..text.channels import CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, START
from ..text.tool_calls import CLOSE, OPEN, is_returned_as_text
from .declared_keys import keep_to_declared_keys
from .grammar_text import WHITESPACE, json_rule

_STRING_KEYWORDS = {"type", "enum", "const", "minLength", "maxLength"}
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
_SHARED = ("$defs", "definitions")  # parameter schemas can refer to these
_NOT_IN_TEXT = ("</parameter>", "<parameter=", "</function>", CLOSE)


def call_form(
    tools: Sequence[Mapping[str, Any]],
    style: Style,
    *,
    max_calls: int | None = None,
    must_call: bool = True,
    otherwise: StructuredOutputsParams | None = None,
    disable_additional_properties: bool = True,
) -> StructuredOutputsParams:
    """Return the grammar of one or more calls of these tools, at most ``max_calls`` (1, or None for any number).

    Unless the answer ``must_call``, any text may precede the calls, or replace them; only the style "json" allows that.
    JSON of the form ``otherwise`` may replace them too; the style "channels" does not allow that.

    Objects in the arguments contain only declared keys, unless they set ``additionalProperties`` or
    ``disable_additional_properties`` is False; then the standard applies.

    ``tools`` have OpenAI's format, each with a name. The styles of Llama 3 and GPT-OSS always make one call, like their
    templates; GPT-OSS may reason first. Raises ``UsageError`` for parameters that are not an object schema, and for
    those that this call format cannot enforce.
    """
    more = "" if max_calls == 1 else ' ("\\n" one)*'
    rules = [f"start: one{more}", f'one: "{OPEN}\\n" call "\\n{CLOSE}"']
    if not must_call:  # the text is free until it contains the tag
        rules[0] = f'start: TEXT | begun "\\n" call "\\n{CLOSE}"{more}'
        rules += [f"begun[lazy]: /(?s:.*){OPEN}/", "TEXT: /(?s:.*)/"]
    if style == "llama":
        rules = ["start: call"]
    elif style == "channels":
        rules = [
            f"start: thought? {CHANNEL} call",
            f'thought: {CHANNEL} "analysis" {MESSAGE} TEXT {END} {START} "assistant"',
        ]
        rules.append("TEXT: /(?s:.*)/")
    if otherwise is not None:
        rules[0] += " | otherwise"
        rules.append(f"otherwise: {json_rule(otherwise)}")
    kinds, seen_names = [], set[str]()
    json_of = _SchemaRules(keeps_keys=disable_additional_properties)
    for at, tool in enumerate(tools):
        function = tool["function"]
        name = function["name"]
        if name in seen_names:
            raise UsageError(
                f"tools[{at}] has the same name as an earlier tool: {name!r}", fix="give every tool a unique name"
            )
        seen_names.add(name)
        schema = _object_schema(f"tools[{at}].function.parameters", function.get("parameters"))
        kinds.append(f"c{at}")
        rules += _in_tags(at, name, schema, json_of) if style == "tags" else _as_json(at, name, json_of(schema), style)
    if style == "tags":
        rules.append(f"BAD: /(?s:.*)({'|'.join(text.replace('/', chr(92) + '/') for text in _NOT_IN_TEXT)})(?s:.*)/")
    return StructuredOutputsParams(grammar="\n".join([*rules, f"call: {' | '.join(kinds)}"]) + "\n")


def without_schemas(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools of the same names whose arguments may be any object."""
    return [{"function": {"name": each["function"]["name"], "parameters": {"type": "object"}}} for each in tools]


def _object_schema(name: str, schema: Any) -> dict[str, Any]:
    """Return the schema of a tool's arguments; a missing one allows none. Raises ``UsageError`` if it is not an
    object."""
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise UsageError(f"{name} is not an object schema", fix='use {"type": "object", "properties": {...}}')
    return {"type": "object", **schema}


def _as_json(at: int, name: str, arguments: str, style: Style) -> list[str]:
    """Return the rules of a call as a JSON object with two keys in the usual order, or as a message to the function."""
    if style == "channels":
        to = _quoted(f"commentary to={FUNCTIONS}{_recipient(name, at)} ")
        return [f'c{at}: {to} {CONSTRAIN} "json" {MESSAGE} a{at}', f"a{at}: {arguments}"]
    key = "parameters" if style == "llama" else "arguments"
    before = '{"name": ' + json.dumps(name, ensure_ascii=False) + f', "{key}": '
    return [f'c{at}: {_quoted(before)} a{at} "}}"', f"a{at}: {arguments}"]


def _in_tags(at: int, name: str, schema: Mapping[str, Any], json_of: Callable[[Any], str]) -> list[str]:
    """Return the rules of a call with a tag per parameter, in the order of the schema. Raises ``UsageError``."""
    path = f"tools[{at}].function.parameters"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not _are_texts(required):
        raise UsageError(f"{path} is not an object schema", fix='use {"type": "object", "properties": {...}}')
    known = {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_ANNOTATIONS, *_SHARED}
    if odd := [key for key in schema if key not in known]:
        raise _unenforceable(f"{path}.{odd[0]}")
    shared = {key: schema[key] for key in _SHARED if key in schema}
    parts, rules = list[str](), list[str]()
    for number, key in enumerate([*properties, *(key for key in required if key not in properties)]):
        one, rule = properties.get(key, {}), f"c{at}_p{number}"
        begin = _quoted(f"<parameter={_tag(key, f'a property of {path}')}>\n")
        parts.append(rule if key in required else f"{rule}?")
        if is_returned_as_text(one):
            rules.append(f"{rule}: {begin} {rule.upper()}")
            rules.append(f'{rule.upper()}: {_text(f"{path}.properties.{key}", one)} "\\n</parameter>\\n"')
        else:
            rules.append(f'{rule}: {begin} {rule}_v "\\n</parameter>\\n"')
            rules.append(f"{rule}_v: {json_of(shared | dict(one) if isinstance(one, Mapping) else one)}")
    begin = _quoted(f"<function={_tag(name, f'tools[{at}].function.name')}>\n")
    return [f'c{at}: {" ".join([begin, *parts])} "</function>"', *rules]


def _text(path: str, schema: Any) -> str:
    """The expression of a parameter that is text as it stands. Raises ``UsageError`` for what cannot be kept."""
    fields = dict(schema) if isinstance(schema, Mapping) else {}
    if odd := [key for key in fields if key not in _STRING_KEYWORDS | _ANNOTATIONS]:
        raise _unenforceable(f"{path}.{odd[0]}")
    values = [fields["const"]] if "const" in fields else fields.get("enum")
    if values is not None:
        if not _are_texts(values) or not values or any(bad in value for value in values for bad in _NOT_IN_TEXT):
            raise _unenforceable(f"{path}.{'const' if 'const' in fields else 'enum'}")
        return f"({' | '.join(map(_quoted, values))})"
    min_length, max_length = fields.get("minLength", 0), fields.get("maxLength", "")
    for limit in (min_length, max_length):
        if limit != "" and (type(limit) is not int or limit < 0):
            raise UsageError(f"{path}: minLength and maxLength must be integers of 0 or more", fix="correct the schema")
    return f"(/(?s:.){{{min_length},{max_length}}}/ & ~BAD)"


def _recipient(name: str, at: int) -> str:
    """Return a name for use as a recipient. Raises ``UsageError`` for characters that would end it."""
    if not name or any(sign.isspace() or sign == "<" for sign in name):
        raise UsageError(
            f"tools[{at}].function.name cannot be used as a recipient: {name[:60]!r}",
            fix="use letters, digits, _ and -",
        )
    return name


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


class _SchemaRules:
    """Creates rules for the schemas of one request, within the size limit of a grammar."""

    def __init__(self, *, keeps_keys: bool) -> None:
        self._keeps_keys, self._left = keeps_keys, MAX_CHARACTERS

    def __call__(self, schema: Any) -> str:
        """Return a rule for JSON of a schema. Raises ``UsageError`` for an invalid schema."""
        if not isinstance(schema, Mapping | bool):
            raise UsageError("tools: a schema must be an object, true or false", fix="correct the tool's parameters")
        mapping = {} if schema is True else schema
        if mapping is False:
            raise UsageError("tools: the schema false matches no value", fix="correct the tool's parameters")
        try:
            json.dumps(mapping, allow_nan=False)
            if levels_of(mapping) > MAX_LEVELS:
                raise RecursionError
        except RecursionError:
            problem = f"tools: a schema is nested more than {MAX_LEVELS} levels deep"
            raise UsageError(
                problem, fix="move inner schemas to definitions ($defs), and refer to them by $ref"
            ) from None
        except (ValueError, TypeError) as error:
            raise UsageError(
                "tools: a schema is not valid JSON", why=str(error), fix="correct the tool's parameters"
            ) from None
        enforced = keep_to_declared_keys(mapping, "a schema of tools") if self._keeps_keys else mapping
        rule = f"%json {json.dumps({**enforced, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"
        self._left -= len(rule)
        if self._left < 0:
            problem = f"tools: the schemas exceed {MAX_CHARACTERS} characters of grammar"
            raise UsageError(problem, fix="send fewer tools, or shorter schemas")
        return rule


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _quoted(text: str) -> str:
    """Return a Lark string literal."""
    return json.dumps(text, ensure_ascii=False)
