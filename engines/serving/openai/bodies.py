"""The bodies of requests, as types; a body that does not fit is refused with the path of what is wrong in it.

Every field that OpenAI's API has is here: what is not honoured is refused where it would change the answer
(``options.py``), and ignored where it would not (``IGNORED``). A field that is not here is refused by its name.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ..problems import HttpRefusal
from .formats import FormBody

# Fields of OpenAI's API that change no answer of ours: who asks, how it is billed and stored, hints for caches.
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)


class StreamOptions(Struct, forbid_unknown_fields=True):
    """How a stream ends and what its pieces carry."""

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against the eye on the wire; none is added


class SamplingBody(FormBody, forbid_unknown_fields=True, kw_only=True):
    """What completions and chat completions share. None is the same as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # As vLLM names them.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    # Of speculation.
    num_speculative_tokens: int | Literal["auto"] | None = None
    draft: str | None = None
    acceptance_tolerance: float | None = None
    return_drafted: bool = False  # which parts of the text were accepted drafts
    # Changes no answer: see IGNORED.
    metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None
    verbosity: Any = None


class CompletionBody(SamplingBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]  # a text or its token ids, or a list of either
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatBody(SamplingBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None
    web_search_options: Any = None
    moderation: Any = None


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """``POST /tokenize``: a text or a conversation."""

    model: str | None = None
    prompt: str | UnsetType = UNSET
    messages: list[dict[str, Any]] | UnsetType = UNSET
    add_special_tokens: Literal[True] = True


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]


Body = TypeVar("Body", bound=Struct)


def body_of(raw: bytes, kind: type[Body]) -> Body:
    """The body as its type. Raises ``HttpRefusal`` for what is no JSON, or does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        _, at, path = message.partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None if at else None
        if "unknown field `" in message:
            param = message.split("unknown field `")[1].split("`")[0]
        if "required field `" in message:
            param = message.split("required field `")[1].split("`")[0]
        raise HttpRefusal(400, f"the body does not fit: {message}", param=param) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HttpRefusal(400, f"the body is no JSON: {error}", code="invalid_json") from None
