"""Generation requests, independent of the API: input, parameters and what to report.

Each API face converts a body to a ``Generation``. Server defaults, admission and the engine calls are shared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from starlette.concurrency import run_in_threadpool

from ...plugins.errors import UsageError
from ...plugins.problems import counted
from ..answer_styles import AnswerForm, AnswerStyle
from ..policy.drafts_per_round import NumSpeculativeTokens
from ..request_factory import EncodedInput, TemplateOptions
from ..requests.params import SamplingParams
from ..requests.structured_outputs import NAME, structured_of
from ..running.submission import AsyncSubmission
from .problems import CONTEXT_LENGTH_EXCEEDED, HttpRefusal
from .settings import ServerSettings
from .state import ServerState

Prompt = str | Sequence[int]
_WORD = re.compile(r"""(?<!\w)(['"])(?:\\.|(?!\1).)*\1|\w+""")  # or a quoted text, in which no word is replaced


@dataclass(frozen=True)
class Conversation:
    """Chat messages and the inputs of their template.

    The model may call ``tools``. If ``must_call`` is not empty, the answer consists only of calls of those tools.
    ``max_calls`` limits the number of calls. The answer begins a new message, or continues the final one.
    ``chat_template`` replaces the engine's.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    must_call: Sequence[dict[str, Any]] = ()
    max_calls: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None

    @property
    def template_options(self) -> TemplateOptions:
        """The inputs of the template beside the messages."""
        return {
            "tools": self.tools or None,
            "documents": self.documents,
            "chat_template_kwargs": self.chat_template_kwargs,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "chat_template": self.chat_template,
        }


def _unchanged(error: UsageError) -> UsageError:
    return error


@dataclass(frozen=True)
class Generation:
    """A request for ``choices`` answers to each prompt, or to a conversation.

    ``echoes`` puts the prompt before the answer. Without ``shows_answer``, only the prompt is reported.
    ``requested_tokens`` is the maximum number of new tokens, with the name of the field that sets it. ``reword``
    rewrites an engine error so that it names the fields of the body. ``form`` is what the grammar ensures of the answer
    to a conversation; ``admitted`` sets it.
    """

    source: Sequence[Prompt] | Conversation
    params: SamplingParams
    choices: int = 1
    streams: bool = False
    num_speculative_tokens: NumSpeculativeTokens | None = None
    draft: str | None = None
    priority: int = 0
    echoes: bool = False
    shows_answer: bool = True
    requested_tokens: tuple[str, int] | None = None
    reword: Callable[[UsageError], UsageError] = field(default=_unchanged, compare=False)
    form: AnswerForm = AnswerForm.ANY

    @property
    def num_inputs(self) -> int:
        """Number of prompts; a conversation counts as one."""
        return 1 if isinstance(self.source, Conversation) else len(self.source)

    def require_room(self, prompt: int, context: int) -> None:
        """Raise ``HttpRefusal`` if the prompt's tokens plus the requested tokens exceed ``context``."""
        if self.requested_tokens is None:
            return
        name, max_tokens = self.requested_tokens
        if prompt + max_tokens > context:
            raise HttpRefusal(
                400,
                f"{name} is {max_tokens} and the prompt has {prompt} tokens, but the context length is {context}; "
                f"fix: set {name} to at most {context - prompt}, remove the field, or shorten the prompt",
                param=name,
                code=CONTEXT_LENGTH_EXCEEDED,
            )


def sampling_params(
    fields: Mapping[str, Any], settings: ServerSettings, renamed: Mapping[str, str] = MappingProxyType({})
) -> SamplingParams:
    """Return the sampling parameters for the ``fields`` of a body, with the server's defaults for missing ones.

    ``renamed`` has the API's names of parameters. Raises ``HttpRefusal`` that names the field.
    """
    defaults = {"temperature": 1.0, "acceptance_tolerance": settings.drafts.acceptance_tolerance}
    try:
        return SamplingParams(**{**defaults, **fields})
    except UsageError as error:
        message = _WORD.sub(lambda match: renamed.get(match[0], match[0]), error.one_line)
        raise HttpRefusal(400, message, param=message.split(maxsplit=1)[0].split("[")[0]) from None


async def answer_style(state: ServerState) -> AnswerStyle:
    """Return the format in which the model writes tool calls and reasoning. The first call reads its chat template."""
    return await run_in_threadpool(lambda: state.engine.answer_style)


async def admitted(state: ServerState, generation: Generation) -> Generation:
    """Return the generation with the grammar of its tool calls added, if there is one, and what its grammar ensures.

    Raises ``HttpRefusal`` if it has more choices than the server allows.
    """
    choices, limit = generation.choices, state.limits.choices
    total = choices * generation.num_inputs
    if choices < 1 or total > limit:
        raise HttpRefusal(
            400,
            f"n is {choices} with {counted(generation.num_inputs, 'prompt')}, which makes {counted(total, 'choice')}, "
            f"but this server allows 1 to {limit} per request; fix: request a number in this range, or start the "
            "server with a larger --max-choices",
            param="n",
        )
    if not isinstance(generation.source, Conversation):
        return generation
    params, form = await run_in_threadpool(_with_calls, state, generation.source, generation.params)
    return replace(generation, params=params, form=form)


def _with_calls(state: ServerState, source: Conversation, params: SamplingParams) -> tuple[SamplingParams, AnswerForm]:
    """Return the parameters with the grammar of the tool calls of a conversation, and what the grammar ensures."""
    engine, max_calls, tools = state.engine, source.max_calls, source.tools
    keeps_keys = state.settings.structured_outputs.disable_additional_properties
    if source.must_call:
        calls = engine.calls_of(source.must_call, max_calls, disable_additional_properties=keeps_keys)
        return replace(params, structured_outputs=calls), AnswerForm.CALLS
    otherwise = structured_of(NAME, params.structured_outputs)
    if otherwise is not None and not otherwise.is_json:
        return params, AnswerForm.ANY
    form = AnswerForm.TEXT_THEN_CALLS if otherwise is None else AnswerForm.JSON_OR_CALLS
    if tools and not params.ignore_eos:
        found = engine.optional_calls_of(
            tools, max_calls, otherwise=otherwise, disable_additional_properties=keeps_keys
        )
        if found is not None:
            return replace(params, structured_outputs=found), form
    return params, AnswerForm.ANY if otherwise is None else AnswerForm.JSON


async def prompt_ids(state: ServerState, conversation: Conversation, *, is_structured: bool = False) -> list[int]:
    """Return the token ids of a conversation, as its template renders it. Raises engine errors.

    An answer that ``is_structured``, or only calls, begins without reasoning.
    """
    can_think = not (is_structured or conversation.must_call)

    def ids() -> list[int]:
        options = conversation.template_options
        return state.engine.chat_prompt(conversation.messages, can_think=can_think, **options)[1]

    return await run_in_threadpool(ids)


def encodings(state: ServerState, generation: Generation) -> Iterator[Callable[[], EncodedInput]]:
    """Yield a function per input that renders and encodes it. Raises engine errors."""
    engine, source, params = state.engine, generation.source, generation.params
    if isinstance(source, Conversation):
        yield partial(engine.encoded_chat, source.messages, params, **source.template_options)
        return
    for prompt in source:
        yield partial(engine.encoded, prompt, params)


def submission_of(
    state: ServerState, generation: Generation, prompt: EncodedInput, params: SamplingParams, seconds: float
) -> AsyncSubmission:
    """Return the request for one choice, which has ``seconds``.

    The server's draft defaults hold if the body sets none.
    """
    defaults, k = state.settings.drafts, generation.num_speculative_tokens
    draft = defaults.draft if generation.draft is None else generation.draft
    return state.engine.submit_async(
        prompt,
        params,
        num_speculative_tokens=state.engine.usual_drafts(draft, defaults.num_speculative_tokens) if k is None else k,
        draft=draft,
        timeout=seconds,
        priority=generation.priority,
    )
