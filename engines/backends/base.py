"""Interface between the runtime and a backend: lanes that rounds are written over, and slots for requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ..draft_methods.lanes import Emission, Lanes
from ..folder.manifest import Manifest
from ..requests.params import SamplingParams
from ..running.logprobs import PromptLogprobs
from ..running.request import Drafter
from ..running.token_choice import TokenChoice
from .profiling import EngineProfile

Steps = Callable[[Lanes, int], None]  # one round over lanes, with this K
T = TypeVar("T")


class RunBetween(Protocol):
    """Runs a call in the engine's thread between two passes, and returns its result or raises its error."""

    def __call__(self, call: Callable[[], T]) -> T:
        """Wait until it has run."""
        ...


@dataclass(frozen=True)
class Chunk:
    """A chunk of a prompt: its ``ids``, the absolute position ``start`` of the first, and the prompt's next token.

    ``forced_next`` is -1 in the last chunk, whose next token the target decides. For other chunks, ``logprobs``
    receives the target's logits after each token.
    """

    ids: Sequence[int]
    start: int
    forced_next: int
    logprobs: PromptLogprobs | None = None

    @property
    def is_last(self) -> bool:
        """Return True if this is the last chunk of its prompt."""
        return self.forced_next < 0


class KeptEntries(Protocol):
    """A saved copy of a slot's cache entries from one position up to another."""

    @property
    def num_bytes(self) -> int:
        """The size of the copy in bytes."""
        ...

    @property
    def is_read(self) -> bool:
        """Return True if the drafter had read these positions; otherwise the copy holds the input that it will read."""
        ...


class Backend(Protocol):
    """Runs the target and the drafter over slots, each with its own linear caches, updated in place.

    A slot's window, sampling policy and random numbers stay in the backend, so that on a GPU, a round waits for the
    host only if the host drafts or chooses tokens. ``lag`` is the number of emissions that may be unread when the next
    pass is launched; 0 means that leaving them unread gains nothing. ``prefill_columns`` is the maximum number of
    prompt tokens per pass, and ``scored_columns`` that of a pass whose logits are read. ``kept_bytes`` is the memory
    that ``keep`` takes per token, and ``keeps_exactly`` says that restored entries equal computed ones to the bit,
    whatever the passes that made them. ``prepares_rounds`` says that ``warm`` takes time and memory for each K, so that
    a policy should use only a few.
    """

    num_slots: int
    lag: int
    prefill_columns: int
    scored_columns: int
    kept_bytes: int
    keeps_exactly: bool
    prepares_rounds: bool

    def begin(self) -> None:
        """Make every slot idle."""
        ...

    def warm(self, steps: Steps, k: int, drafter: Drafter | None = None) -> None:
        """Prepare rounds of these steps while every slot is idle, so that the first one is as fast as the others.

        ``drafter`` is that of the rounds; None: the backend's own.
        """
        ...

    def load_drafter(self, manifest: Manifest, between: RunBetween) -> Drafter:
        """Load the drafter of ``manifest``, which describes this backend's engine with that drafter.

        Any thread may call this, while others run requests; ``between`` runs calls that must not run during a pass.
        Raises ``EnvironmentProblem``.
        """
        ...

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        numbers: np.ndarray,
        choice: TokenChoice | None = None,
        drafter: Drafter | None = None,
        *,
        drafts: bool = True,
    ) -> None:
        """Choose the tokens of ``slot`` by ``params`` and ``numbers``, f32 [max_seq_len + 1].

        Entry p decides the token at absolute position p. If ``choice`` is given, it chooses the tokens on the host, in
        rounds without ``replay``. Its drafter is the backend's own unless one of ``load_drafter`` is given; without
        ``drafts``, it uses no drafter, and may take part in rounds of any drafter.
        """
        ...

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        """Run steps over a chunk of a prompt. The last chunk makes the slot active, with its first window laid out.

        Rounds of other slots and chunks of other prompts may run between two chunks.
        """
        ...

    def keep(self, slot: int, start: int, end: int) -> KeptEntries:
        """Copy the slot's cache entries from position ``start`` up to ``end``; its target has read these tokens."""
        ...

    def restore(self, slot: int, entries: Sequence[KeptEntries]) -> None:
        """Copy saved entries into a slot whose prompt has not been read, consecutive from position 0 over all calls.

        Its prompt continues after them.
        """
        ...

    def first(self, slot: int) -> Emission:
        """Return the emission of the prompt's last chunk: one row, the token after the prompt.

        Call it directly afterwards.
        """
        ...

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> Emission:
        """Run steps over every active slot. With ``replay`` they only enqueue work, and may be recorded and replayed.

        ``limits`` are the maximum numbers of drafts per slot, if some verify fewer than ``k``.
        """
        ...

    def retire(self, slot: int) -> None:
        """Make a slot idle. Rounds launched before still emit tokens for it."""
        ...

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return f32 [len,V] after each of ``ids``. Uses slot 0 and ends all running requests; for checks."""
        ...

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """Return f32 [K,Vd] of the drafts after ``ids`` and one greedy token; otherwise like ``target_logits``."""
        ...

    def end_profile(self) -> EngineProfile:
        """Return the times of all phases and passes since loading, if the backend was loaded with a profiler.

        Ends the collection. Nothing may run.
        """
        ...
