"""From the fields of a body to the options of a request; what changes an answer is honoured, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....plugins.errors import UsageError
from ...policy.drafts_per_round import DraftsAsked
from ...requests.params import SamplingParams
from ...text.answer_styles import Style
from ..problems import HttpRefusal
from ..settings import ServerSettings
from .bodies import ChatBody, CompletionBody, SamplingBody
from .formats import form_of
from .inert_fields import require_neutral

_TAKEN = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "acceptance_tolerance", "min_tokens",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids", "allowed_token_ids", "bad_words",
)  # fmt: skip
_DIGITS = 19
COMPLETION_TOKENS = 16  # of a completion that does not say how many, as OpenAI has it


@dataclass(frozen=True)
class Asked:
    """What a body asks for, apart from its prompts: ``choices`` answers to each of them.

    ``echoes`` the prompt before the answer; without ``shows_answer`` the prompt is all that is told.
    """

    params: SamplingParams
    choices: int
    streams: bool
    includes_usage: bool
    shows_drafted: bool
    num_speculative_tokens: DraftsAsked | None
    draft: str | None
    echoes: bool = False
    shows_answer: bool = True
    tells_prompt: bool = False  # its logprobs, by themselves
    style: Style | None = None  # of a chat's answers
    tools: Sequence[dict[str, Any]] = ()  # that an answer may call
    must_call: Sequence[dict[str, Any]] = ()  # tools of which the answer is calls, and nothing else
    most_calls: int | None = None
    form_field: str = ""  # that says the form of the answer
    running_usage: bool = False  # in every piece of a stream that includes usage
    room_for: tuple[str, int | None] = "max_tokens", None  # the tokens that the body asks for, and in which field
    context: int = 0  # tokens of a prompt and its answer


def asked_of(body: CompletionBody | ChatBody, room: int, prompts: int, settings: ServerSettings) -> Asked:
    """The options of a body whose ``prompts`` leave ``room`` for new tokens. Raises ``HttpRefusal`` by the field."""
    if isinstance(body, ChatBody):
        require_neutral("reasoning_effort", body.reasoning_effort)  # of a model that does not answer in channels
    choices = 1 if body.n is None else body.n
    if isinstance(body, CompletionBody) and body.best_of not in (None, choices):
        raise HttpRefusal(
            400,
            "best_of is not supported by this server: leave it out, or set it to n",
            param="best_of",
            code="unsupported_parameter",
        )
    if choices < 1 or choices * prompts > settings.limits.choices:
        raise HttpRefusal(
            400,
            f"n is {choices}, for {prompts} prompt(s): this server gives 1 to {settings.limits.choices} answers in all;"
            " ask for fewer, or start it with a larger --max-choices",
            param="n",
        )
    if body.stream_options is not None and not body.stream:
        raise HttpRefusal(400, "stream_options is for streams: set stream to true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise HttpRefusal(400, "prompt_logprobs are not streamed: set stream to false", param="prompt_logprobs")
    form_field, form = form_of(body, settings.structured_outputs)
    tools = _tools(body)
    must_call, one = _must_call(body, tools)
    if must_call and form is not None:
        raise HttpRefusal(400, f"tool_choice and {form_field} both say a form: give one of them", param="tool_choice")
    return Asked(
        replace(_params(body, room, settings), structured_outputs=form),
        choices,
        bool(body.stream),
        bool(body.stream_options and body.stream_options.include_usage),
        bool(body.return_drafted),
        settings.drafts.num_speculative_tokens if body.num_speculative_tokens is None else body.num_speculative_tokens,
        settings.drafts.draft if body.draft is None else body.draft,
        echoes=_echoes(body),
        shows_answer=not (_echoes(body) and body.max_tokens == 0),
        tells_prompt=body.prompt_logprobs is not None,
        tools=tools,
        must_call=must_call,
        most_calls=1 if isinstance(body, ChatBody) and (body.parallel_tool_calls is False or one) else None,
        form_field="tool_choice" if must_call else form_field,
        running_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
        room_for=_most_tokens(body),
        context=room,
    )


def _tools(body: SamplingBody) -> list[dict[str, Any]]:
    """The tools that may be called. Raises ``HttpRefusal`` for what is no function with a name."""
    if not isinstance(body, ChatBody) or not body.tools or body.tool_choice == "none":
        return []
    for at, tool in enumerate(body.tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not _is_name(function.get("name")):
            raise HttpRefusal(400, f"tools[{at}] is no function with a name", param=f"tools[{at}]")
    return body.tools


def _must_call(body: SamplingBody, tools: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], bool]:
    """The tools of which an answer must be calls, and whether it is one call alone. Raises ``HttpRefusal``."""
    choice = body.tool_choice if isinstance(body, ChatBody) else None
    if choice in (None, "none", "auto"):
        return (), False
    name = _named(choice)
    if choice != "required" and name is None:
        raise HttpRefusal(
            400,
            'tool_choice is "none", "auto", "required", or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
            code="unsupported_parameter",
        )
    if not tools:
        raise HttpRefusal(400, "tool_choice says that a tool must be called, and there are none", param="tool_choice")
    chosen = [each for each in tools if name is None or each["function"]["name"] == name]
    if not chosen:
        raise HttpRefusal(
            400, f"tool_choice names {str(name)[:100]!r}, which is none of the tools", param="tool_choice"
        )
    return chosen, name is not None


def _named(choice: Any) -> str | None:
    """The function that a choice names, None for none."""
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if _is_name(name) else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _echoes(body: SamplingBody) -> bool:
    return isinstance(body, CompletionBody) and bool(body.echo)


def _params(body: CompletionBody | ChatBody, room: int, settings: ServerSettings) -> SamplingParams:
    name, most = _most_tokens(body)
    if isinstance(body, CompletionBody):
        if most is None:
            most = COMPLETION_TOKENS
        elif most == 0 and body.echo:
            most = 1  # the pass that reads a prompt gives a token, which is not told
    if most is not None and most < 1:
        raise HttpRefusal(400, f"{name} must be 1 or more, not {most}", param=name)
    given = {each: value for each in _TAKEN if (value := getattr(body, each)) is not None}
    given.setdefault("acceptance_tolerance", settings.drafts.acceptance_tolerance)
    given |= {"logit_bias": _biases(body.logit_bias or {}), "logprobs": _logprobs(body)}
    echoed = given["logprobs"] if _echoes(body) else None
    asked = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    given["prompt_logprobs"] = None if not asked else min(asked) if min(asked) < 0 else max(asked)
    try:
        return SamplingParams(**{"temperature": 1.0, **given}, max_tokens=room if most is None else most)
    except UsageError as error:
        raise HttpRefusal(400, error.in_a_line, param=error.what.split(maxsplit=1)[0].split("[")[0]) from None


def _most_tokens(body: SamplingBody) -> tuple[str, int | None]:
    """The field that says how many tokens an answer may have, and how many it says."""
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.max_tokens


def _biases(given: dict[str, float]) -> dict[int, float]:
    """Amounts by token id, which are texts in JSON."""
    found = {}
    for token, amount in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < _DIGITS):
            raise HttpRefusal(400, f"logit_bias: {token[:100]!r} is no token id", param="logit_bias")
        found[int(token)] = amount
    return found


def _logprobs(body: CompletionBody | ChatBody) -> int | None:
    """How many likeliest tokens are shown beside each, None for no logprobs at all."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    if body.top_logprobs and not body.logprobs:
        raise HttpRefusal(400, "top_logprobs is for logprobs: set logprobs to true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
