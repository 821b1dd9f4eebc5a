"""What an HTTP request asks of the engine, whichever API it came by: its input, its parameters, and what may be told.

A face makes a ``Generation`` of a body. Server defaults, admission, and the engine's calls are the same for all faces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.concurrency import run_in_threadpool

from ...plugins.errors import UsageError
from ..policy.drafts_per_round import DraftsAsked
from ..requests.params import SamplingParams
from ..running.submission import AsyncSubmission
from ..text.answer_styles import READ, Style
from .problems import CONTEXT_LENGTH_EXCEEDED, HttpRefusal
from .settings import ServerSettings
from .state import ServerState

Prompt = str | Sequence[int]
Submit = Callable[[SamplingParams], AsyncSubmission]


@dataclass(frozen=True)
class Conversation:
    """Messages to answer, with what their template may need.

    ``tools`` may be called; an answer consists of calls of ``must_call`` alone where there are some, and of
    ``most_calls`` calls at most.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    must_call: Sequence[dict[str, Any]] = ()
    most_calls: int | None = None


def _unchanged(error: UsageError) -> UsageError:
    return error


@dataclass(frozen=True)
class Generation:
    """``choices`` answers to each of some prompts, or to a conversation.

    ``echoes`` puts the prompt before the answer; without ``shows_answer`` the prompt is all that is reported.
    ``requested_tokens`` are the most new tokens, with the field that says so. ``reword`` turns an error of the engine
    into the words of the body's fields.
    """

    source: Sequence[Prompt] | Conversation
    params: SamplingParams
    choices: int = 1
    streams: bool = False
    num_speculative_tokens: DraftsAsked | None = None
    draft: str | None = None
    echoes: bool = False
    shows_answer: bool = True
    requested_tokens: tuple[str, int] | None = None
    reword: Callable[[UsageError], UsageError] = field(default=_unchanged, compare=False)

    @property
    def num_inputs(self) -> int:
        """How many prompts there are; a conversation is one."""
        return 1 if isinstance(self.source, Conversation) else len(self.source)

    def require_room(self, prompt: int, context: int) -> None:
        """Raise ``HttpRefusal`` where a prompt of so many tokens leaves the ``context`` too few for what is asked."""
        if self.requested_tokens is None:
            return
        name, most = self.requested_tokens
        if prompt + most > context:
            raise HttpRefusal(
                400,
                f"{name} is {most}, and the prompt has {prompt} tokens; the engine's context holds {context}; "
                f"fix: ask for at most {context - prompt}, leave {name} out, or shorten the prompt",
                param=name,
                code=CONTEXT_LENGTH_EXCEEDED,
            )


def sampling_params(fields: Mapping[str, Any], settings: ServerSettings) -> SamplingParams:
    """Return the parameters that the ``fields`` of a body say, with the server's defaults for the others.

    Raises ``HttpRefusal`` by the field.
    """
    defaults = {"temperature": 1.0, "acceptance_tolerance": settings.drafts.acceptance_tolerance}
    try:
        return SamplingParams(**{**defaults, **fields})
    except UsageError as error:
        raise HttpRefusal(400, error.in_a_line, param=error.what.split(maxsplit=1)[0].split("[")[0]) from None


async def answer_style(state: ServerState) -> Style | None:
    """Return how the model's chat answers call tools and tell thoughts; the first call reads its template."""
    return await run_in_threadpool(lambda: state.engine.answer_style)


async def admitted(state: ServerState, generation: Generation) -> Generation:
    """Return the generation as it runs: with the form of its answers, where they must call tools.

    Raises ``HttpRefusal`` for more answers than the server's limit, and for tools that the model cannot call.
    """
    choices, limit = generation.choices, state.limits.choices
    if choices < 1 or choices * generation.num_inputs > limit:
        raise HttpRefusal(
            400,
            f"n is {choices}, for {generation.num_inputs} prompt(s): this server gives 1 to {limit} answers in all;"
            " ask for fewer, or start it with a larger --max-choices",
            param="n",
        )
    source = generation.source
    if not isinstance(source, Conversation):
        return generation
    if source.tools and not await run_in_threadpool(lambda: state.engine.can_call_tools):
        raise HttpRefusal(
            400,
            "tools are not supported by this model: its chat template has no calls in a form that is read here "
            f"({READ})",
            param="tools",
            code="unsupported_parameter",
        )
    if not source.must_call:
        return generation
    keeps_keys = state.settings.structured_outputs.disable_additional_properties
    form = await run_in_threadpool(
        lambda: state.engine.calls_of(source.must_call, source.most_calls, disable_additional_properties=keeps_keys)
    )
    return replace(generation, params=replace(generation.params, structured_outputs=form))


def submitters(state: ServerState, generation: Generation) -> list[Submit]:
    """Return what submits one answer to each input, with the server's drafts where the body says nothing of them."""
    engine, seconds, source = state.engine, state.limits.seconds, generation.source
    k, draft = generation.num_speculative_tokens, generation.draft
    k = state.settings.drafts.num_speculative_tokens if k is None else k
    draft = state.settings.drafts.draft if draft is None else draft

    def continuing(prompt: Prompt) -> Submit:
        return lambda params: engine.submit_async(
            prompt, params, num_speculative_tokens=k, draft=draft, timeout=seconds
        )

    if not isinstance(source, Conversation):
        return [continuing(prompt) for prompt in source]
    return [
        lambda params: engine.submit_chat_async(
            source.messages,
            params,
            tools=source.tools or None,
            documents=source.documents,
            chat_template_kwargs=source.chat_template_kwargs,
            num_speculative_tokens=k,
            draft=draft,
            timeout=seconds,
        )
    ]
