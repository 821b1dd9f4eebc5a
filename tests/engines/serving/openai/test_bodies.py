"""Request bodies, without a server: each field has its documented effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chats

from peagle.engines.serving.openai.bodies import (
    BODIES,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    body_of,
)
from peagle.engines.serving.openai.inert_fields import IGNORED, NEUTRAL, NEUTRAL_IN_CHAT
from peagle.engines.serving.openai.options import ResponseOptions, generation_of
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.documented import rows_of

ROWS = rows_of("Fields")
FIELDS = {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *IGNORED, *NEUTRAL}
MINIMAL: dict[type[msgspec.Struct], dict[str, Any]] = {
    CompletionBody: {"prompt": "a"},
    ChatBody: {"messages": [{}]},
    TokenizeBody: {"prompt": "a"},
    DetokenizeBody: {"tokens": [1]},
}


THEIRS = {
    name: kind
    for kind, types in (
        (CompletionBody, (completions.CompletionCreateParamsBase, completions.CompletionCreateParamsNonStreaming)),
        (ChatBody, (chats.CompletionCreateParamsBase, chats.CompletionCreateParamsNonStreaming)),
    )
    for each in types
    for name in each.__annotations__
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
# For every field of the official client, a value with an effect, and other fields that it requires.
SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    name: (value, beside[0] if beside else {})
    for name, value, *beside in [
        ("audio", {"voice": "a"}), ("best_of", 3), ("echo", True), ("frequency_penalty", 0.5), ("function_call", "f"),
        ("functions", [{"name": "f"}]), ("logit_bias", {"5": 1}), ("logprobs", 1), ("max_completion_tokens", 3),
        ("max_tokens", 3), ("messages", []), ("metadata", {"a": "b"}), ("modalities", ["audio"]), ("model", "other"),
        ("moderation", {}), ("n", 2), ("parallel_tool_calls", False), ("prediction", {}), ("presence_penalty", 0.5),
        ("prompt", "b"), ("prompt_cache_key", "a"), ("prompt_cache_options", {}), ("prompt_cache_retention", "24h"),
        ("reasoning_effort", "low"), ("response_format", {"type": "json_object"}), ("safety_identifier", "a"),
        ("seed", 3), ("service_tier", "flex"), ("stop", ["a"]), ("store", True), ("stream", True),
        ("stream_options", {"include_usage": True}, {"stream": True}), ("suffix", "a"), ("temperature", 0.5),
        ("tool_choice", "required", {"tools": TOOLS}), ("tools", TOOLS), ("top_logprobs", 2, {"logprobs": True}),
        ("top_p", 0.5), ("user", "a"), ("verbosity", "low"), ("web_search_options", {}),
    ]
}  # fmt: skip
ELSEWHERE = {"model", "messages", "prompt", "reasoning_effort"}  # the tests of their routes cover them


def _asked(body: Any) -> tuple[Any, ...]:
    """Return everything that a body requests."""
    return generation_of(body, 100, ServerSettings("m")), ResponseOptions.of(body)


def test_docs_describe_every_field() -> None:
    assert sorted(name for names, _ in ROWS for name in names) == sorted(FIELDS)
    assert next(names for names, text in ROWS if text.startswith("ignored")) == sorted(IGNORED)


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_a_field_of_the_official_client_is_honoured_refused_or_ignored_as_the_docs_say(name: str) -> None:
    """The list comes from the installed client: a new field fails here until it is handled."""
    fate = next(text for names, text in ROWS if name in names).split()[0].rstrip(",:")
    kind, (value, beside) = THEIRS[name], SAMPLES[name]
    value = True if (name, kind) == ("logprobs", ChatBody) else value

    def asked(**fields: Any) -> Any:
        said = msgspec.json.encode({**MINIMAL[kind], **beside, **fields})
        return _asked(body_of(said, kind))

    if fate == "refused":
        with pytest.raises(HttpRefusal) as refused:
            asked(**{name: value})
        assert (refused.value.status, refused.value.param) == (400, name)
        assert refused.value.code == "unsupported_parameter"
    elif fate == "ignored":
        assert asked(**{name: value}) == asked()
    else:
        assert name in ELSEWHERE or asked(**{name: value}) != asked()


@pytest.mark.parametrize("kind", BODIES)
def test_every_endpoint_accepts_fields_of_vllm_s_and_openai_s_at_their_defaults(kind: type[msgspec.Struct]) -> None:
    plain = body_of(msgspec.json.encode(MINIMAL[kind]), kind)
    neutral = NEUTRAL_IN_CHAT if kind is ChatBody else NEUTRAL
    fields = [(name, value) for name, values in neutral.items() for value in (None, *values)]
    fields += [(name, None) for each in BODIES for name in each.__struct_fields__ if name not in MINIMAL[kind]]
    for name, value in fields:
        if name not in kind.__struct_fields__ or value is None:
            assert body_of(msgspec.json.encode({**MINIMAL[kind], name: value}), kind) == plain, name


# The defaults of vLLM's own request.
DEFAULTS_OF_VLLM: dict[str, Any] = {
    "frequency_penalty": 0.0, "logit_bias": None, "max_tokens": None, "n": 1, "presence_penalty": 0.0, "seed": None,
    "stop": [], "stream": False, "stream_options": None, "temperature": None, "top_p": None, "user": None,
    "use_beam_search": False, "top_k": None, "min_p": None, "repetition_penalty": None, "length_penalty": 1.0,
    "stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False, "min_tokens": 0,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "truncate_prompt_tokens": None,
    "prompt_logprobs": None, "allowed_token_ids": None, "response_format": None, "structured_outputs": None,
    "priority": 0, "request_id": "0123", "return_tokens_as_token_ids": None, "return_token_ids": None,
    "cache_salt": None, "kv_transfer_params": None, "vllm_xargs": None, "repetition_detection": None,
}  # fmt: skip
DEFAULTS_OF_ONE: dict[type[msgspec.Struct], dict[str, Any]] = {
    CompletionBody: {
        "echo": False, "logprobs": None, "suffix": None, "prompt_embeds": None, "add_special_tokens": True,
    },
    ChatBody: {
        "logprobs": False, "top_logprobs": 0, "max_completion_tokens": None, "tools": None, "tool_choice": "none",
        "reasoning_effort": None, "include_reasoning": True, "parallel_tool_calls": True, "bad_words": [],
        "echo": False,
        "add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False, "documents": None,
        "chat_template": None, "chat_template_kwargs": None, "media_io_kwargs": None, "mm_processor_kwargs": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS_OF_ONE)
def test_vllm_defaults_equal_an_empty_body(kind: Any) -> None:
    def asked(**fields: Any) -> Any:
        return _asked(body_of(msgspec.json.encode({**MINIMAL[kind], **fields}), kind))

    assert asked(**DEFAULTS_OF_VLLM, **DEFAULTS_OF_ONE[kind]) == asked()


@pytest.mark.parametrize(
    ("kind", "name", "value", "accepted"),
    [
        (ChatBody, "skip_special_tokens", False, "true"),
        (CompletionBody, "add_generation_prompt", False, "true"),
        (CompletionBody, "continue_final_message", True, "false"),
        (ChatBody, "add_special_tokens", True, "false"),
        (CompletionBody, "add_special_tokens", False, "true"),
        (CompletionBody, "length_penalty", 0.5, "1"),
        (CompletionBody, "use_beam_search", True, "false"),
        (CompletionBody, "use_beam_search", 0, "false"),
        (CompletionBody, "truncation_side", "right", "left"),
        (TokenizeBody, "priority", 1, "0"),
        (DetokenizeBody, "priority", False, "0"),
        (DetokenizeBody, "return_token_ids", True, "false"),
        (TokenizeBody, "return_token_strs", True, "false"),
        (DetokenizeBody, "skip_special_tokens", False, "true"),
    ],
)
def test_unsupported_value_is_rejected_with_accepted_ones(
    kind: type[msgspec.Struct], name: str, value: Any, accepted: str
) -> None:
    with pytest.raises(HttpRefusal, match=accepted) as refused:
        body_of(msgspec.json.encode({**MINIMAL[kind], name: value}), kind)
    assert (refused.value.status, refused.value.param) == (400, name)
    assert refused.value.code == "unsupported_parameter"


def test_null_does_not_hide_an_unknown_field() -> None:
    with pytest.raises(HttpRefusal, match="colour"):
        body_of(b'{"prompt": "a", "colour": null}', CompletionBody)


def test_ignored_fields_accept_any_value() -> None:
    fields = {key: {"a": [1, "b"]} for key in IGNORED}
    body = body_of(msgspec.json.encode({"prompt": "a", **fields}), CompletionBody)
    assert generation_of(body, 10, ServerSettings("m")).choices == 1


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"messages": 3}', "messages"),
        (b'{"messages": [3]}', "messages[0]"),
        (b"{}", "messages"),
        (b'{"messages": [], "colour": 1}', "colour"),
        (b'{"messages": [], "temperature": "warm"}', "temperature"),
        (b'{"messages": [], "stream_options": {"usage": true}}', "usage"),
        (b"[1]", None),
        (b"{", None),
        (b'{"messages": "\xff"}', None),
        (b'{"messages": [], "temperature": 1e999}', "temperature"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_the_path(raw: bytes, param: str | None) -> None:
    with pytest.raises(HttpRefusal) as refused:
        body_of(raw, ChatBody)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_max_tokens_defaults_to_capacity_in_chat_and_sixteen_in_completions() -> None:
    chat, completion = body_of(b'{"messages": []}', ChatBody), body_of(b'{"prompt": "a"}', CompletionBody)
    assert generation_of(chat, 500, ServerSettings("m")).params.max_tokens == 500
    assert generation_of(completion, 500, ServerSettings("m")).params.max_tokens == 16
    both = body_of(b'{"messages": [], "max_tokens": 5, "max_completion_tokens": 7}', ChatBody)
    assert generation_of(both, 500, ServerSettings("m")).params.max_tokens == 7


@pytest.mark.parametrize(("theirs", "ours"), [(completions, CompletionBody), (chats, ChatBody)])
def test_every_field_that_the_official_client_can_send_is_known(theirs: Any, ours: type[msgspec.Struct]) -> None:
    known = {*ours.__struct_fields__, *IGNORED, *NEUTRAL}
    assert set(theirs.CompletionCreateParamsBase.__annotations__) <= known


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
def test_truncation_to_the_context_leaves_room_for_the_requested_tokens(kind: Any) -> None:
    def kept(**fields: Any) -> int | None:
        body: Any = body_of(msgspec.json.encode({**MINIMAL[kind], **fields}), kind)
        return generation_of(body, 100, ServerSettings("m")).params.truncate_prompt_tokens

    assert kept(truncate_prompt_tokens=-1, max_tokens=30) == 70
    assert kept(truncate_prompt_tokens=-1) == (99 if kind is ChatBody else 84)
    assert (kept(truncate_prompt_tokens=7, max_tokens=30), kept()) == (7, None)
    with pytest.raises(HttpRefusal) as refused:
        kept(truncate_prompt_tokens=0)
    assert refused.value.param == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "fix: change top_logprobs"),
        ({"min_tokens": 9, "max_completion_tokens": 3}, "min_tokens", "exceeds max_completion_tokens (3)"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "exceeds max_tokens (3)"),
        ({"stop": ["", "max_tokens logprobs"]}, "stop", "['', 'max_tokens logprobs']"),
    ],
)
def test_errors_about_a_chat_use_the_names_of_its_fields(fields: dict[str, Any], param: str, said: str) -> None:
    body: Any = body_of(msgspec.json.encode({**MINIMAL[ChatBody], **fields}), ChatBody)
    with pytest.raises(HttpRefusal) as refused:
        generation_of(body, 100, ServerSettings("m"))
    assert refused.value.param == param
    assert said in refused.value.message


def test_a_template_of_a_request_needs_the_server_s_consent() -> None:
    body = body_of(b'{"messages": [], "chat_template": "x"}', ChatBody)
    with pytest.raises(HttpRefusal, match="--trust-request-chat-template") as refused:
        generation_of(body, 100, ServerSettings("m"))
    assert (refused.value.param, refused.value.code) == ("chat_template", "unsupported_parameter")
    allowed: Any = generation_of(body, 100, ServerSettings("m", trusts_request_templates=True)).source
    assert allowed.chat_template == "x"
