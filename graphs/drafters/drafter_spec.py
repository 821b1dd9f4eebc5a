"""The spec of a drafter: everything that its graph and its reference implementation depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...plugins.problems import Problems
from ..targets.family import CacheSpec
from .tensor_layout import Parts, Shape, unread

Strategy = Literal["parallel", "autoregressive"]


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter of the EAGLE-3 family: P-EAGLE (``parallel``, one pass) or EAGLE-3 itself (``autoregressive``).

    ``keys`` maps the drafter module's parameter names to the names in the checkpoint; ``shared`` lists those taken from
    the target instead. ``windows`` holds the attention window of each layer (0: unlimited), ``rope`` the
    ``rope_parameters`` of ``transformers``; ``trained_depth`` is the K it was trained for, if the config states it.
    ``mask_token_id`` is -1 for an autoregressive one. ``norm_output`` has no effect on a single pass: only a further
    pass reads its output.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    cache: CacheSpec
    vocab_size: int
    draft_vocab_size: int
    mask_token_id: int
    rms_norm_eps: float
    norm_before_residual: bool
    norm_output: bool
    taps: tuple[int, ...]
    windows: tuple[int, ...]
    trained_depth: int | None
    rope: Mapping[str, Any]
    parts: Parts
    strategy: Strategy
    shared: tuple[str, ...]
    keys: Mapping[str, str]

    @property
    def num_layers(self) -> int:
        """The number of layers, including the one that fuses embedding and features."""
        return self.parts.num_layers

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """One cache per drafter layer."""
        return (self.cache,) * self.num_layers

    @property
    def has_draft_vocabulary(self) -> bool:
        """True if draft ids need ``d2t`` to become target ids."""
        return self.parts.draft_vocabulary

    @property
    def unread(self) -> tuple[str, ...]:
        """The tensors of its checkpoint that it does not use, by their names there."""
        return tuple(self.keys[name] for name in unread(self.parts, self.keys))

    def expected_shapes(self) -> dict[str, Shape]:
        """Return the shape of every required tensor, by module name."""
        sizes = {
            "one": 1,
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "features": len(self.taps) * self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "queries": self.num_heads * self.cache.head_dim,
            "keys": self.cache.heads * self.cache.head_dim,
            "head_dim": self.cache.head_dim,
        }
        return {name: tuple(sizes[s] * times for s, times in dims) for name, dims in self.parts.dims().items()}


def drafter_problems() -> Problems:
    """Return an empty list of problems; once the kind of head is known, ``trained_head`` gives a more specific fix."""
    return Problems(
        "the drafter head",
        "does not match the target",
        why="a head works only with the target, the taps and the vocabulary that it was trained for",
        fix="use the head that was trained for this target",
    )


def trained_head(strategy: Strategy) -> str:
    """Return the fix for a head that does not match: another head of its kind."""
    kind = "P-EAGLE" if strategy == "parallel" else "EAGLE-3"
    return f"use the {kind} head that was trained for this target"
