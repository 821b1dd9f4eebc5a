"""The engine: load an engine folder, and generate with it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..plugins.errors import EnvironmentProblem, UsageError
from ..plugins.tensorrt.import_tensorrt import Product
from .backends.base import Backend
from .backends.onnxruntime.backend import OnnxRuntimeBackend
from .folder.checks import check_files, check_runtime
from .folder.manifest import Manifest
from .policy.drafts_per_round import Fixed, Policy
from .requests.params import SamplingParams
from .requests.random_numbers import draw_seed
from .requests.request import Request
from .requests.results import Delta, RequestOutput
from .scheduling.scheduler import Scheduler
from .strategies.base import STRATEGIES
from .text.tokenizer import Tokenizer, check_prompt
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


class Stream:
    """Iterates over the ``Delta``s of one request; ``result`` is its ``RequestOutput`` once it has finished.

    The deltas together hold every token id and all of the text.
    """

    def __init__(self, requests: Iterator[Request]) -> None:
        self._running = requests
        self._result: RequestOutput | None = None

    def __iter__(self) -> Iterator[Delta]:
        for request in self._running:
            delta = request.transcript.take()
            if delta.finish_reason:
                self._result = request.output(time.perf_counter())
            yield delta

    @property
    def result(self) -> RequestOutput:
        """The output of the whole request. Raises ``UsageError`` while it is still streaming."""
        if self._result is None:
            raise UsageError("the stream has not finished", fix="iterate over it to its end first")
        return self._result


class Engine:
    """A loaded engine. Not thread-safe: one generation at a time.

    ``strategy`` names how rounds are made where drafts are wanted; ``policy`` chooses K for each round of a call that
    does not say it, by default that of the build.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        strategy: str = "parallel",
        policy: Policy | None = None,
    ) -> None:
        self.folder, self.manifest, self.tokenizer = folder, manifest, tokenizer
        self._backend, self._strategy = backend, strategy
        self._policy = policy or Fixed(manifest.speculation.num_speculative_tokens)
        self._scheduler: Scheduler | None = None

    @classmethod
    def load(
        cls, path: str | Path, *, max_batch_size: int = 1, threads: int | None = None, check_hashes: bool = True
    ) -> Engine:
        """Check the folder against its manifest, then load it with room for ``max_batch_size`` rows.

        Raises ``EnvironmentProblem`` for a folder that is missing, damaged, too new, or for another backend.
        """
        if max_batch_size < 1:
            raise UsageError(f"max_batch_size must be 1 or more, not {max_batch_size}", fix="give a positive number")
        folder = Path(path)
        manifest = Manifest.read(folder)
        check_files(manifest.files, folder, hashes=check_hashes)
        backend = _backend(folder, manifest, max_batch_size, threads)
        engine = cls(folder, manifest, backend, Tokenizer(folder, manifest.eos_token_ids))
        backend.warm(STRATEGIES[engine._strategy].round, engine.num_speculative_tokens)
        return engine

    @property
    def num_speculative_tokens(self) -> int:
        """The K that the build chose; the default of every call."""
        return self.manifest.speculation.num_speculative_tokens

    @property
    def max_seq_len(self) -> int:
        """The most tokens of a request, prompt and new ones together."""
        return self.manifest.shapes.max_seq_len

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        num_speculative_tokens: int | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt (text or token ids); results in the order of the prompts.

        ``params`` is one policy for all or one each. ``num_speculative_tokens`` overrides K; 0 is plain decoding, which
        gives the same text. Raises ``UsageError`` for an empty, too long or out-of-range prompt or an illegal K.
        """
        if isinstance(prompts, str):
            raise UsageError("prompts must be a list", fix=f"pass [{prompts[:20]!r}]")
        policies = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(prompts)
        if len(policies) != len(prompts):
            raise UsageError(f"{len(policies)} params for {len(prompts)} prompts", fix="give one for all, or one each")
        requests = [self._request(i, p, s) for i, (p, s) in enumerate(zip(prompts, policies, strict=True))]
        outputs: dict[int, RequestOutput] = {}
        for request in self._run(requests, self._policy_of(num_speculative_tokens)):
            if request.is_done:
                outputs[request.index] = request.output(time.perf_counter())
        return [outputs[i] for i in range(len(prompts))]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, num_speculative_tokens: int | None = None
    ) -> Stream:
        """Continue one prompt, giving text as it comes. Same arguments and errors as ``generate``."""
        request = self._request(0, prompt, params or SamplingParams())
        return Stream(self._run([request], self._policy_of(num_speculative_tokens)))

    def target_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The target's logits after every token of ``token_ids``, f32 [len, V], from one pass."""
        ids = check_prompt(token_ids, self.manifest.shapes.vocab_size, self.max_seq_len)
        self._scheduler = None
        return self._backend.target_logits(ids)

    def draft_logits(self, token_ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """The drafter's logits for the K tokens after the one that greedy adds to ``token_ids``, f32 [K, Vd]."""
        ids = check_prompt(token_ids, self.manifest.shapes.vocab_size, self.max_seq_len)
        if self._check_k(num_speculative_tokens) == 0:
            raise UsageError("num_speculative_tokens is 0", why="then nothing is drafted", fix="ask for 1 or more")
        self._scheduler = None
        return self._backend.draft_logits(ids, num_speculative_tokens)

    def _run(self, requests: list[Request], policy: Policy) -> Iterator[Request]:
        """Begins when the first token is asked for, and ends what still ran: the slots are the backend's."""
        strategy = STRATEGIES[self._strategy if policy.most else "plain"]
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

    def _policy_of(self, k: int | None) -> Policy:
        return self._policy if k is None else Fixed(self._check_k(k))

    def _check_k(self, k: int) -> int:
        most = self.manifest.speculation.max_num_speculative_tokens
        if not 0 <= k <= most:
            raise UsageError(
                f"num_speculative_tokens must be from 0 (plain decoding) to {most}, not {k}",
                why="the caches have room for no more drafts per round",
                fix="choose a smaller K, or rebuild with a larger --num-speculative-tokens",
            )
        return k

    def _request(self, index: int, prompt: Prompt, params: SamplingParams) -> Request:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        checked = check_prompt(ids, self.manifest.shapes.vocab_size, self.max_seq_len)
        room = min(params.max_tokens, self.max_seq_len - len(checked))
        seed = draw_seed() if params.seed is None else params.seed
        return Request(index, checked, params, seed, Transcript(params, self.tokenizer, room), room)
