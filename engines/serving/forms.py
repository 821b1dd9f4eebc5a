"""The output format that a body requests, for all APIs: from any field of the body to structured outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME, StructuredOutputsParams, structured_of
from .generation import Conversation
from .problems import HttpRefusal
from .structured_outputs_config import FormDefaults


@dataclass(frozen=True)
class FormField:
    """The field of a body that sets the output format.

    ``schema`` is the path of its JSON schema. ``kind`` is the form that it sets, under vLLM's name.
    """

    name: str = NAME
    schema: str = ""
    kind: str = "json"

    def form(self, fields: Mapping[str, Any], defaults: FormDefaults) -> StructuredOutputsParams | None:
        """Return the form for vLLM's fields. Raises ``HttpRefusal`` that names this field.

        ``defaults`` apply to JSON if the body does not set the option.
        """
        try:
            return structured_of(NAME, defaults.filled(fields))
        except UsageError as error:
            raise HttpRefusal(400, self.renamed(error).one_line, param=self.name) from None

    def renamed(self, error: UsageError) -> UsageError:
        """Rewrite an error about structured outputs in terms of this field. Other errors are unchanged."""
        if NAME not in error.what or self.name == NAME:
            return error
        what, why, fix = (
            text.replace(f"{NAME}.{self.kind}", self.schema or self.name).replace(NAME, self.name)
            for text in (error.what, error.why, error.fix)
        )
        return UsageError(what, why=why, fix=fix)


TOOL_CHOICE = FormField("tool_choice", schema="tools", kind="grammar")
TOOLS = FormField("tools", schema="tools", kind="grammar")


def field_of(conversation: Conversation, field: FormField, form: StructuredOutputsParams | None) -> FormField:
    """Return the field that constrains the answer: ``field``, or the tools if they may or must be called.

    JSON is the form of answers that do not call. Raises ``HttpRefusal`` if the answer must call, and ``field`` requires
    anything else.
    """
    if not conversation.must_call:
        return TOOLS if conversation.tools and form is None else field
    if form is not None and not form.is_json:
        raise HttpRefusal(
            400, f"tool_choice and {field.name} cannot be combined; fix: send only one of them", param="tool_choice"
        )
    return TOOL_CHOICE


def one_form(
    own_form: tuple[FormField, Mapping[str, Any]] | None, extra: Mapping[str, Any] | None, defaults: FormDefaults
) -> tuple[FormField, StructuredOutputsParams | None]:
    """Return the field that sets the output format, and the format. None allows any text.

    ``own_form`` is the API's own field, and ``extra`` the content of ``structured_outputs``. Raises ``HttpRefusal`` if
    both are set.
    """
    if own_form is None:
        field = FormField()
        return field, None if extra is None else field.form(extra, defaults)
    field, fields = own_form
    if extra is not None:
        raise HttpRefusal(
            400, f"{field.name} and {NAME} cannot be combined; fix: send only one of them", param=field.name
        )
    return field, field.form(fields, defaults)
