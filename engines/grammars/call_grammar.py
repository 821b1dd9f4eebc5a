"""Grammar for answers that consist only of tool calls, in the model's own call format, or that end with them.

The readers of ``answer_styles`` parse these calls: every call of the grammar has arguments that match the tool's
schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...plugins.errors import UsageError
from ..answer_styles import AnswerStyle, Tools
from ..requests.structured_outputs import MAX_CHARACTERS, MAX_LEVELS, OptionalForm, StructuredOutputsParams, levels_of
from .declared_keys import keep_to_declared_keys
from .grammar_text import WHITESPACE, json_rule


def call_form(
    tools: Tools,
    style: AnswerStyle,
    *,
    max_calls: int | None = None,
    must_call: bool = True,
    otherwise: StructuredOutputsParams | None = None,
    disable_additional_properties: bool = True,
) -> StructuredOutputsParams:
    """Return the grammar of one or more calls of these tools, at most ``max_calls`` (1, or None for any number).

    Unless the answer ``must_call``, any text may precede the calls, or replace them, if the style ``follows_text``.
    Calls do not begin inside reasoning between tags, which the prompt or the answer opens.
    JSON of the form ``otherwise`` may replace them too, if the style ``may_be_json``.

    Objects in the arguments contain only declared keys, unless they set ``additionalProperties`` or
    ``disable_additional_properties`` is False; then the standard applies.

    ``tools`` have OpenAI's format, each with a name. The styles of Llama 3 and GPT-OSS always make one call, like their
    templates; GPT-OSS may reason first. Raises ``UsageError`` for parameters that are not an object schema, and for
    those that this call format cannot enforce.
    """
    start, *rules = style.frame(repeats=max_calls != 1, must_call=must_call)
    if otherwise is not None:
        start += " | otherwise"
        rules.append(f"otherwise: {json_rule(otherwise)}")
    names, seen_names = [], set[str]()
    json_of = _SchemaRules(keeps_keys=disable_additional_properties)
    for at, tool in enumerate(tools):
        function, path = tool["function"], f"tools[{at}]"
        name = function["name"]
        if name in seen_names:
            raise UsageError(
                f"{path} has the same name as an earlier tool: {name!r}", fix="give every tool a unique name"
            )
        seen_names.add(name)
        schema = _object_schema(f"{path}.function.parameters", function.get("parameters"))
        names.append(f"c{at}")
        rules += style.calls(names[-1], name, path, schema, json_of)
    grammar = "\n".join([start, *rules, f"call: {' | '.join(names)}"]) + "\n"
    if must_call:
        return StructuredOutputsParams(grammar=grammar)
    if style.thoughts is None:
        return OptionalForm(grammar=f"{grammar}BEFORE: /(?s:.*)/\n")
    free, opened = (f"{grammar}BEFORE: {style.thoughts.no_thought(in_thought=each)}\n" for each in (False, True))
    return OptionalForm(grammar=free, grammar_in_thought=opened)


def without_schemas(tools: Tools) -> list[dict[str, Any]]:
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
