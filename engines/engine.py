"""The engine: load an engine folder, and generate with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..plugins.errors import EnvironmentProblem, UsageError
from ..plugins.tensorrt.import_tensorrt import Product
from .backends.base import Backend
from .backends.onnxruntime.backend import OnnxRuntimeBackend
from .folder.checks import check_files, check_runtime
from .folder.manifest import Manifest
from .machine import most_threads
from .policy.drafts_per_round import Fixed, Policy
from .requests.arguments import flag, integer, prompts_of, refusal, text_of, token_ids_of
from .requests.messages import Message
from .requests.params import SamplingParams, params_of
from .requests.random_numbers import draw_seed
from .requests.request import Request
from .requests.results import RequestOutput
from .scheduling.scheduler import Scheduler
from .strategies.asked import decoding, drafts_of, own_strategy
from .strategies.base import STRATEGIES, Strategy
from .stream import Stream
from .text.chat import Chat
from .text.tokenizer import Tokenizer
from .text.transcript import Transcript

Prompt = str | Sequence[int]


def _backend(folder: Path, manifest: Manifest, slots: int, threads: int | None) -> Backend:
    if manifest.backend.name == "onnxruntime":
        import onnxruntime

        check_runtime(manifest.backend, {"onnxruntime": onnxruntime.__version__})
        return OnnxRuntimeBackend(folder, manifest, num_slots=slots, threads=threads)
    products: tuple[Product, ...] = ("tensorrt", "tensorrt-rtx")
    for product in products:
        if manifest.backend.name == product:
            from .backends.tensorrt import backend as tensorrt

            return tensorrt.load(folder, manifest, product, slots)
    raise EnvironmentProblem(
        f"{folder} was built for the backend {manifest.backend.name!r}",
        why="this version runs onnxruntime, tensorrt and tensorrt-rtx engines",
        fix="rebuild with a --backend that is one of them",
    )


class Engine:
    """A loaded engine, which runs one generation at a time: calls from several threads take turns.

    A stream has its turn while its next piece is made. What begins in between ends it, in whichever thread, and it says
    so when it is read on.

    ``strategy`` names how rounds are made where drafts are wanted, ``policy`` chooses K for each round, where a call
    does not say it; both are those of the build by default.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        strategy: str | None = None,
        policy: Policy | None = None,
    ) -> None:
        strategy = own_strategy(manifest) if strategy is None else strategy
        if strategy not in STRATEGIES:
            raise refusal("strategy", f"one of {', '.join(sorted(STRATEGIES))}", strategy)
        self.folder, self.manifest, self.tokenizer = folder, manifest, tokenizer
        self._backend, self._strategy = backend, strategy
        self._policy = policy or Fixed(manifest.speculation.num_speculative_tokens)
        self._chat = Chat(folder, tokenizer)
        self._scheduler: Scheduler | None = None
        self._turn = threading.RLock()

    @classmethod
    def load(
        cls, path: str | Path, *, max_batch_size: int = 1, threads: int | None = None, check_hashes: bool = True
    ) -> Engine:
        """Check the folder against its manifest, then load it with room for ``max_batch_size`` rows.

        ``threads`` is for the CPU; None chooses. Raises ``UsageError`` for what no machine or no plan can do, and
        ``EnvironmentProblem`` for a folder that is missing, damaged, too new, for another backend, or too large here.
        """
        slots = integer("max_batch_size", max_batch_size, 1)
        if threads is not None:
            threads = integer("threads", threads, 1, most_threads(), fix="leave it out, and the engine chooses")
        hashes = flag("check_hashes", check_hashes)
        try:
            folder = Path(path)
        except TypeError:
            raise refusal("path", "a str or a Path", path) from None
        manifest = Manifest.read(folder)
        check_files(manifest.files, folder, hashes=hashes)
        backend = _backend(folder, manifest, slots, threads)
        engine = cls(folder, manifest, backend, Tokenizer(folder, manifest.eos_token_ids))
        own, policy = engine._decoding()
        if own.enqueues_only:
            backend.warm(own.round, policy.most)
        return engine

    @property
    def num_speculative_tokens(self) -> int:
        """The K that the build chose, the default of every call; 0 where it was built for plain decoding."""
        return self.manifest.speculation.num_speculative_tokens

    @property
    def max_seq_len(self) -> int:
        """The most tokens of a request, prompt and new ones together."""
        return self.manifest.shapes.max_seq_len

    @property
    def can_chat(self) -> bool:
        """Whether it has a chat template. Raises ``EnvironmentProblem`` for one that is damaged."""
        return self._chat.has_template

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        num_speculative_tokens: int | None = None,
        draft: str | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt (text or token ids); results in the order of the prompts.

        ``params`` is one policy for all or one each. ``num_speculative_tokens`` overrides K; 0 is plain decoding, which
        gives the same text. So does any ``draft``: ``"ngram"`` looks drafts up in the text, ``"none"`` is K = 0, None
        is what the engine was built with. Raises ``UsageError`` for an empty, too long or out-of-range prompt, an
        illegal K, or drafts that the engine has no room for.
        """
        listed = prompts_of(prompts)
        policies = params_of(params, len(listed))
        requests = [
            self._request(i, f"prompts[{i}]", prompt, each)
            for i, (prompt, each) in enumerate(zip(listed, policies, strict=True))
        ]
        strategy, policy = self._decoding(draft, num_speculative_tokens)
        outputs: dict[int, RequestOutput] = {}
        with self._turn:
            for request in self._run(requests, strategy, policy):
                if request.is_done:
                    outputs[request.index] = request.output(time.perf_counter())
        return [outputs[i] for i in range(len(requests))]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        num_speculative_tokens: int | None = None,
        draft: str | None = None,
    ) -> Stream:
        """Continue one prompt, giving text as it comes. Same arguments and errors as ``generate``."""
        (each,) = params_of(params, 1)
        return self._stream(self._request(0, "prompt", prompt, each), num_speculative_tokens, draft)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        num_speculative_tokens: int | None = None,
        draft: str | None = None,
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
        stream = self.stream_chat(
            messages,
            params,
            tools=tools,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
            num_speculative_tokens=num_speculative_tokens,
            draft=draft,
        )
        for _ in stream:
            pass
        return stream.result

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        num_speculative_tokens: int | None = None,
        draft: str | None = None,
    ) -> Stream:
        """Answer a conversation, giving text as it comes. Same arguments and errors as ``chat``."""
        (each,) = params_of(params, 1)
        _, ids = self._chat.prompt(messages, tools, documents, chat_template_kwargs)
        request = self._request(0, "the conversation", ids, each, self._chat.ends)
        return self._stream(request, num_speculative_tokens, draft)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[int]]:
        """Return what ``chat`` would give to the model: the text that the template writes, and its token ids."""
        return self._chat.prompt(messages, tools, documents, chat_template_kwargs)

    def target_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The target's logits after every token of ``token_ids``, f32 [len, V], from one pass."""
        ids = self._ids("token_ids", token_ids)
        with self._turn:
            self._scheduler = None
            return self._backend.target_logits(ids)

    def draft_logits(self, token_ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """The drafter's logits for the K tokens after the one that greedy adds to ``token_ids``, f32 [K, Vd]."""
        ids, k = self._ids("token_ids", token_ids), drafts_of(self.manifest, num_speculative_tokens)
        if self.manifest.drafter is None:
            raise UsageError("this engine has no drafter", why="only a drafter has logits", fix="ask one that has")
        if k == 0:
            raise UsageError("num_speculative_tokens is 0", why="then nothing is drafted", fix="ask for 1 or more")
        with self._turn:
            self._scheduler = None
            return self._backend.draft_logits(ids, k)

    def _run(self, requests: list[Request], strategy: Strategy, policy: Policy) -> Iterator[Request]:
        """Begins when the first token is asked for, and ends what still ran: the slots are the backend's."""
        scheduler = self._scheduler = Scheduler(self._backend, strategy, policy, self.max_seq_len)
        for request in requests:
            scheduler.submit(request)
        while not scheduler.is_idle:
            if self._scheduler is not scheduler:
                raise UsageError(
                    "another generation began before this one had ended",
                    why="an engine runs one at a time",
                    fix="read a stream to its end first, or load the engine twice",
                )
            yield from scheduler.step()

    def _decoding(self, draft: str | None = None, k: int | None = None) -> tuple[Strategy, Policy]:
        """The strategy and the policy of a call that says this."""
        return decoding(self.manifest, self._strategy, self._policy, draft, k)

    def _ids(self, name: str, ids: Sequence[int]) -> tuple[int, ...]:
        return token_ids_of(name, ids, self.manifest.shapes.vocab_size, self.max_seq_len)

    def _stream(self, request: Request, k: int | None, draft: str | None) -> Stream:
        return Stream(request, self._run([request], *self._decoding(draft, k)), self._turn)

    def _request(
        self, index: int, name: str, prompt: Prompt, params: SamplingParams, ends: frozenset[int] = frozenset()
    ) -> Request:
        """The request of one prompt, which the caller knows by ``name``; ``ends`` are further ids that end its text."""
        ids = self._ids(name, self.tokenizer.encode(text_of(name, prompt)) if isinstance(prompt, str) else prompt)
        room = min(params.max_tokens, self.max_seq_len - len(ids))
        seed = draw_seed() if params.seed is None else params.seed
        return Request(index, ids, params, seed, Transcript(params, self.tokenizer, room, ends), room)
