"""Builds requests from the arguments of a call: prompt or conversation, sampling policy and draft method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ..plugins.errors import UsageError
from .draft_options import Decoding, DraftDefaults, LoadedDrafters
from .folder.manifest import Manifest
from .grammars.call_grammar import call_form, without_schemas
from .grammars.compiled import Grammars
from .grammars.tally import GrammarTally
from .policy.drafts_per_round import NumSpeculativeTokens, Policy
from .requests.arguments import text_of, token_ids_of
from .requests.params import SamplingParams, params_of
from .requests.random_numbers import draw_seed
from .requests.structured_outputs import NAME, StructuredOutputsParams, structured_of
from .running.logprobs import PromptLogprobs
from .running.request import Request
from .running.submission import Delivery
from .running.token_choice import choice_of
from .text.chat import Chat, Objects, WrittenChat
from .text.messages import Message
from .text.tokenizer import Tokenizer
from .text.transcript import Transcript

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class EncodedInput:
    """The token ids of a prompt or a conversation, for any number of requests.

    ``end_ids`` are additional ids that end its text. ``shows_special`` puts special tokens into the text. The text
    ``continues`` that of the input, or begins a new message. It begins ``in_thought`` if the input has opened
    reasoning.
    """

    ids: tuple[int, ...]
    end_ids: frozenset[int] = frozenset()
    shows_special: bool = False
    continues: bool = True
    in_thought: bool = False


class DraftOptions(TypedDict, total=False):
    """Draft options of a call; missing ones, or None, take the engine's defaults."""

    num_speculative_tokens: NumSpeculativeTokens | None
    draft: str | None


class TemplateOptions(TypedDict, total=False):
    """Additional inputs of a conversation, for templates that support them."""

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    chat_template: str | None


class ChatOptions(DraftOptions, TemplateOptions, total=False):
    """Options of a chat call."""


