"""Converts forms to llguidance grammars, with limits on their cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME, StructuredOutputsParams
from .declared_keys import keep_to_declared_keys

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# A step runs between the rounds of other requests: a quarter of llguidance's default fuel is tens of milliseconds.
LIMITS: dict[str, Any] = {"verbose_errors": False, "initial_lexer_fuel": 250_000, "step_lexer_fuel": 50_000}
# Small models that may write any whitespace never stop writing it.
WHITESPACE = r" |\r?\n[ \t]{0,40}"


def grammar_text(form: StructuredOutputsParams) -> str:
    """Return the form as an llguidance grammar.

    Raises ``ValueError`` for a grammar that llguidance cannot read, and ``UsageError`` for a schema that cannot be
    restricted to its declared keys.
    """
    from llguidance import LLMatcher, grammar_from

    if form.is_json:
        schema = _kept_to_declared_keys(form) if form.json else '{"type": "object"}'
        compile_options: JsonCompileOptions = {"whitespace_flexible": False} if form.disable_any_whitespace else {}
        if form.whitespace_pattern is not None:
            compile_options["whitespace_pattern"] = form.whitespace_pattern
        usual: JsonCompileOptions = {} if form.disable_any_whitespace else {"whitespace_pattern": WHITESPACE}
        if schema == "false":  # llguidance reports it clearly, unless it has options
            return LLMatcher.grammar_from_json_schema(schema)
        return LLMatcher.grammar_from_json_schema("{}" if schema == "true" else schema, usual, compile_options)
    if form.choice is not None:
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(each) for each in form.choice))
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    return grammar_from("grammar", str(form.grammar))


def json_rule(form: StructuredOutputsParams) -> str:
    """Return a form that is JSON as part of a Lark grammar. Raises ``UsageError`` as ``grammar_text`` does."""
    schema = json.loads(_kept_to_declared_keys(form)) if form.json else {"type": "object"}
    if schema is False:
        raise UsageError(f"{NAME}.json: the schema false matches no value", fix=f"correct {NAME}.json")
    content = {} if schema is True else schema
    whitespace = {"whitespace_pattern": form.whitespace_pattern or WHITESPACE}
    options = {"whitespace_flexible": False} if form.disable_any_whitespace else whitespace
    return f"%json {json.dumps({**content, 'x-guidance': options})}"


def _kept_to_declared_keys(form: StructuredOutputsParams) -> str:
    """Return the form's JSON schema as text, restricted to declared keys unless the form disables that."""
    text = str(form.json)
    schema = json.loads(text) if form.disable_additional_properties else None
    return text if not isinstance(schema, dict) else json.dumps(keep_to_declared_keys(schema, f"{NAME}.json"))
