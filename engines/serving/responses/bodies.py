"""Bodies of OpenAI's Responses API as types, and the fields that this server does not act on.

Items, content parts, tools and other objects with a ``type`` are read where they are used, so that an unsupported type
is refused with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from ..inert_fields import InertFields
from ..reading import parse_body
from ..server_fields import ServerFields

# Fields that never change the answer: caching, billing, names, and limits of tools that OpenAI runs. Any value is
# accepted.
IGNORED = (
    "client_metadata",
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
# Values that do not change the answer, by field. Null is always accepted.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "moderation": (),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
INERT = InertFields(IGNORED, NEUTRAL)
# Without a search for tools, a function that is to be loaded later is offered at once.
INERT_IN_TOOLS = InertFields(
    ("defer_loading", "output_schema", "strict"), {"allowed_callers": (["direct"],), "async": (False,)}
)
# Types of tools that the model is not offered, because OpenAI runs them, only its models know them, or their input is
# not JSON. An answer never has to use them, unless ``tool_choice`` requires a call.
LEFT_OUT_TOOLS = frozenset({
    "apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview", "custom", "file_search",
    "image_generation", "local_shell", "mcp", "programmatic_tool_calling", "shell", "tool_search", "web_search",
    "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
})  # fmt: skip
INERT_IN_REASONING = InertFields(("generate_summary", "summary"), {"context": ("auto",), "mode": ("standard",)})
INERT_IN_TEXT = InertFields(("verbosity",), {})
ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Values of ``include``: what is not supported, and what belongs to tools that OpenAI runs, so that there is none.
UNSUPPORTED_INCLUDES = frozenset({"message.output_text.logprobs"})
INCLUDES = frozenset({
    ENCRYPTED_REASONING, "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "web_search_call.action.sources",
    "web_search_call.results",
})  # fmt: skip


class MessageItem(Struct, forbid_unknown_fields=True):
    """A message of one role: text, or content parts."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    end_turn: bool | None = None
    internal_chat_message_metadata_passthrough: Any = None


class FunctionCallItem(Struct, forbid_unknown_fields=True):
    """A call of a function; ``arguments`` are JSON. ``caller`` is not used."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    caller: Any = None
    id: str | None = None
    status: str | None = None
    internal_chat_message_metadata_passthrough: Any = None


class CustomCallItem(Struct, forbid_unknown_fields=True):
    """A call of a tool whose ``input`` is text."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    caller: Any = None
    id: str | None = None
    status: str | None = None
    internal_chat_message_metadata_passthrough: Any = None


class FunctionOutputItem(Struct, forbid_unknown_fields=True):
    """The result of a call: text, or content parts."""

    call_id: str
    output: str | list[Any]
    caller: Any = None
    id: str | None = None
    status: str | None = None
    name: Any = None
    internal_chat_message_metadata_passthrough: Any = None


class ReasoningItem(Struct, forbid_unknown_fields=True):
    """Reasoning of an earlier answer."""

    summary: Any = None
    content: list[Any] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None
    internal_chat_message_metadata_passthrough: Any = None


class TextPart(Struct, forbid_unknown_fields=True):
    """Text of a message, of reasoning or of a result."""

    text: str
    annotations: Any = None
    logprobs: Any = None
    prompt_cache_breakpoint: Any = None


class RefusalPart(Struct, forbid_unknown_fields=True):
    """Text with which an earlier answer refused."""

    refusal: str


class FunctionTool(Struct, forbid_unknown_fields=True):
    """A function that the client runs."""

    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None


class NamespaceTool(Struct, forbid_unknown_fields=True):
    """Functions under a common name. The model does not read the description."""

    name: str
    tools: list[Any]
    description: str | None = None


class FunctionChoice(Struct, forbid_unknown_fields=True):
    """The function that the answer must call."""

    name: str


class AnyText(Struct, forbid_unknown_fields=True):
    """Any text."""


class AnyObject(Struct, forbid_unknown_fields=True):
    """Any JSON object."""


class NamedSchema(Struct, forbid_unknown_fields=True):
    """JSON that matches a schema. The answer always matches it completely, whether or not ``strict`` is set."""

    schema: dict[str, Any]
    name: str
    strict: bool | None = None
    description: str | None = None


class ObfuscationOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream. Padding against traffic analysis is accepted, but none is added."""

    include_obfuscation: bool | None = None


class ResponsesBody(ServerFields, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/responses``. None means absent."""

    model: str | None = None
    input: str | list[Any]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ObfuscationOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None


def body_of(raw: bytes) -> ResponsesBody:
    """Parse the body. Raises ``HttpRefusal`` for invalid JSON or an invalid value."""
    return parse_body(raw, ResponsesBody, lambda fields: INERT.left_out(fields, ResponsesBody.__struct_fields__))
