"""Converts the fields of a body to a generation. Every field that changes the answer is honoured or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...answer_styles import DEFAULT, AnswerStyle
from ...requests.params import SamplingParams
from ...requests.structured_outputs import StructuredOutputsParams
from ..forms import field_of
from ..generation import Conversation, Generation, Prompt, sampling_params
from ..problems import HttpRefusal
from ..reasoning import checked_effort, styled
from ..server_fields import SAMPLING, draft_of, given_fields, priority_of
from ..settings import ServerSettings
from ..tools import ToolChoice
from ..turns import omitted
from .bodies import ChatBody, CompletionBody, SamplingBody, TokenizeBody
from .formats import form_of

_TAKEN = (
    *SAMPLING, "stop", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "include_stop_str_in_output", "stop_token_ids", "allowed_token_ids", "bad_words",
)  # fmt: skip
_NOT_READ = {"image_url": "image", "video_url": "video", "input_audio": "audio", "file": "file"}  # parts of results
_DIGITS = 19
COMPLETION_TOKENS = 16  # OpenAI's default max_tokens for completions


@dataclass(frozen=True)
class ResponseOptions:
    """Options of the response format. ``running_usage`` adds usage to every piece of a stream."""

    includes_usage: bool = False
    running_usage: bool = False
    shows_drafted: bool = False
    include_prompt_logprobs: bool = False
    shows_token_ids: bool = False

    @classmethod
    def of(cls, body: SamplingBody) -> ResponseOptions:
        """Return the options of a body."""
        return cls(
            includes_usage=bool(body.stream_options and body.stream_options.include_usage),
            running_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
            shows_drafted=bool(body.return_drafted),
            include_prompt_logprobs=body.prompt_logprobs is not None,
            shows_token_ids=bool(body.return_token_ids),
        )


def generation_of(
    body: CompletionBody | ChatBody, room: int, settings: ServerSettings, style: AnswerStyle = DEFAULT
) -> Generation:
    """Convert a body to a generation; ``room`` is the number of new tokens that fit, ``style`` that of the answer.

    Raises ``HttpRefusal`` with the field.
    """
    source: Sequence[Prompt] | Conversation
    source = _conversation(body, style, settings) if isinstance(body, ChatBody) else _prompts(body.prompt)
    choices = 1 if body.n is None else body.n
    if isinstance(body, CompletionBody) and body.best_of not in (None, choices):
        raise HttpRefusal(
            400,
            "best_of is not supported by this server; fix: remove the field, or set it to n",
            param="best_of",
            code="unsupported_parameter",
        )
    if body.stream_options is not None and not body.stream:
        raise HttpRefusal(
            400,
            "stream_options requires stream: true; fix: remove stream_options, or set stream to true",
            param="stream_options",
        )
    if body.stream and body.prompt_logprobs is not None:
        raise HttpRefusal(
            400,
            "prompt_logprobs requires stream: false; fix: remove prompt_logprobs, or set stream to false",
            param="prompt_logprobs",
        )
    form_field, form = form_of(body, settings.structured_outputs)
    if isinstance(source, Conversation):
        form_field = field_of(source, form_field, form)
    name, max_tokens = _most_tokens(body)
    return Generation(
        source,
        _params(body, room, form, settings),
        choices,
        streams=bool(body.stream),
        num_speculative_tokens=body.num_speculative_tokens,
        draft=draft_of(body, body.model, settings),
        priority=priority_of(body, settings),
        echoes=_echoes(body),
        shows_answer=not (_echoes(body) and body.max_tokens == 0),
        requested_tokens=None if max_tokens is None else (name, max_tokens),
        reword=form_field.renamed,
    )


def _prompts(prompt: Any) -> Sequence[Prompt]:
    """Return the prompts of a completion, each text or token ids. Raises ``HttpRefusal`` for a list of mixed types."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(each) for each in prompt}
    if not kinds:
        raise HttpRefusal(400, "prompt is an empty list; fix: send at least one prompt", param="prompt")
    if len(kinds) > 1:
        raise HttpRefusal(
            400,
            "prompt must be a string, a list of strings, a list of token ids, or a list of such lists",
            param="prompt",
        )
    return [prompt] if kinds == {int} else list(prompt)


def _conversation(body: ChatBody, style: AnswerStyle, settings: ServerSettings) -> Conversation:
    tools, must_call, max_calls = _tool_choice(body).among(_tools(body))
    conversation = Conversation(
        readable(body.messages),
        tools,
        body.documents,
        must_call=must_call,
        max_calls=max_calls,
        **template_fields(body, settings),
    )
    return styled(conversation, style, checked_effort(body.reasoning_effort, "reasoning_effort"))