class RequestFactory:
    """Creates and validates the requests of one engine; invalid ones are refused before anything runs."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tokenizer: Tokenizer,
        draft: str | None,
        policy: Policy | None,
        *,
        prepares_rounds: bool,
        max_seq_len: int,
        chat_template: str | None = None,
    ) -> None:
        """``draft`` and ``policy`` are the defaults for calls; None takes those of the build.

        If ``prepares_rounds``, the backend prepares rounds of each K. ``max_seq_len`` limits the tokens of a
        request. ``chat_template`` replaces that of the folder.
        """
        self._manifest, self._tokenizer = manifest, tokenizer
        self._max_seq_len = max_seq_len
        defaults = DraftDefaults.of(manifest, draft=draft, policy=policy, prepares_rounds=prepares_rounds)
        self.drafters = LoadedDrafters(defaults)
        self._grammars = Grammars(tokenizer.as_json, tokenizer.eos_token_ids, manifest.shapes.vocab_size)
        self.conversations = Chat(folder, tokenizer, max_seq_len, chat_template)

    def decoding(
        self, draft: str | None = None, num_speculative_tokens: NumSpeculativeTokens | None = None
    ) -> Decoding:
        """Return the draft method, policy and drafter for a call's options."""
        return self.drafters.decoding(draft, num_speculative_tokens)

    def ids(self, name: str, ids: Sequence[int], keep_last: int | None = None) -> tuple[int, ...]:
        """Return token ids that fit the vocabulary and the caches; with ``keep_last``, the last ones of ``ids``.

        Raises ``UsageError`` with ``name``.
        """
        return token_ids_of(name, ids, self._manifest.shapes.vocab_size, self._max_seq_len, keep_last)

    def encoded(self, name: str, prompt: Prompt, params: SamplingParams) -> EncodedInput:
        """Return a prompt, truncated as ``params`` specify.

        Errors refer to the prompt as ``name``. Raises ``PromptTooLong`` without encoding if it is certainly too long.
        """
        keep_last = self._prompt_limit(params)
        ids: Sequence[int] = (
            self._tokenizer.encode(text_of(name, prompt), max_seq_len=self._max_seq_len, keep_last=keep_last, name=name)
            if isinstance(prompt, str)
            else prompt
        )
        return EncodedInput(self.ids(name, ids, keep_last))

    def encoded_chat(
        self, messages: Sequence[Message], params: SamplingParams, **options: Unpack[TemplateOptions]
    ) -> EncodedInput:
        """Return a conversation, rendered, encoded, and truncated as ``params`` specify.

        An answer of a structured output begins without reasoning.
        """
        chats, keep_last = self.conversations, self._prompt_limit(params)
        form = structured_of(NAME, params.structured_outputs)
        can_think = form is None or not form.is_from_start
        written = self.written(messages, keep_last=keep_last, can_think=can_think, **options)
        end_ids = chats.ends_with(options.get("chat_template"))
        shown = chats.style.shows_special(self._tokenizer.added_texts, has_tools=bool(options.get("tools")))
        continues = bool(options.get("continue_final_message"))
        ids = self.ids("the conversation", written.ids, keep_last)
        return EncodedInput(ids, end_ids, shown, continues, written.in_thought)

    def _prompt_limit(self, params: SamplingParams) -> int | None:
        """Return how many tokens of a prompt are kept, None for all. Raises ``UsageError``."""
        keep_last = params.truncate_prompt_tokens
        if keep_last is not None and keep_last > self._max_seq_len:
            raise UsageError(
                f"truncate_prompt_tokens is {keep_last}, which exceeds the context length of {self._max_seq_len} "
                "tokens",
                fix="lower the value, or set it to -1, which keeps as many tokens as fit",
            )
        max_tokens = self._max_seq_len - 1  # beside one token
        return max_tokens if keep_last == -1 else keep_last and min(keep_last, max_tokens)

    def prompt(
        self, prompt: Prompt | EncodedInput, params: SamplingParams | None, **drafts: Unpack[DraftOptions]
    ) -> Request:
        """Return the request for a single prompt."""
        (each,) = params_of(params, 1)
        encoded = prompt if isinstance(prompt, EncodedInput) else self.encoded("prompt", prompt, each)
        return self.request(encoded, each, self.decoding(**drafts))

    def conversation(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None,
        *,
        num_speculative_tokens: NumSpeculativeTokens | None = None,
        draft: str | None = None,
        **options: Unpack[TemplateOptions],
    ) -> Request:
        """Return the request for a conversation."""
        decoded = self.decoding(draft, num_speculative_tokens)
        (each,) = params_of(params, 1)
        return self.request(self.encoded_chat(messages, each, **options), each, decoded)

    def written(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WrittenChat:
        """Return the rendered text of a conversation and its token ids; ``options`` are those of ``Chat.prompt``."""
        return self.conversations.prompt(messages, tools, documents, chat_template_kwargs, **options)

    @property
    def grammars(self) -> GrammarTally:
        """Statistics of structured outputs."""
        return self._grammars.tally

    def prepare_forms(self) -> bool:
        """Load the vocabulary for structured outputs, and return True if this succeeded."""
        return self._grammars.is_usable

    def calls(
        self, tools: Objects, max_calls: int | None, *, disable_additional_properties: bool = True
    ) -> StructuredOutputsParams:
        """Return the form of an answer that only calls tools, at most ``max_calls`` times. Raises ``UsageError``."""
        style = self.conversations.style
        return call_form(tools, style, max_calls=max_calls, disable_additional_properties=disable_additional_properties)

    def optional_calls(
        self,
        tools: Objects,
        max_calls: int | None,
        *,
        otherwise: StructuredOutputsParams | None = None,
        disable_additional_properties: bool = True,
    ) -> StructuredOutputsParams | None:
        """Return the form of an answer that may call tools, at most ``max_calls`` times.

        Without calls, the answer is JSON of the form ``otherwise``, or any text, which may also precede the calls. If
        the schemas of the tools cannot be enforced, arguments may be any object. None if nothing can be enforced, and
        for any text if the template has its own format of calls.
        """
        style = self.conversations.style
        may_be_optional = style.follows_text if otherwise is None else style.may_be_json
        if not may_be_optional or not self._grammars.is_usable:
            return None
        for each in (tools, without_schemas(tools)) if style.takes_any_arguments else (tools,):
            with suppress(UsageError):
                form = call_form(
                    each,
                    style,
                    max_calls=max_calls,
                    must_call=otherwise is not None,
                    otherwise=otherwise,
                    disable_additional_properties=disable_additional_properties,
                )
                self._grammars.require_possible(form.after_prompt(in_thought=style.opens_thought))
                return form
        return None

    def request(
        self,
        prompt: EncodedInput,
        params: SamplingParams,
        decoding: Decoding,
        delivery: Delivery | None = None,
    ) -> Request:
        """Return the request for one prompt."""
        manifest, tokenizer, ids = self._manifest, self._tokenizer, prompt.ids
        room = min(params.max_tokens, self._max_seq_len - len(ids))
        seed = draw_seed() if params.seed is None else params.seed
        end_ids, stops = prompt.end_ids | tokenizer.eos_token_ids, frozenset(params.stop_token_ids)
        form = structured_of(NAME, params.structured_outputs)
        form = form and form.after_prompt(in_thought=prompt.in_thought)
        grammar = partial(self._grammars.path, form, frozenset() if params.ignore_eos else end_ids)
        choice = choice_of(
            params,
            ids,
            end_ids | stops,
            tokenizer.words(params.bad_words),
            manifest.shapes.vocab_size,
            grammar=grammar,
        )
        end_ids = stops if params.ignore_eos else end_ids | stops
        transcript = Transcript(
            params,
            tokenizer,
            room,
            end_ids,
            after=ids[-1] if prompt.continues else None,
            shows_special=prompt.shows_special,
        )
        scored = params.prompt_logprobs
        return Request(
            ids,
            params,
            seed,
            transcript,
            room,
            decoding.method,
            decoding.policy,
            delivery or Delivery(),
            choice=choice,
            prompt_logprobs=None if scored is None else PromptLogprobs(ids, scored, manifest.shapes.vocab_size),
            drafter=decoding.drafter,
            drafter_name=decoding.drafter_name,
            in_thought=prompt.in_thought,
        )
