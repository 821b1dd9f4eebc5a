"""The record of a draft method, with everything that the builder, the runtime and the servers need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from .lanes import Lanes


class Strategy(Protocol):
    """The order of a round's steps, over the lanes of any backend. Strategies are stateless; the lanes hold the state.

    If ``enqueues_only``, a round never waits, so a backend may record it once per K and replay it. A strategy
    that waits has read every token of the last round when the next one begins.
    """

    @property
    def enqueues_only(self) -> bool:
        """Return True if no step of a round waits."""
        ...

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a prompt chunk, which is the window of ``lanes``."""
        ...

    def round(self, lanes: Lanes, k: int) -> None:
        """Run one round with ``k`` drafts: verify the existing ones, and leave the windows ready for the next round."""
        ...


class Proposer(Protocol):
    """A drafter on the host, for one request: tokens in, drafts out. ``ngram.py`` has a worked example."""

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """Return up to ``k`` drafts (``k`` is at least 1) that follow ``tokens``, the prompt and the text so far.

        The tokens of a call begin with those of the previous call. Do not modify them. If no drafts are returned, the
        round is one of plain decoding.
        """
        ...


class Passes(Enum):
    """The number of drafter passes in a round with K drafts."""

    NONE = "none"
    ONE = "one"
    ONE_PER_DRAFT = "one per draft"


@dataclass(frozen=True)
class DraftMethod:
    """A way to draft. Exactly one of ``strategy`` and ``proposer`` is given.

    Args:
        name: The name in ``--draft``, in ``draft`` of a call, in the manifest and in the metrics.
        title: The proper name, for sentences: ``EAGLE-3``.
        help: A noun phrase for ``--help``: ``n-gram lookup in the text``.
        note: A few words for tables on how it drafts; empty if the title says enough.
        strategy: The rounds of a method that drafts on the device, or does not draft.
        proposer: Creates the host drafter of one request; all such methods share their rounds.
        passes: Drafter passes per round; a method with drafter passes needs a head.
        trees: True if drafts form a tree where the kernels support trees.
        depth: The maximum number of drafts that a build tries without a head, 0 for none; a head has its trained depth.
        variant_of: The method whose heads it uses, if it has none of its own.
        vllm_names: ``method`` in vLLM's ``--speculative-config``.
    """

    name: str
    title: str
    help: str
    note: str = ""
    strategy: Strategy | None = None
    proposer: Callable[[], Proposer] | None = None
    passes: Passes = Passes.NONE
    trees: bool = False
    depth: int = 0
    variant_of: str = ""
    vllm_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.strategy is None) == (self.proposer is None):
            raise ValueError(f"draft method {self.name}: give either a strategy or a proposer")

    @property
    def needs_head(self) -> bool:
        """Return True if the method drafts with a trained head."""
        return self.passes is not Passes.NONE

    @property
    def drafts(self) -> bool:
        """Return True if the method drafts at all."""
        return self.needs_head or self.depth > 0

    @property
    def is_on_host(self) -> bool:
        """Return True if the method drafts on the host, between two rounds."""
        return self.proposer is not None

    @property
    def heads(self) -> str:
        """The name of the method whose heads it uses: its own, unless it is a variant."""
        return self.variant_of or self.name