def readable(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a text in place of images and other media in the results of tools.

    Results stay in the conversation, so refusing them would end it. In other messages, the engine refuses media.
    """
    return [
        {**each, "content": [_as_text(part) for part in each["content"]]}
        if isinstance(each, dict) and each.get("role") == "tool" and isinstance(each.get("content"), list)
        else each
        for each in messages
    ]


def _as_text(part: Any) -> Any:
    kind = _NOT_READ.get(str(part.get("type"))) if isinstance(part, dict) else None
    return part if kind is None else {"type": "text", "text": omitted(kind)}


def template_fields(body: ChatBody | TokenizeBody, settings: ServerSettings) -> dict[str, Any]:
    """Return the template's fields of a ``Conversation``. Raises ``HttpRefusal`` for a template that is not allowed."""
    if body.chat_template is not None and not settings.trusts_request_templates:
        raise HttpRefusal(
            400,
            "chat_template is not allowed by this server; fix: remove the field, or start the server with "
            "--trust-request-chat-template",
            param="chat_template",
            code="unsupported_parameter",
        )
    continues, opens = bool(body.continue_final_message), body.add_generation_prompt
    return {
        "chat_template_kwargs": body.chat_template_kwargs,
        "add_generation_prompt": not continues if opens is None else opens,
        "continue_final_message": continues,
        "chat_template": body.chat_template,
    }


def _tools(body: ChatBody) -> list[dict[str, Any]]:
    """Return the tools that may be called. Raises ``HttpRefusal`` for a tool that is not a named function."""
    if not body.tools or body.tool_choice == "none":
        return []
    for at, tool in enumerate(body.tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not _is_name(function.get("name")):
            raise HttpRefusal(400, f"tools[{at}] must be a function with a name", param=f"tools[{at}]")
    return body.tools


def _tool_choice(body: ChatBody) -> ToolChoice:
    """Return the choice of a body. Raises ``HttpRefusal``."""
    choice, repeats = body.tool_choice, body.parallel_tool_calls is not False
    if choice in (None, "none", "auto"):
        return ToolChoice(offers=choice != "none", repeats=repeats)
    name = _named(choice)
    if choice != "required" and name is None:
        raise HttpRefusal(
            400,
            'tool_choice must be "none", "auto", "required", or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
            code="unsupported_parameter",
        )
    return ToolChoice(requires=True, name=name, repeats=repeats)


def _named(choice: Any) -> str | None:
    """Return the function name in a tool choice, or None."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if _is_name(name) else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _echoes(body: SamplingBody) -> bool:
    return isinstance(body, CompletionBody) and bool(body.echo)


def _params(
    body: CompletionBody | ChatBody, room: int, form: StructuredOutputsParams | None, settings: ServerSettings
) -> SamplingParams:
    name, max_tokens = _most_tokens(body)
    if isinstance(body, CompletionBody):
        if max_tokens is None:
            max_tokens = COMPLETION_TOKENS
        elif max_tokens == 0 and body.echo:
            max_tokens = 1  # the prefill pass always produces one token, which is not reported
    if max_tokens is not None and max_tokens < 1:
        raise HttpRefusal(400, f"{name} must be 1 or more, not {max_tokens}", param=name)
    fields = given_fields(body, _TAKEN)
    fields |= {"logit_bias": _biases(body.logit_bias or {}), "logprobs": _logprobs(body)}
    echoed = fields["logprobs"] if _echoes(body) else None
    counts = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    fields["prompt_logprobs"] = None if not counts else min(counts) if min(counts) < 0 else max(counts)
    if body.truncate_prompt_tokens is not None:
        fitting, keep_last = max(1, room - (max_tokens or 1)), body.truncate_prompt_tokens
        fields["truncate_prompt_tokens"] = fitting if keep_last == -1 else keep_last
    most_tokens = room if max_tokens is None else max_tokens
    renamed = {"max_tokens": name} | ({"logprobs": "top_logprobs"} if isinstance(body, ChatBody) else {})
    return sampling_params({**fields, "max_tokens": most_tokens, "structured_outputs": form}, settings, renamed)


def _most_tokens(body: SamplingBody) -> tuple[str, int | None]:
    """Return the name and value of the field that limits the number of new tokens."""
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _biases(biases: dict[str, float]) -> dict[int, float]:
    """Return the biases by token id; JSON keys are strings."""
    found = {}
    for token, amount in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) < _DIGITS):
            raise HttpRefusal(
                400,
                f"logit_bias: {token[:100]!r} is not a token id; each key must be the number of a token; "
                'fix: send an object such as {"11": -5.0}',
                param="logit_bias",
            )
        found[int(token)] = amount
    return found


def _logprobs(body: CompletionBody | ChatBody) -> int | None:
    """Return how many top tokens to report per position, or None for no logprobs."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.top_logprobs and not body.logprobs:
        raise HttpRefusal(
            400,
            "top_logprobs requires logprobs: true; fix: remove top_logprobs, or set logprobs to true",
            param="top_logprobs",
        )
    return (body.top_logprobs or 0) if body.logprobs else None
