"""Request bodies as types. An invalid body is refused with the path of the invalid value.

The types contain the fields that this server acts on. Other fields of OpenAI's and vLLM's APIs are accepted if they
have no effect (``inert_fields.py``). Unknown fields are refused by name.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..inert_fields import InertFields
from ..reading import Body, parse_body
from .formats import FormBody
from .inert_fields import INERT, INERT_IN_CHAT


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream's pieces and end. None means absent."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # as in vLLM: with ``include_usage``, usage is in every piece
    include_obfuscation: bool | None = None  # padding against traffic analysis; accepted, but none is added


class SamplingBody(FormBody, forbid_unknown_fields=True, kw_only=True):
    """Fields shared by completions and chat completions. None means absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # vLLM's names.
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_drafted: bool | None = None  # report which parts of the text were accepted drafts


class CompletionBody(SamplingBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]  # text, token ids, or a list of either
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class ChatBody(SamplingBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """``POST /tokenize``: text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]


BODIES = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
FIELDS = frozenset(name for kind in BODIES for name in kind.__struct_fields__)


def inert_fields_of(kind: type[Struct]) -> InertFields:
    """Return the fields without effect of a body."""
    return INERT_IN_CHAT if kind is ChatBody else INERT


def body_of(raw: bytes, kind: type[Body]) -> Body:
    """Parse the body as ``kind``. Raises ``HttpRefusal`` for invalid JSON or an invalid value."""
    honoured = kind.__struct_fields__

    def select(fields: dict[str, Any]) -> dict[str, Any]:
        """Drop fields without effect, and null fields that belong to other bodies."""
        selected = {
            name: each for name, each in fields.items() if each is not None or name in honoured or name not in FIELDS
        }
        return inert_fields_of(kind).left_out(selected, honoured)

    return parse_body(raw, kind, select)
