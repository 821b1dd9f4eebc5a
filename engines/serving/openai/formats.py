"""Structured output fields of a body: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...requests.structured_outputs import StructuredOutputsParams
from ..forms import FormField
from ..problems import HttpRefusal
from ..server_fields import ServerFields
from ..structured_outputs_config import FormDefaults

GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
# Fields, in addition to the engine's, that an error message can start with.
ERROR_FIELDS = frozenset({"max_completion_tokens", "tool_choice", "response_format", *GUIDED})
_RESPONSE_FORMAT = FormField("response_format", schema="response_format.json_schema.schema")


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object, or JSON of a schema: ``schema`` of llama.cpp, or ``value`` of Hugging Face's client."""

    schema: dict[str, Any] | None = None
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


class FormBody(ServerFields, forbid_unknown_fields=True, kw_only=True):
    """Structured output fields. At most one of them can be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def form_of(body: FormBody, defaults: FormDefaults) -> tuple[FormField, StructuredOutputsParams | None]:
    """Return the field that sets the output format, and the format. None allows any text.

    Raises ``HttpRefusal`` that names the field. ``defaults`` apply to JSON if the body does not set the option.
    """
    requested: dict[FormField, dict[str, Any]] = {}
    if isinstance(body.response_format, JsonObjectFormat):
        wanted = body.response_format
        schema = wanted.value if wanted.schema is None else wanted.schema
        requested[_RESPONSE_FORMAT] = {"json_object": True} if schema is None else {"json": schema}
    elif isinstance(body.response_format, JsonSchemaFormat):
        requested[_RESPONSE_FORMAT] = {"json": body.response_format.json_schema.schema}
    if body.structured_outputs is not None:
        requested[FormField()] = body.structured_outputs
    for name in GUIDED:
        if (value := getattr(body, name)) is not None:
            kind = name.removeprefix("guided_")
            requested[FormField(name, kind=kind)] = {kind: value}
    if len(requested) > 1:
        first, second, *_ = (field.name for field in requested)
        raise HttpRefusal(400, f"{first} and {second} cannot be combined; fix: send only one of them", param=second)
    for field, form in requested.items():
        return field, field.form(form, defaults)
    return FormField(), None
