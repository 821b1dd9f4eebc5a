"""The record of a draft method: everything that the builder, the runtime and its servers know about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from .lanes import Lanes


class Strategy(Protocol):
    """The order of a round's steps, over the lanes of any backend. Strategies have no state; the lanes do.

    ``enqueues_only`` says that a round never waits, so a backend may record it once for every K and replay it. With a
    strategy that waits, every token of the last round has been read when the next round begins.
    """

    @property
    def enqueues_only(self) -> bool:
        """Whether no step of a round waits."""
        ...

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a piece of a prompt, which is the window of ``lanes``."""
        ...

    def round(self, lanes: Lanes, k: int) -> None:
        """Run one round with ``k`` drafts: verify those there are, leave the windows for the next round."""
        ...


class Proposer(Protocol):
    """A drafter on the host, for one request: tokens in, drafts out. ``ngram.py`` has a worked example."""

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """Return up to ``k`` drafts (1 at least) for the positions after ``tokens``, prompt and text so far.

        The tokens of a call begin with those of the call before. They are not to be changed. No drafts is an answer
        too: the round is one of plain decoding then.
        """
        ...


class Passes(Enum):
    """Passes of a drafter that a round with K drafts takes."""

    NONE = "none"
    ONE = "one"
    ONE_PER_DRAFT = "one per draft"


@dataclass(frozen=True)
class DraftMethod:
    """A way to draft. Exactly one of ``strategy`` and ``proposer`` is given.

    Args:
        name: What ``--draft``, ``draft`` of a call, the manifest and the metrics call it.
        title: The proper name, for sentences: ``EAGLE-3``.
        help: A noun phrase for ``--help``: ``drafts looked up in the text``.
        note: How it drafts, in a few words for tables; empty where the title says enough.
        strategy: The rounds of a method that drafts on the device, or does not draft.
        proposer: Makes what drafts for one request on the host; its rounds are the same for all such methods.
        passes: Passes of a drafter in a round; a method with any needs a head.
        trees: Whether drafts form a tree where the kernels know trees.
        depth: The most drafts that a build tries without a head, 0 for none; a head has its trained depth.
        variant_of: The method whose heads it drafts with, where it has none of its own.
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
        """Whether it drafts by passes of a trained head."""
        return self.passes is not Passes.NONE

    @property
    def drafts(self) -> bool:
        """Whether it drafts at all."""
        return self.needs_head or self.depth > 0

    @property
    def is_on_host(self) -> bool:
        """Whether it drafts on the host, between two rounds."""
        return self.proposer is not None

    @property
    def heads(self) -> str:
        """The name of the method whose heads it takes: its own, unless it is a variant."""
        return self.variant_of or self.name
