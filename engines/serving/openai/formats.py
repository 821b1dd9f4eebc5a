"""Structured output fields of a body: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ....plugins.errors import UsageError
from ...requests.structured_outputs import NAME, StructuredOutputsParams, structured_of
from ..problems import HttpRefusal
from ..structured_outputs_config import FormDefaults

GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_SCHEMA = "json_schema.schema"


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object, or JSON of the schema ``value``, which Hugging Face's client sends for ``json_schema``."""

    value: dict[str, Any] | None = None


class JsonSchema(Struct, forbid_unknown_fields=True):
    """A named schema. The answer always matches it completely, whether or not ``strict`` is set."""

    name: str
    schema: dict[str, Any] | bool
    strict: bool | None = None
    description: str | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that matches a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class FormBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Structured output fields. At most one of them can be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def form_of(body: FormBody, defaults: FormDefaults) -> tuple[str, StructuredOutputsParams | None]:
    """Return the field that sets the output format, and the format. None allows any text.

    Raises ``HttpRefusal`` that names the field. ``defaults`` apply to JSON if the body does not set the option.
    """
    asked: dict[str, Any] = {}
    if isinstance(body.response_format, JsonObjectFormat):
        schema = body.response_format.value
        asked["response_format"] = {"json_object": True} if schema is None else {"json": schema}
    elif isinstance(body.response_format, JsonSchemaFormat):
        asked["response_format"] = {"json": body.response_format.json_schema.schema}
    if body.structured_outputs is not None:
        asked[NAME] = body.structured_outputs
    for name in GUIDED:
        if (value := getattr(body, name)) is not None:
            asked[name] = {name.removeprefix("guided_"): value}
    if len(asked) > 1:
        first, second, *_ = asked
        raise HttpRefusal(400, f"{first} and {second} cannot be combined; fix: send only one of them", param=second)
    for field, form in asked.items():
        try:
            return field, structured_of(NAME, defaults.filled(form))
        except UsageError as error:
            raise HttpRefusal(400, renamed(error, field).one_line, param=field) from None
    return NAME, None


def renamed(error: UsageError, field: str) -> UsageError:
    """Rewrite a structured output error in terms of ``field``, the field that was sent. Other errors are unchanged."""
    if NAME not in error.what or field == NAME:
        return error
    schema, kind = (f"{field}.{_SCHEMA}" if field == "response_format" else field), "json"
    if field in GUIDED:
        kind = field.removeprefix("guided_")
    elif field == "tool_choice":
        schema, kind = "tools", "grammar"
    what, why, fix = (
        text.replace(f"{NAME}.{kind}", schema).replace(NAME, field) for text in (error.what, error.why, error.fix)
    )
    return UsageError(what, why=why, fix=fix)
