"""What the runtime needs from a backend: lanes to write a round over, and slots to run requests in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..draft_methods.lanes import Emission, Lanes
from ..requests.params import SamplingParams
from ..running.logprobs import PromptLogprobs
from ..running.token_choice import TokenChoice

Steps = Callable[[Lanes, int], None]  # a round over lanes, with this K


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt: its ``ids``, the absolute position ``start`` of the first, and the prompt's token after it.

    ``forced_next`` is -1 in the last chunk: what follows the prompt is the target's to say. ``logprobs`` of any other
    get the target's logits after each of its tokens, from a backend that shows them.
    """

    ids: Sequence[int]
    start: int
    forced_next: int
    logprobs: PromptLogprobs | None = None

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it."""
        return self.forced_next < 0


class KeptPrompt(Protocol):
    """What the caches of a slot held when its prompt had been read, out of the way of whatever runs."""

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        ...


class Backend(Protocol):
    """Runs the target and the drafter over slots, each with its own linear caches, updated in place.

    A slot's window, policy and random numbers stay here: on a GPU no round waits for the host to look at them. ``lag``
    says how many emissions may be left unread while the next pass is launched; with 0 nothing is gained by it.
    ``prefill_columns`` is the most of a prompt that one pass takes, ``kept_bytes`` the memory that ``keep`` takes for
    each of its tokens; 0 where it cannot.
    """

    num_slots: int
    lag: int
    prefill_columns: int
    kept_bytes: int

    @property
    def shows_logits(self) -> bool:
        """Whether the target's logits come to the host, so that ``admit`` takes a choice."""
        ...

    def begin(self) -> None:
        """Make every slot idle."""
        ...

    def warm(self, steps: Steps, k: int) -> None:
        """Get ready for rounds of these steps while every slot is idle, so that the first costs what all cost."""
        ...

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray, choice: TokenChoice | None = None) -> None:
        """Choose the tokens of ``slot`` by ``params`` and by ``numbers`` f32 [max_seq_len + 1].

        Entry p decides the token at absolute position p. With a ``choice`` it is that which chooses, on the host.
        """
        ...

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        """Run steps over a piece of a prompt. The last piece leaves the slot busy, its first window laid out.

        Rounds of other slots may come between two pieces; of one slot's only, not between those of another's.
        """
        ...

    def keep(self, slot: int, length: int) -> KeptPrompt:
        """Copy what the slot's caches hold of its first ``length`` tokens, all of its prompt, which has been read."""
        ...

    def restore(self, slot: int, kept: KeptPrompt, length: int) -> None:
        """Give a slot that was just admitted the first ``length`` tokens of what was kept; its prompt goes on there."""
        ...

    def first(self, slot: int) -> Emission:
        """What the last piece of this slot's prompt emitted, one row: the token after the prompt. Ask at once."""
        ...

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> Emission:
        """Run steps over every busy slot. With ``replay`` they only enqueue, and may be recorded and replayed.

        ``limits`` are the most drafts that each slot verifies, where some verify fewer than ``k``.
        """
        ...

    def retire(self, slot: int) -> None:
        """Make a slot idle; rounds that were launched before still emit for it."""
        ...

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        """f32 [len,V] after every one of ``ids``; uses slot 0 and ends whatever ran. For checks."""
        ...

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """f32 [K,Vd] of the drafts after ``ids`` and one greedy token; otherwise as ``target_logits``."""
        ...
