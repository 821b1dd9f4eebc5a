"""Bodies of Anthropic's Messages API as types, and the fields that this server does not act on.

Content blocks, tools and other objects with a ``type`` are read where they are used, so that an unsupported type is
refused with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from ..inert_fields import InertFields
from ..reading import Body, parse_body
from ..server_fields import ServerFields

# Fields that never change the answer: caching, reports about it, billing, regions, names, and checks that this server
# does not have. Any value is accepted.
IGNORED = (
    "betas",
    "billing_policy",
    "cache_control",
    "diagnostics",
    "inference_geo",
    "metadata",
    "safeguards",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
# Values that do not change the answer, by field. Null is always accepted.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "compaction": (),
    "container": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "mcp_servers": ([],),
    "output_format": (),
    "thread": (),
}
INERT = InertFields(IGNORED, NEUTRAL)
INERT_IN_TOOLS = InertFields(
    ("cache_control", "eager_input_streaming", "strict"),
    {"allowed_callers": (["direct"],), "defer_loading": (False,), "input_examples": ([],)},
)


class SpokenMessage(Struct, forbid_unknown_fields=True):
    """One turn of a conversation: text, or content blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Any]


class TextBlock(Struct, forbid_unknown_fields=True):
    """Text."""

    text: str
    cache_control: Any = None
    citations: Any = None


class ToolUseBlock(Struct, forbid_unknown_fields=True):
    """A call of a tool, in an answer of the assistant."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: Any = None
    caller: Any = None


class ToolResultBlock(Struct, forbid_unknown_fields=True):
    """The result of a call. Templates have no place for ``is_error``; the text describes the failure."""

    tool_use_id: str
    content: str | list[Any] | None = None
    is_error: bool | None = None
    cache_control: Any = None


class LaterSystemBlock(Struct, forbid_unknown_fields=True):
    """Instructions of the system at this place of a conversation: blocks of text."""

    content: list[Any]
    cache_control: Any = None


class ThinkingBlock(Struct, forbid_unknown_fields=True):
    """Reasoning in an answer of the assistant. This server signs nothing and checks no ``signature``."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, forbid_unknown_fields=True):
    """Reasoning that only another server can read; it is omitted."""

    data: str


class ClientTool(Struct, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class FreeChoice(Struct, forbid_unknown_fields=True):
    """Tool choice without a name: auto, any or none."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, forbid_unknown_fields=True):
    """Tool choice with the name of the tool to call."""

    name: str
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, forbid_unknown_fields=True):
    """Options of reasoning. ``budget_tokens`` is not enforced: ``max_tokens`` limits reasoning and text together."""

    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class SchemaFormat(Struct, forbid_unknown_fields=True):
    """An answer in JSON that matches a schema."""

    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True):
    """The format of the answer, and how much the model should reason. ``task_budget`` is ignored."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Any = None
    task_budget: Any = None


class ContextManagement(Struct, forbid_unknown_fields=True):
    """Edits of the conversation."""

    edits: list[Any] | None = None


class CountBody(ServerFields, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/messages/count_tokens``: a conversation. None means absent."""

    model: str | None = None
    messages: list[SpokenMessage]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    structured_outputs: dict[str, Any] | None = None


def body_of(raw: bytes, kind: type[Body]) -> Body:
    """Parse the body as ``kind``. Raises ``HttpRefusal`` for invalid JSON or an invalid value."""
    return parse_body(raw, kind, lambda fields: INERT.left_out(fields, kind.__struct_fields__))
