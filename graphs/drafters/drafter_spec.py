"""The spec of a drafter: everything that its graph and its oracle depend on."""

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
    """A drafter of the EAGLE-3 kind: P-EAGLE (``parallel``, one pass) or EAGLE-3 itself (``autoregressive``).

    ``keys`` maps the drafter module's parameter names to the names in the checkpoint; ``shared`` are those that the
    checkpoint leaves to the target. ``windows`` holds how many positions each layer sees (0: all), ``rope`` the
    ``rope_parameters`` of ``transformers``; ``trained_depth`` is the K it was trained for, when the config says so.
    ``mask_token_id`` is -1 in an autoregressive one. ``norm_output`` has no effect on a single pass: only a further one
    reads its output.
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
        """The number of layers, the one that fuses embedding and features included."""
        return self.parts.num_layers

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """One cache per drafter layer."""
        return (self.cache,) * self.num_layers

    @property
    def has_draft_vocabulary(self) -> bool:
        """Whether draft ids need ``d2t`` to become target ids."""
        return self.parts.draft_vocabulary

    @property
    def unread(self) -> tuple[str, ...]:
        """The tensors of its checkpoint that are no part of it, by their names there."""
        return tuple(self.keys[name] for name in unread(self.parts, self.keys))

    def expected_shapes(self) -> dict[str, Shape]:
        """Shape of every tensor the drafter needs, by module name."""
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
    """An empty list of what does not fit; ``trained_head`` is its fix when the kind of head is known."""
    return Problems(
        "the drafter head",
        "does not fit",
        why="a head works only with the target, the taps and the vocabulary it was trained for",
        fix="use the head that was trained for this target",
    )


def trained_head(strategy: Strategy) -> str:
    """Return what to use in place of a head that does not fit: one of its kind."""
    kind = "P-EAGLE" if strategy == "parallel" else "EAGLE-3"
    return f"use the {kind} head that was trained for this target"
