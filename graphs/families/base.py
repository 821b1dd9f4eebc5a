"""What the rest of the project needs to know of a target family, and what its trace needs from it.

A family file holds only facts: which architectures it serves, cache shape per layer, default taps, which modules its
trace has to see through. Nothing outside ``families/`` asks for a model's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...plugins.errors import BuildError


@dataclass(frozen=True)
class CacheSpec:
    """One layer's K (and V) cache: ``[B, heads, T, head_dim]``."""

    heads: int
    head_dim: int


@dataclass(frozen=True)
class TargetSpec:
    """Facts about one target, read from its config alone.

    ``taps`` are 0-based layer ids: the drafter is fed the residual stream *entering* those layers, low to high
    (Hugging Face ``hidden_states[i]``).
    """

    family: str
    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    caches: tuple[CacheSpec, ...]
    taps: tuple[int, ...]


class Family(Protocol):
    """One family of target architectures."""

    @property
    def name(self) -> str:
        """Short name."""
        ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names in ``config.json`` that it serves."""
        ...

    def describe(self, config: Mapping[str, Any], taps: Sequence[int] | None = None) -> TargetSpec:
        """Facts from ``config.json``. Raises ``BuildError`` listing every missing or illegal entry."""
        ...

    def model_class(self) -> type[Any]:
        """The ``transformers`` class whose modelling code is traced, unchanged."""
        ...

    def tied(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Checkpoint names that are another tensor's alias: ``{absent name: stored name}``."""
        ...


def default_taps(num_layers: int) -> tuple[int, ...]:
    """``(2, L // 2, L - 3)``: the taps of EAGLE-3 heads in vLLM and SGLang. They must differ, so L >= 7."""
    return (2, num_layers // 2, num_layers - 3)


def check_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """``taps`` as a tuple; raises ``BuildError`` unless they ascend within ``0..L-1``."""
    if list(taps) != sorted(set(taps)) or not all(0 <= t < num_layers for t in taps) or not taps:
        raise BuildError(
            f"taps {list(taps)} do not fit a target of {num_layers} layers",
            why="taps are distinct 0-based layer ids in ascending order; the stream entering each layer is tapped",
            fix="name other layers in the head's eagle_aux_hidden_state_layer_ids",
        )
    return tuple(taps)


def require(config: Mapping[str, Any], *names: str) -> None:
    """Raise ``BuildError`` unless every name is a positive integer in the config."""
    bad = [n for n in names if not isinstance(config.get(n), int) or config[n] <= 0]
    if bad:
        raise BuildError(
            f"config.json lacks {', '.join(bad)}",
            why="each must be a positive integer",
            fix="use the config.json that belongs to the checkpoint",
        )
