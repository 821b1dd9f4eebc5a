"""The engine: load an engine folder, and generate with it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np

from ..plugins.errors import UsageError
from .backends.base import Backend
from .backends.opening import open_backend
from .draft_options import drafts_of
from .folder.checks import check_files
from .folder.manifest import Manifest
from .grammars.tally import GrammarTally
from .loop import Load, Loop
from .machine import most_threads
from .policy.drafts_per_round import Policy
from .request_factory import ChatOptions, DraftOptions, Prompt, RequestFactory, TemplateOptions
from .requests.arguments import flag, integer, number, prompts_of, refusal
from .requests.params import SamplingParams, params_of
from .requests.results import RequestOutput
from .requests.structured_outputs import StructuredOutputsParams
from .running.request import Request
from .running.submission import AsyncSubmission, Delivery, Stream, Submission
from .scheduling.scheduler import MAX_PREFILL_TOKENS
from .text.answer_styles import Style
from .text.channels import spoken
from .text.messages import Message
from .text.tokenizer import Tokenizer

MAX_QUEUE_SIZE = 256
Check = Literal["hashes", "sizes"]


class Engine:
    """A loaded engine, which runs requests of any thread at once: as many as it was loaded for, and others wait.

    A thread of its own makes the passes; it begins with the first request. ``with Engine.load(...) as engine`` closes
    it at the end of the block; one that nobody holds any more ends what it was given, and its thread with it.

    ``draft`` names the draft method, ``policy`` chooses K for each round, where a call
    does not say it; both are those of the build by default. ``checked`` says what of the files was compared with the
    manifest when they were loaded.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        draft: str | None = None,
        policy: Policy | None = None,
        max_queue_size: int = MAX_QUEUE_SIZE,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        prefix_cache_bytes: int = 0,
        checked: Check | None = None,
    ) -> None:
        self.checked = checked
        self.folder, self.manifest, self.tokenizer = folder, manifest, tokenizer
        self._backend = backend
        self._factory = RequestFactory(folder, manifest, tokenizer, draft, policy, shows_logits=backend.shows_logits)
        if prefix_cache_bytes and not backend.kept_bytes:
            raise UsageError(
                f"prefix_cache_bytes is {prefix_cache_bytes}, and this engine cannot keep prompts",
                why="only engines of ONNX Runtime can",
                fix="leave it out",
            )
        self._loop = Loop(backend, self.max_seq_len, max_queue_size, max_prefill_tokens, prefix_cache_bytes)
        weakref.finalize(self, self._loop.retire).atexit = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        max_batch_size: int = 1,
        threads: int | None = None,
        check: Check = "hashes",
        max_queue_size: int = MAX_QUEUE_SIZE,
        max_prefill_tokens: int = MAX_PREFILL_TOKENS,
        prefix_cache_bytes: int = 0,
    ) -> Engine:
        """Check the folder against its manifest, then load it with room for ``max_batch_size`` rows.

        ``threads`` is for the CPU; None chooses. ``max_queue_size`` requests may wait while so many run; ``submit``
        raises ``QueueFull`` for more, and calls that return a text wait. ``max_prefill_tokens`` is how much of prompts
        is read between two rounds of requests that run: less lets their tokens come more evenly, more lets a long
        prompt begin earlier. ``prefix_cache_bytes`` of memory keep prompts that were read, for others that begin alike;
        0 keeps none. ``check`` compares the files' hashes with the manifest's, which reads all of them, or their sizes
        alone. Raises ``UsageError`` for what no machine or no plan can do, and
        ``EnvironmentProblem`` for a folder that is missing, damaged, too new, for another backend, or too large here.
        """
        slots = integer("max_batch_size", max_batch_size, 1)
        if threads is not None:
            threads = integer("threads", threads, 1, most_threads(), fix="leave it out, and the engine chooses")
        if not isinstance(check, str) or check not in get_args(Check):
            raise refusal("check", " or ".join(map(repr, get_args(Check))), check)
        queue = integer("max_queue_size", max_queue_size, 0)
        prefill = integer("max_prefill_tokens", max_prefill_tokens, 1)
        kept = integer("prefix_cache_bytes", prefix_cache_bytes, 0)
        try:
            folder = Path(path)
        except TypeError:
            raise refusal("path", "a str or a Path", path) from None
        manifest = Manifest.read(folder)
        check_files(manifest.files, folder, hashes=check == "hashes")
        backend = open_backend(folder, manifest, slots, threads)
        tokenizer = Tokenizer(folder, manifest.eos_token_ids, manifest.shapes.vocab_size)
        engine = cls(
            folder,
            manifest,
            backend,
            tokenizer,
            max_queue_size=queue,
            max_prefill_tokens=prefill,
            prefix_cache_bytes=kept,
            checked=check,
        )
        method, policy = engine._factory.decoding()
        if method.strategy is not None and method.strategy.enqueues_only:
            backend.warm(method.strategy.round, policy.most)
        return engine

    def close(self, *, drain: bool = False) -> None:
        """End what runs and waits, with the ``finish_reason`` "abort", or let it come to its end (``drain``).

        Takes nothing more, and returns when all has ended. A second call does nothing.
        """
        self._loop.close(drain=flag("drain", drain))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_speculative_tokens(self) -> int:
        """The K that the build chose, with which calls begin; 0 where it was built for plain decoding."""
        return self.manifest.speculation.num_speculative_tokens

    @property
    def max_seq_len(self) -> int:
        """The most tokens of a request, prompt and new ones together."""
        return self.manifest.shapes.max_seq_len

    @property
    def load_now(self) -> Load:
        """How many requests run and wait at this moment."""
        return self._loop.load

    def require_open(self) -> None:
        """Raise ``EngineClosed`` where it was closed, and ``EngineFailed`` where it cannot run any request."""
        self._loop.require_open()

    @property
    def grammars(self) -> GrammarTally:
        """What became of the forms that texts were asked to have, counted since it was loaded."""
        return self._factory.grammars

    @property
    def can_chat(self) -> bool:
        """Whether it has a chat template. Raises ``EnvironmentProblem`` for one that is damaged."""
        return self._factory.conversations.has_template

    @property
    def answer_style(self) -> Style | None:
        """How chat answers call tools and tell thoughts, by the template; None where they are text and nothing else.

        With ``"channels"`` (GPT-OSS) the text of a chat shows the special tokens between its channels.
        """
        return self._factory.conversations.style

    def spoken(self, answer: str) -> str:
        """Return what the text of a chat answer says: without thoughts, where the model tells them apart."""
        return spoken(answer) if self.answer_style == "channels" else answer

    @property
    def can_call_tools(self) -> bool:
        """Whether its chat template shows tools, and calls of them in a form that can be read out of an answer."""
        return self._factory.can_call_tools

    def prepare_forms(self) -> None:
        """Read the vocabulary for forms of texts, which the first request that has one would wait for otherwise.

        Does nothing without the extra ``[grammar]``. A server calls it in a thread of its own when it answers.
        """
        self._factory.prepare_forms()

    def calls_of(
        self,
        tools: Sequence[Mapping[str, Any]],
        most: int | None = None,
        *,
        disable_additional_properties: bool = True,
    ) -> StructuredOutputsParams:
        """Return the form of an answer that calls ``tools``, ``most`` times at most (1 or None), and says nothing else.

        Arguments have the keys that their schemas declare and no others, unless a schema says ``additionalProperties``
        or ``disable_additional_properties`` is False.

        It is for ``SamplingParams.structured_outputs`` of a chat with the same tools, as OpenAI has them. Raises
        ``UsageError`` for parameters that are no schema of an object, or that this model's calls cannot hold to, and
        for a model without such calls.
        """
        return self._factory.calls(tools, most, disable_additional_properties=disable_additional_properties)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **drafts: Unpack[DraftOptions],
    ) -> list[RequestOutput]:
        """Continue every prompt (text or token ids); results in the order of the prompts.

        ``params`` is one policy for all or one each. ``num_speculative_tokens`` is K of every round, 0 for plain
        decoding; with ``"auto"`` K follows what pays, which is the default unless the build was told a K. All give the
        same text. So does any ``draft``: ``"ngram"`` looks drafts up in the text, ``"none"`` is K = 0, None is what the
        engine was built with, which ``"peagle"`` and ``"eagle3"`` name. Raises ``UsageError`` for an empty,
        too long or out-of-range prompt, an illegal K, or drafts that the engine has no room for.
        """
        listed = prompts_of(prompts)
        policies = params_of(params, len(listed))
        how = self._factory.decoding(**drafts)
        ended = threading.Semaphore(0)
        requests = [
            self._factory.request(f"prompts[{i}]", prompt, each, *how, Delivery(in_pieces=False, at_end=ended.release))
            for i, (prompt, each) in enumerate(zip(listed, policies, strict=True))
        ]
        # To be dropped with this call, however it ends.
        submissions = [Submission(each.prompt, each.delivery) for each in requests]
        ahead = 2 * self._loop.slots  # the next in line is there, and other callers need not wait for all of these
        try:
            self._loop.submit(requests[:ahead], waits=True)
            for request in requests[ahead:]:
                ended.acquire()
                self._loop.submit([request], waits=True)
            return [each.result() for each in submissions]
        except KeyboardInterrupt:  # its traceback would keep the submissions
            for each in submissions:
                each.cancel()
            raise KeyboardInterrupt from None

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **drafts: Unpack[DraftOptions],
    ) -> Submission:
        """Hand a prompt over, and return at once: text comes as it is made, whatever else the engine does.

        Any thread may do so at any time. After ``timeout`` seconds, the time in the queue included, it ends with what
        it has got and the ``finish_reason`` "timeout". Raises ``QueueFull`` where too many wait, ``EngineClosed``, and
        what ``generate`` does.
        """
        return self._submitted(self._factory.prompt(prompt, params, **drafts), timeout, waits=False)

    def submit_async(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **drafts: Unpack[DraftOptions],
    ) -> AsyncSubmission:
        """Do what ``submit`` does for ``async for`` and ``await``; its errors come there."""
        return AsyncSubmission(lambda: self.submit(prompt, params, timeout=timeout, **drafts))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **drafts: Unpack[DraftOptions]) -> Stream:
        """Continue one prompt, giving text as it comes. Same arguments and errors as ``generate``."""
        return Stream(self._submitted(self._factory.prompt(prompt, params, **drafts), waits=True))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> RequestOutput:
        """Answer a conversation, whose messages go through the model's own chat template.

        ``messages`` are as OpenAI has them: ``{"role": ..., "content": ...}``, the content a text or a list of text
        parts. ``tools`` and ``documents`` are for templates that know them, ``chat_template_kwargs`` are variables of
        the template, such as ``enable_thinking``. Special tokens that a content spells out (``<|im_end|>``) are encoded
        as such, as ``transformers`` and vLLM do: take them out of text that you do not trust. No token is added to what
        the template writes, and the text of the result has none.

        The answer ends at the engine's end-of-text tokens, and at the special token that follows an answer in the
        template. Raises ``UsageError`` for messages of another form, those that the template refuses, a conversation
        that is too long, and an engine without a chat template; ``EnvironmentProblem`` for a template that is none, or
        takes too long.
        """
        stream = self.stream_chat(messages, params, **options)
        try:
            for _ in stream:
                pass
        except KeyboardInterrupt:
            stream.abort()
            raise KeyboardInterrupt from None
        return stream.result

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> Stream:
        """Answer a conversation, giving text as it comes. Same arguments and errors as ``chat``."""
        return Stream(self._submitted(self._factory.conversation(messages, params, **options), waits=True))

    def submit_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> Submission:
        """Hand a conversation over, and return at once: ``submit`` for ``chat``, whose errors it raises too."""
        return self._submitted(self._factory.conversation(messages, params, **options), timeout, waits=False)

    def submit_chat_async(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncSubmission:
        """Do what ``submit_chat`` does for ``async for`` and ``await``; its errors come there."""
        return AsyncSubmission(lambda: self.submit_chat(messages, params, timeout=timeout, **options))

    def chat_prompt(self, messages: Sequence[Message], **options: Unpack[TemplateOptions]) -> tuple[str, list[int]]:
        """Return what ``chat`` would give to the model: the text that the template writes, and its token ids.

        Raises ``PromptTooLong`` where its characters alone show that it cannot fit.
        """
        return self._factory.written(messages, **options)

    def target_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The target's logits after every token of ``token_ids``, f32 [len, V], from one pass between others."""
        ids = self._factory.ids("token_ids", token_ids)
        return self._loop.alone(lambda: self._backend.target_logits(ids))

    def draft_logits(self, token_ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """The drafter's logits for the K tokens after the one that greedy adds to ``token_ids``, f32 [K, Vd]."""
        ids, k = self._factory.ids("token_ids", token_ids), drafts_of(self.manifest, num_speculative_tokens)
        if self.manifest.drafter is None:
            raise UsageError("this engine has no drafter", why="only a drafter has logits", fix="ask one that has")
        if k == 0:
            raise UsageError("num_speculative_tokens is 0", why="then nothing is drafted", fix="ask for 1 or more")
        return self._loop.alone(lambda: self._backend.draft_logits(ids, k))

    def _submitted(self, request: Request, timeout: float | None = None, *, waits: bool) -> Submission:
        if timeout is not None:
            request.deadline = time.perf_counter() + number("timeout", timeout, 0, is_above=True)
        submission = Submission(request.prompt, request.delivery)
        self._loop.submit([request], waits=waits)
        return submission
