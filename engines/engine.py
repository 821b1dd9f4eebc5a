"""The engine: load an engine folder, and generate text with it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np

from ..plugins.errors import EnvironmentProblem, UsageError
from .answer_styles import AnswerStyle
from .backends.base import Backend
from .backends.opening import open_backend
from .backends.profiling import EngineProfile, Profiler
from .draft_options import Decoding, DraftDefaults, drafts_of, engine_with, with_drafter
from .folder.checks import Check, check_files, files_to_hash
from .folder.manifest import Manifest
from .folder.one_folder import from_one_folder
from .free_memory import free_memory, return_freed_memory
from .grammars.tally import GrammarTally
from .loop import Load, Loop
from .machine import max_threads, memory_bytes
from .policy.drafts_per_round import NumSpeculativeTokens, Policy, spaced_counts
from .policy.sweep import MeasuredK, Sweep
from .request_factory import ChatOptions, DraftOptions, EncodedInput, Prompt, RequestFactory, TemplateOptions
from .requests.arguments import flag, integer, number, prompts_of, refusal, texts_of
from .requests.params import SamplingParams, params_of
from .requests.results import RequestOutput
from .requests.structured_outputs import StructuredOutputsParams
from .running.request import Request
from .running.submission import AsyncSubmission, Delivery, Stream, Submission
from .text.messages import Message, template_of
from .text.tokenizer import Tokenizer

MAX_QUEUE_SIZE = 256
MAX_PRIORITY = (1 << 31) - 1
_CYCLES, _FEW, _PATIENCE = 16, 3, 3  # of `measure_rounds`: cycles through all K, those within its time, times that time
_TIMED_CALLS, _TIMED_TOKENS = 48, 64
_PREFIX_SHARE, _MAX_PREFIX_BYTES = 1 / 8, 16 << 30  # of the free memory, for the prefix cache


class Engine:
    """A loaded engine. Any thread can submit requests; up to ``max_batch_size`` run at once, and others wait.

    A background thread runs the passes; it starts with the first request. ``with Engine.load(...) as engine`` closes
    the engine at the end of the block. An engine that is garbage-collected first finishes its requests.

    ``draft`` is the default draft method, and ``policy`` chooses K for each round; both default to those of the build.
    Further drafters can be loaded and unloaded while requests run (``load_drafter``). ``max_seq_len`` can limit
    requests below the engine's own limit. ``chat_template`` replaces the folder's. ``checked`` is the comparison of the
    files with the manifest on load: ``"hashes"`` of all files, only ``"sizes"``, or ``"auto"``, which omits the hashes
    of large weights.
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
        max_prefill_tokens: int | None = None,
        prefix_cache_bytes: int = 0,
        max_seq_len: int | None = None,
        chat_template: str | None = None,
        checked: Check | None = None,
    ) -> None:
        self.checked = checked
        max_length = manifest.shapes.max_seq_len
        self._max_seq_len = max_length if max_seq_len is None else _limit(max_seq_len, max_length)
        self.folder, self.manifest, self.tokenizer = folder, manifest, tokenizer
        self._backend = backend
        self._factory = RequestFactory(
            folder,
            manifest,
            tokenizer,
            draft,
            policy,
            prepares_rounds=backend.prepares_rounds,
            max_seq_len=self._max_seq_len,
            chat_template=chat_template,
        )
        self._changes = threading.Lock()  # of the loaded drafters
        self._loop = Loop(backend, max_length, max_queue_size, max_prefill_tokens, prefix_cache_bytes)
        weakref.finalize(self, self._loop.retire).atexit = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        max_batch_size: int = 1,
        threads: int | None = None,
        check: Check = "auto",
        max_queue_size: int = MAX_QUEUE_SIZE,
        max_prefill_tokens: int | None = None,
        prefix_cache_bytes: int | None = None,
        max_seq_len: int | None = None,
        chat_template: str | None = None,
        draft: str | None = None,
        drafters: Sequence[str] = (),
        auto_draft: bool = False,
        profile: bool = False,
    ) -> Engine:
        """Check the folder against its manifest, then load it with room for ``max_batch_size`` concurrent requests.

        Args:
            path: The engine folder.
            max_batch_size: The maximum number of requests that run at once.
            threads: CPU threads; None chooses a number.
            check: ``"hashes"`` compares the hash of every file with the manifest, which reads all files; ``"sizes"``
                compares only their sizes. ``"auto"`` compares all hashes of an engine below 1 GB; from 1 GB on, it
                compares the weights of ONNX graphs only by size.
            max_queue_size: The maximum number of waiting requests. Beyond that, ``submit`` raises ``QueueFull``;
                ``generate``, ``stream`` and ``chat`` wait for room instead.
            max_prefill_tokens: Prompt tokens that are prefilled between two rounds of running requests. A smaller
                number gives running requests a steadier token rate; a larger one lets long prompts start sooner. None
                prefills for about two and a half times the duration of a round if the engine has this project's CPU
                kernels, otherwise 128 tokens.
            prefix_cache_bytes: Memory for the cache entries of earlier texts, reused by prompts that begin like them; 0
                keeps none. None takes an eighth of the memory that is free after the weights are loaded, at most 16
                GiB, with this project's CPU kernels, because restored entries then equal computed ones bit for bit;
                otherwise 0.
            max_seq_len: The maximum number of tokens of a request, at most that of the build, which is the default.
            chat_template: The text of a Jinja template that replaces the engine's own.
            draft: The drafter to load, by its name in `peagle-compile drafter list`, or a draft method as the default
                of calls. None takes the drafter and the method of the build.
            drafters: Names of further drafters to load, as ``load_drafter`` does.
            auto_draft: If True, calls without a draft use another loaded drafter, or none, instead of a drafter whose
                drafts are almost never accepted.
            profile: If True, the layers of all passes are timed for ``end_profile``, which slows the passes down.

        Raises ``UsageError`` for invalid arguments. Raises ``EnvironmentProblem`` for a folder that is missing,
        damaged, too new, for another backend, or too large for this machine.
        """
        slots = integer("max_batch_size", max_batch_size, 1)
        if threads is not None:
            threads = integer("threads", threads, 1, max_threads(), fix="remove threads to let the engine choose")
        if not isinstance(check, str) or check not in get_args(Check):
            raise refusal("check", " or ".join(map(repr, get_args(Check))), check)
        queue = integer("max_queue_size", max_queue_size, 0)
        prefill = None if max_prefill_tokens is None else integer("max_prefill_tokens", max_prefill_tokens, 1)
        cache_bytes = None if prefix_cache_bytes is None else integer("prefix_cache_bytes", prefix_cache_bytes, 0)
        template = None if chat_template is None else template_of(chat_template)
        further = texts_of("drafters", drafters)
        try:
            folder = Path(path)
        except TypeError:
            raise refusal("path", "a str or a Path", path) from None
        profiles = flag("profile", profile)

        def open_once() -> Engine:
            read = Manifest.read(folder)
            while True:
                manifest, default = engine_with(read, draft)
                for each in further:
                    with_drafter(manifest, each)
                longest = None if max_seq_len is None else _limit(max_seq_len, manifest.shapes.max_seq_len)
                hashed = files_to_hash(manifest.files, check)
                try:
                    check_files(manifest.files, folder, hashes=False)
                    check_files(hashed, folder)
                    break
                except EnvironmentProblem:
                    before, read = read, Manifest.read(folder)
                    if read == before:
                        raise  # else a command has changed the engine since, such as verify its results
            profiler, free = Profiler() if profiles else None, min(free_memory(), memory_bytes())
            backend = open_backend(folder, manifest, slots, threads, profiler)
            tokenizer = Tokenizer(folder, manifest.eos_token_ids, manifest.shapes.vocab_size)
            return cls(
                folder,
                manifest,
                backend,
                tokenizer,
                draft=default,
                max_queue_size=queue,
                max_prefill_tokens=prefill,
                prefix_cache_bytes=_usual_prefix_bytes(backend, manifest, free) if cache_bytes is None else cache_bytes,
                max_seq_len=longest,
                chat_template=template,
                checked="hashes" if hashed.keys() == manifest.files.keys() else check,
            )

        engine = from_one_folder(folder, open_once)
        for each in further:
            engine.load_drafter(each)
        if flag("auto_draft", auto_draft):
            misfits = engine._loop.misfits
            engine._factory.drafters.unfit = lambda: misfits.names
        for name in (None, *further):
            decoding = engine._factory.decoding(draft=name)
            strategy = decoding.method.strategy
            if strategy is not None and strategy.enqueues_only:
                for k in decoding.policy.counts:
                    engine._backend.warm(strategy.round, k, decoding.drafter)
        return engine

    def close(self, *, drain: bool = False) -> None:
        """Cancel all requests with ``finish_reason`` "abort"; with ``drain``, finish them instead.

        The engine accepts no more requests. The call returns when all have ended; a second call does nothing.
        """
        self._loop.close(drain=flag("drain", drain))

    def end_profile(self) -> EngineProfile:
        """Return the times of all prompt chunks, rounds and passes so far, for an engine loaded with ``profile``.

        Closes the engine, after its requests have finished.
        """
        self.close(drain=True)
        return self._backend.end_profile()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_speculative_tokens(self) -> int:
        """The K that the build chose, used as the initial K of calls; 0 for an engine built for plain decoding."""
        return self.manifest.speculation.num_speculative_tokens

    @property
    def max_seq_len(self) -> int:
        """The maximum number of tokens of a request, prompt and new tokens together."""
        return self._max_seq_len

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of the loaded drafters, which calls can choose (``draft``); the engine's own is the first."""
        return self._factory.drafters.names

    def load_drafter(self, name: str) -> None:
        """Load a drafter of the engine folder while requests run; does nothing if it is loaded.

        ``name`` is one of `peagle-compile drafter list`, which may have been added after the engine was loaded. Any
        thread may call this. Raises ``UsageError`` for an unknown name, and ``EnvironmentProblem`` for a folder that
        was replaced since, a damaged drafter, and one that needs too much memory.
        """
        with self._changes:
            self.require_open()
            if name in self.drafters:
                return
            now = Manifest.read(self.folder)
            if now.target != self.manifest.target or now.target_files != self.manifest.target_files:
                raise EnvironmentProblem(
                    f"the engine in {self.folder} was replaced after it was loaded",
                    why="the folder now contains another target, so its drafters may not match the loaded engine",
                    fix="load the engine again",
                )
            manifest = with_drafter(now, name)
            its = {each: entry for each, entry in manifest.files.items() if each not in self.manifest.files}
            check_files(its, self.folder, hashes=False)
            check_files(files_to_hash(its, "auto"), self.folder)
            drafter = self._backend.load_drafter(manifest, self._loop.run_between)
            self._factory.drafters.add(DraftDefaults.of(manifest, drafter))

    def unload_drafter(self, name: str) -> None:
        """Unload a drafter: calls can no longer select it, and requests that use it finish with it.

        Its memory is freed when the last of these requests has ended. Raises ``UsageError`` for a drafter that is not
        loaded, and for the one that the engine was loaded with.
        """
        with self._changes:
            self._loop.unload(name, self._factory.drafters.remove(name))
            return_freed_memory()

    def usual_drafts(self, draft: str | None, k: NumSpeculativeTokens | None) -> NumSpeculativeTokens | None:
        """Return the default K of calls with this ``draft``, given the caller's default ``k``; None is the engine's.

        The default is at most the maximum of the drafter that ``draft`` names, and None for plain decoding.
        """
        return self._factory.drafters.usual_drafts(draft, k)

    @property
    def load_now(self) -> Load:
        """The current numbers of running and waiting requests, and the use of the caches."""
        return self._loop.load

    @property
    def prefix_cache_bytes(self) -> int:
        """The memory for the prefix cache."""
        return self._loop.prefix_cache_bytes

    def require_open(self) -> None:
        """Raise ``EngineClosed`` if the engine was closed, or ``EngineFailed`` if it can no longer run requests."""
        self._loop.require_open()

    @property
    def grammars(self) -> GrammarTally:
        """Statistics of structured outputs since the engine was loaded."""
        return self._factory.grammars

    @property
    def can_chat(self) -> bool:
        """Return True if the engine has a chat template. Raises ``EnvironmentProblem`` if the template is damaged."""
        return self._factory.conversations.has_template

    @property
    def answer_style(self) -> AnswerStyle:
        """The format of tool calls and reasoning in chat answers, detected from the template.

        Templates without one get tools, calls and results as text of messages. If the style ``marks_reasoning``
        (GPT-OSS), the text of a chat answer includes the special tokens between its channels.
        """
        return self._factory.conversations.style

    def spoken(self, answer: RequestOutput | str) -> str:
        """Return the visible part of a chat answer, without reasoning if the model marks it.

        If the prompt of the answer has opened the reasoning, an answer that does not end it is reasoning. For the text
        of an answer, the prompt counts as the usual one of the template; a call with ``chat_template_kwargs`` or
        structured outputs may have another one.
        """
        style = self.answer_style
        if isinstance(answer, str):
            return style.spoken(answer, in_thought=style.opens_thought)
        return style.spoken(answer.text, in_thought=answer.in_thought)

    def prepare_forms(self) -> bool:
        """Load the vocabulary for structured outputs, which the first request with one would otherwise wait for.

        Returns False if this is not possible: without the ``[grammar]`` extra, or for an unsupported tokenizer. A
        server calls it in a separate thread after startup.
        """
        return self._factory.prepare_forms()

    def calls_of(
        self,
        tools: Sequence[Mapping[str, Any]],
        max_calls: int | None = None,
        *,
        disable_additional_properties: bool = True,
    ) -> StructuredOutputsParams:
        """Return structured output parameters for an answer that consists only of calls of ``tools``.

        ``max_calls`` is the maximum number of calls, 1 or None for any number. Arguments contain only keys that their
        schemas declare, unless a schema says ``additionalProperties`` or ``disable_additional_properties`` is False.
        Use the result as ``SamplingParams.structured_outputs`` of a chat with the same tools, in OpenAI's format.

        Raises ``UsageError`` for parameters that are not an object schema, and for schemas that the model's call format
        cannot enforce.
        """
        return self._factory.calls(tools, max_calls, disable_additional_properties=disable_additional_properties)

    def optional_calls_of(
        self,
        tools: Sequence[Mapping[str, Any]],
        max_calls: int | None = None,
        *,
        otherwise: StructuredOutputsParams | None = None,
        disable_additional_properties: bool = True,
    ) -> StructuredOutputsParams | None:
        """Return structured output parameters for an answer that may call ``tools`` after any text, or instead of it.

        They are for models whose template has no format of calls. Once an answer begins a call, the rest of the answer
        consists of calls that match the schemas, or that have any arguments if the schemas cannot be enforced. Returns
        None for other models, and if this engine cannot constrain answers. The other arguments are those of
        ``calls_of``.

        With ``otherwise``, which is a form of JSON, the answer is either calls or such JSON, without other text. Then,
        None is returned only for models that answer in channels, and if this engine cannot constrain the calls.
        """
        return self._factory.optional_calls(
            tools, max_calls, otherwise=otherwise, disable_additional_properties=disable_additional_properties
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **drafts: Unpack[DraftOptions],
    ) -> list[RequestOutput]:
        """Continue every prompt (text or token ids) and return the results in the order of the prompts.

        ``params`` is one policy for all prompts or a list with one each. ``num_speculative_tokens`` is K of every
        round: 0 is plain decoding, and ``"auto"`` adapts K to what pays off, which is the default unless the build was
        given a K. The text is the same for every K and for every ``draft``: ``"ngram"`` looks drafts up in the text,
        ``"none"`` is K = 0, ``"peagle"`` and ``"eagle3"`` use the engine's own head, the name of a loaded drafter uses
        this drafter, and None uses the engine's own method. Raises ``UsageError`` for a prompt that is empty, too long
        or out of range, an invalid K, or drafts that the engine has no room for.
        """
        return self._generate(prompts, params, self._factory.decoding(**drafts))

    def _generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None, how: Decoding
    ) -> list[RequestOutput]:
        listed = prompts_of(prompts)
        policies = params_of(params, len(listed))
        ended = threading.Semaphore(0)
        requests = [
            self._factory.request(
                self._factory.encoded(f"prompts[{i}]", prompt, each),
                each,
                how,
                Delivery(in_pieces=False, at_end=ended.release),
            )
            for i, (prompt, each) in enumerate(zip(listed, policies, strict=True))
        ]
        # Released with this call, however it ends, which cancels the requests.
        submissions = [Submission(each.prompt, each.delivery) for each in requests]
        ahead = 2 * self._loop.slots  # keeps the slots full without filling the queue for other callers
        try:
            self._loop.submit(requests[:ahead], waits=True)
            for request in requests[ahead:]:
                ended.acquire()
                self._loop.submit([request], waits=True)
            return [each.result() for each in submissions]
        except KeyboardInterrupt:  # its traceback would keep the submissions alive
            for each in submissions:
                each.cancel()
            raise KeyboardInterrupt from None

    def encoded(self, prompt: Prompt, params: SamplingParams | None = None) -> EncodedInput:
        """Encode a prompt once, for several calls of ``submit`` with the same ``truncate_prompt_tokens``.

        Raises the errors of ``generate`` about a prompt.
        """
        return self._factory.encoded("prompt", prompt, *params_of(params, 1))

    def encoded_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[TemplateOptions]
    ) -> EncodedInput:
        """Render and encode a conversation once: ``encoded`` for ``chat``, with its errors about a conversation."""
        return self._factory.encoded_chat(messages, *params_of(params, 1), **options)

    def submit(
        self,
        prompt: Prompt | EncodedInput,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        **drafts: Unpack[DraftOptions],
    ) -> Submission:
        """Submit a prompt and return immediately; its text arrives while the engine runs.

        Any thread may call this at any time. After ``timeout`` seconds, including time in the queue, the request ends
        with the text so far and ``finish_reason`` "timeout". Waiting requests start by ``priority``, lowest first, and
        then in the order of their arrival. Raises ``QueueFull`` if too many requests wait, ``EngineClosed``, and the
        errors of ``generate``.
        """
        return self._submitted(self._factory.prompt(prompt, params, **drafts), timeout, priority, waits=False)

    def submit_async(
        self,
        prompt: Prompt | EncodedInput,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        **drafts: Unpack[DraftOptions],
    ) -> AsyncSubmission:
        """Submit a prompt from asyncio; ``async for`` and ``await`` on the result raise the errors of ``submit``."""
        return AsyncSubmission(lambda: self.submit(prompt, params, timeout=timeout, priority=priority, **drafts))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **drafts: Unpack[DraftOptions]) -> Stream:
        """Continue one prompt and yield text as it arrives. Same arguments and errors as ``generate``."""
        return Stream(self._submitted(self._factory.prompt(prompt, params, **drafts), waits=True))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> RequestOutput:
        """Answer a conversation, rendered by the model's own chat template.

        ``messages`` have OpenAI's format: ``{"role": ..., "content": ...}``, with the content a string or a list of
        text parts. ``tools`` and ``documents`` are passed to templates that support them. ``chat_template_kwargs`` are
        template variables, such as ``enable_thinking``. ``add_generation_prompt=False`` omits the beginning of the
        answer, and ``continue_final_message`` continues the last message instead. ``chat_template`` is a Jinja template
        for this conversation. Special tokens in the content (``<|im_end|>``) are encoded as special tokens, as in
        ``transformers`` and vLLM; remove them from untrusted text. No special tokens are added to the rendered text,
        and the text of the result contains none, except those around reasoning and calls (``answer_style``).

        The answer ends at the engine's end-of-text tokens, and at the special token that follows an answer in the
        template. Raises ``UsageError`` for invalid messages, messages that the template rejects, a conversation that is
        too long, and an engine without a chat template. Raises ``EnvironmentProblem`` for a template that is invalid or
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
        """Answer a conversation and yield text as it arrives. Same arguments and errors as ``chat``."""
        return Stream(self._submitted(self._factory.conversation(messages, params, **options), waits=True))

    def submit_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> Submission:
        """Submit a conversation and return immediately: ``submit`` for ``chat``, with the errors of both."""
        return self._submitted(self._factory.conversation(messages, params, **options), timeout, priority, waits=False)

    def submit_chat_async(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> AsyncSubmission:
        """Submit a conversation from asyncio; ``async for`` and ``await`` raise the errors of ``submit_chat``."""
        return AsyncSubmission(
            lambda: self.submit_chat(messages, params, timeout=timeout, priority=priority, **options)
        )

    def chat_prompt(
        self, messages: Sequence[Message], *, can_think: bool = True, **options: Unpack[TemplateOptions]
    ) -> tuple[str, list[int]]:
        """Return the prompt that ``chat`` would give to the model: the rendered text and its token ids.

        Unless the answer ``can_think``, as with structured outputs, open reasoning is closed at once. Raises
        ``PromptTooLong`` if the number of characters alone shows that it cannot fit.
        """
        written = self._factory.written(messages, can_think=can_think, **options)
        return written.text, written.ids

    def target_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """Return the target's logits after every token of ``token_ids``, f32 [len, V], from one pass between others."""
        ids = self._factory.ids("token_ids", token_ids)
        return self._loop.run_exclusive(lambda: self._backend.target_logits(ids))

    def draft_logits(self, token_ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """Return the drafter's logits f32 [K, Vd] after ``token_ids`` and one token of greedy decoding."""
        ids, k = self._factory.ids("token_ids", token_ids), drafts_of(self.manifest, num_speculative_tokens)
        if self.manifest.drafter is None:
            raise UsageError(
                "this engine has no drafter", why="draft logits come from a drafter", fix="use an engine with a head"
            )
        if k == 0:
            raise UsageError(
                "num_speculative_tokens is 0", why="draft logits need at least one draft per round", fix="use 1 or more"
            )
        return self._loop.run_exclusive(lambda: self._backend.draft_logits(ids, k))

    def measure_rounds(
        self, prompts: Sequence[Prompt], rows: int = 1, *, counts: Sequence[int] | None = None, seconds: float = 10.0
    ) -> Mapping[int, MeasuredK]:
        """Return the tokens and the costs of rounds of ``rows`` texts, by K. Nothing else should run meanwhile.

        ``counts`` are the K to measure, by default 0, powers of two and the maximum. They take turns within each
        answer. The measurement ends when every prompt was answered and every K ran often. After ``seconds``, a few
        rounds of every K suffice; after three times as long, a single one. The result is empty if the answers are too
        short for that, and if the engine's method does not draft with a head: other drafts cost almost nothing, and do
        not exist for every column.

        Raises ``UsageError`` for more rows than run at once, and the errors of ``generate``.
        """
        rows = integer("rows", rows, 1, self._loop.slots)
        how = self._factory.decoding()
        if not how.method.needs_head:
            return {}
        max_drafts = self.manifest.speculation.max_num_speculative_tokens
        sweep = Sweep(sorted({0, *(spaced_counts(max_drafts) if counts is None else counts)}), rows)
        params = SamplingParams(max_tokens=_TIMED_TOKENS, ignore_eos=True)
        started = time.perf_counter()
        for call in range(max(_TIMED_CALLS, len(prompts))):
            spent, is_whole = time.perf_counter() - started, call * rows >= len(prompts)
            if is_whole and (sweep.cycles >= _CYCLES or (sweep.cycles >= _FEW and spent > seconds)):
                break
            if sweep.cycles and spent > _PATIENCE * seconds:
                break
            texts = [prompts[(call * rows + row) % len(prompts)] for row in range(rows)]
            self._generate(texts, params, replace(how, policy=sweep))
        return sweep.measured

    def _submitted(
        self, request: Request, timeout: float | None = None, priority: int = 0, *, waits: bool
    ) -> Submission:
        request.priority = integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        if timeout is not None:
            request.deadline = time.perf_counter() + number("timeout", timeout, 0, is_above=True)
        submission = Submission(request.prompt, request.delivery)
        self._loop.submit([request], waits=waits)
        return submission


def _usual_prefix_bytes(backend: Backend, manifest: Manifest, free: float) -> int:
    """Return the memory for the prefix cache of an engine that names none; ``free`` is what was free before it."""
    if not backend.keeps_exactly:
        return 0
    weights = sum(entry.size for entry in manifest.files.values())
    return int(min(max(free - weights, 0) * _PREFIX_SHARE, _MAX_PREFIX_BYTES))


def _limit(value: int, maximum: int) -> int:
    """Return the maximum number of tokens of a request. Raises ``UsageError`` for more than the engine has."""
    fix = f"use at most {maximum}, or rebuild the engine with a larger --max-seq-len"
    return integer("max_seq_len", value, 2, maximum, fix=fix)
