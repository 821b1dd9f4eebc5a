"""What the speculative round needs from a backend. The round does not know which one it drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..requests.params import SamplingParams


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt: its ``ids``, the absolute position ``start`` of the first, and the prompt's token after it.

    ``forced_next`` is -1 in the last chunk: what follows the prompt is the target's to say.
    """

    ids: Sequence[int]
    start: int
    forced_next: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it."""
        return self.forced_next < 0


class Emission(Protocol):
    """What a launched pass emits, perhaps not yet: B rows, E = K + 1 columns."""

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """``tokens`` i32 [B,E], -1 past the end, and ``num_tokens`` i32 [B], 0 in an idle row; waits for them."""
        ...


@dataclass(frozen=True)
class Emitted:
    """An emission that is there already."""

    tokens: np.ndarray
    num_tokens: np.ndarray

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """See ``Emission.read``."""
        return self.tokens, self.num_tokens


class Backend(Protocol):
    """Runs the target and the drafter over slots, each with its own linear caches, updated in place.

    A slot's next window, policy and random numbers stay here: on a GPU no round waits for the host to look at them.
    ``lag`` says how many emissions may be left unread while the next pass is launched; with 0 nothing is gained by it.
    ``prefill_columns`` is the most of a prompt that one pass takes.
    """

    num_slots: int
    lag: int
    prefill_columns: int

    def begin(self, num_speculative_tokens: int) -> None:
        """Make every slot idle; from here on a round verifies so many drafts (0: plain decoding, no drafter)."""
        ...

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray) -> None:
        """Choose the tokens of ``slot`` by ``params`` and by ``numbers`` f32 [max_seq_len + 1].

        Entry p decides the token at absolute position p.
        """
        ...

    def prefill(self, slot: int, chunk: Chunk) -> None:
        """Feed both models a piece of a prompt. The last piece leaves the slot busy, its first window laid out."""
        ...

    def first(self, slot: int) -> Emission:
        """What the last piece of this slot's prompt emitted, one row: the token after the prompt. Ask at once."""
        ...

    def step(self) -> Emission:
        """One round for every busy slot: verify, accept, draft, lay out the next window."""
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
