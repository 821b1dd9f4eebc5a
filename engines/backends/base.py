"""What the runtime needs from a backend: lanes to write a round over, and slots to run requests in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..requests.params import SamplingParams
from ..running.logprobs import PromptLogprobs
from ..running.token_choice import TokenChoice


class Lanes(Protocol):
    """The windows of all busy slots, or the one window of a piece of a prompt; a round is written over them.

    ``verify``, ``draft``, ``branch``, ``extend``, ``hold`` and ``advance`` enqueue work for every row and wait for none
    of it, so they can be part of a CUDA graph. Between rounds the windows stay here, and K may change: drafts past the
    next K are cut off, and where there are fewer, those are verified that there are.
    """

    def verify(self, k: int) -> None:
        """One target pass over the newest token and up to ``k`` drafts; emits y_0 .. y_a, as far as they agree."""
        ...

    def draft(self, k: int) -> None:
        """One drafter pass over what was just committed, for drafts after y_a: the ``k`` of ``verify``, 1 at least.

        A drafter that makes a pass for every draft, which its engine says, gives the first of them.
        """
        ...

    def branch(self, k: int) -> None:
        """``draft``, for a tree of ``k`` nodes where graphs and requests know trees; for the chain where not."""
        ...

    def extend(self) -> None:
        """One more pass of such a drafter, over its last draft alone and its own hidden state there: the next draft."""
        ...

    def hold(self) -> None:
        """Draft nothing: keep what ``verify(0)`` committed for the drafter's next pass, which may be made at once."""
        ...

    def advance(self, k: int) -> None:
        """Lay out the next window: y_a and the ``k`` drafts of ``draft``; with 0 y_a alone, whatever was drafted."""
        ...

    def emission(self) -> Emission:
        """What ``verify`` emitted. Who reads it before the round has ended waits, and no CUDA graph can hold that."""
        ...

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Put drafts of the host's own, some for every slot or none, behind the newest tokens, before ``verify``.

        None leaves the slot's window as it is.
        """
        ...


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


class Emission(Protocol):
    """What a launched pass emits, perhaps not yet: B rows, K + 1 columns. ``drafted`` drafts were verified in each."""

    @property
    def drafted(self) -> Sequence[int]:
        """How many drafts each row had verified; known when the pass is launched."""
        ...

    @property
    def nodes(self) -> Mapping[int, Sequence[int]]:
        """The numbers, from 0, of the accepted drafts of each row whose drafts were a tree; known when it is read."""
        ...

    @property
    def pass_seconds(self) -> tuple[float, float] | None:
        """How long the target took and the drafter, None where no call waits for a pass."""
        ...

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """``tokens`` i32 [B,K+1], -1 past the end, and ``num_tokens`` i32 [B], 0 in an idle row; waits for them."""
        ...


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
