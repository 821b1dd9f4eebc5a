"""The base class of target families: what the project needs to know of one, and what its trace needs from it.

A family file holds only facts: which architectures it serves, how its checkpoint maps to the modelling code, cache
shape per layer, default taps, what its trace has to see through. Nothing outside this folder asks for a model's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...plugins.errors import BuildError
from .check_config import Entries, check_config
from .gguf_naming import GgufNaming

Shape = tuple[int, ...]
Config = Mapping[str, Any]
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
"""The sizes of every decoder."""


@dataclass(frozen=True)
class CacheSpec:
    """The key (and value) cache of one layer: ``[B, heads, T, head_dim]``."""

    heads: int
    head_dim: int


@dataclass(frozen=True)
class TargetSpec:
    """Facts about one target, read from its config alone.

    ``taps`` are 0-based layer ids: the drafter is fed the residual stream *entering* those layers, low to high
    (Hugging Face ``hidden_states[i]``). There are none before a drafter was read, and where there is none.
    """

    family: str
    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    caches: tuple[CacheSpec, ...]
    taps: tuple[int, ...] = ()

    def with_taps(self, taps: Sequence[int] | None = None) -> TargetSpec:
        """Return the target with the taps of a drafter, or with none; untold, with ``default_taps``.

        Raises ``BuildError`` for taps that it has no layers for.
        """
        if taps is None:
            return replace(self, taps=default_taps(self.num_layers))
        return replace(self, taps=check_taps(taps, self.num_layers) if taps else ())


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a graph weight, and the checkpoint tensors they come from.

    ``copy``: one tensor as it is. ``transpose``: every matrix of one tensor ``[E, A, B]`` turned to ``[B, A]``.
    ``stack``: one of a stack of matrices. ``interleave``: the same, rows of two matrices in turn.
    """

    keys: tuple[str, ...]
    how: Literal["copy", "transpose", "stack", "interleave"] = "copy"


class Family:
    """One family of target architectures: facts for a decoder of grouped-query attention, to be overridden."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]
    """Names in ``config.json`` that it serves; the first is also the ``transformers`` class that is traced."""
    entries: ClassVar[Entries] = Entries(SIZES)
    """What the decoder's config holds."""
    gguf: ClassVar[tuple[GgufNaming, ...]] = ()
    """How GGUF files spell it, for each architecture of theirs that is this family."""
    own_swiglu: ClassVar[str] = ""
    """How its routed experts depart from ``down(silu(gate(x)) * up(x))``; empty where they do not."""

    def text(self, config: Config) -> Config:
        """Return the decoder's own part of ``config.json``."""
        return config

    def check(self, text: Config) -> None:
        """Raise ``BuildError`` for what this family does not serve."""

    def caches(self, text: Config) -> tuple[CacheSpec, ...]:
        """Return the cache of every layer."""
        heads = text["num_attention_heads"]
        head_dim = text.get("head_dim") or text["hidden_size"] // heads
        cache = CacheSpec(text.get("num_key_value_heads") or heads, head_dim)
        return tuple(cache for _ in range(text["num_hidden_layers"]))

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """What kind each layer is of; layers of one kind have the same nodes and the same weight shapes."""
        return tuple(text.get("layer_types") or ("layer",) * text["num_hidden_layers"])

    def describe(self, config: Config, file: str = "config.json") -> TargetSpec:
        """Read the spec from the content of ``file``. Raises ``BuildError`` for entries that are missing or illegal."""
        text = self.text(config)
        check_config(text, self.entries, file)
        self.check(text)
        layers = text["num_hidden_layers"]
        return TargetSpec(
            family=self.name,
            architecture=next(name for name in config["architectures"] if name in self.architectures),
            hidden_size=text["hidden_size"],
            num_layers=layers,
            vocab_size=text["vocab_size"],
            max_position_embeddings=text.get("max_position_embeddings", 2048),
            caches=self.caches(text),
        )

    def keeping(self, config: Config, layers: Sequence[int]) -> dict[str, Any]:
        """Return the decoder's config with only some of its layers, by their ids: for plans and for small trials."""
        text = dict(self.text(config))
        text["num_hidden_layers"] = len(layers)
        if text.get("layer_types"):
            text["layer_types"] = [text["layer_types"][i] for i in layers]
        return text

    def model_class(self) -> type[Any]:
        """The ``transformers`` class whose modelling code is traced, unchanged."""
        import transformers

        cls: type[Any] = getattr(transformers, self.architectures[0])
        return cls

    def settings(self, config: Config) -> Any:
        """The configuration object that ``model_class`` takes."""
        return self.model_class().config_class.from_dict(
            deepcopy(dict(self.text(config)))
        )  # it changes what it is given

    def load(self, folder: Path, config: Config) -> Any:
        """The target in ``transformers`` with its weights, FP32, eager attention: what graphs are compared with."""
        import torch

        cls = self.model_class()
        return cls.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()

    def tied(self, config: Config) -> Mapping[str, str]:
        """Checkpoint names that are another tensor's alias: ``{absent name: stored name}``."""
        tied = self.text(config).get("tie_word_embeddings")
        return {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """What a graph weight ``name`` of ``shape`` consists of, in order; tensors go by their canonical names."""
        return (Piece((name,)),)

    def canonical(self, key: str) -> str:
        """The name that a checkpoint's tensor has in the traced model, where they differ."""
        return key

    def ignored(self, key: str) -> bool:
        """Whether a checkpoint tensor is known to be of no use to the decoder."""
        return "rotary_emb" in key

    def patches(self) -> Mapping[str, Callable[..., Any]]:
        """Functions of the modelling module to replace while it is traced, beside those that all families share."""
        return {}

    def prepare(self, model: Any) -> None:
        """Give real values to what the checkpoint does not hold; ``model`` is on the meta device."""


def default_taps(num_layers: int) -> tuple[int, ...]:
    """The taps of EAGLE-3 heads in vLLM and SGLang: ``(2, L // 2, L - 3)``.

    Raises ``BuildError`` for so few layers that they do not ascend.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    if list(taps) != sorted(set(taps)):
        raise BuildError(
            f"a target of {num_layers} layers has no usual taps",
            why="heads that do not name the layers they tap are fed 2, L/2 and L-3, which differ from 7 layers on",
            fix="name them in the head's config.json (eagle_aux_hidden_state_layer_ids), or leave the drafter out with "
            "--draft none",
        )
    return taps


def check_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return ``taps`` as a tuple; raises ``BuildError`` unless they ascend within ``0..L-1``."""
    if list(taps) != sorted(set(taps)) or not all(0 <= t < num_layers for t in taps) or not taps:
        raise BuildError(
            f"taps {list(taps)} do not fit a target of {num_layers} layers",
            why="taps are distinct 0-based layer ids in ascending order; the stream entering each layer is tapped",
            fix="name other layers in the head's eagle_aux_hidden_state_layer_ids",
        )
    return tuple(taps)


def count_kinds(kinds: Sequence[str]) -> dict[str, int]:
    """Count the layers of each kind, in order of appearance."""
    return dict(Counter(kinds))
