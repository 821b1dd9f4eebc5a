"""Base class of target families.

A family file contains only facts: its architectures, the mapping from checkpoint to modeling code, cache shapes per
layer, default taps, and patches for tracing. No other folder depends on model names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...plugins.errors import BuildError
from ..config_values import max_positions
from .check_config import Entries, check_config
from .gguf_naming import GgufNaming

ONLY_KIND = "layer"  # kind of the layers of a model whose layers are all of one kind
Shape = tuple[int, ...]
Config = Mapping[str, Any]
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
"""Sizes common to all decoders."""
_SLIDING = "sliding_attention"  # in ``layer_types`` of ``config.json``


@dataclass(frozen=True)
class CacheSpec:
    """The key (and value) cache of one layer: ``[B, heads, T, head_dim]``."""

    heads: int
    head_dim: int


@dataclass(frozen=True)
class TargetSpec:
    """Facts about one target, from its config alone.

    ``windows`` holds the attention window of each layer, including the position itself; 0 means unlimited. ``taps`` are
    0-based layer ids: the drafter reads the residual stream *entering* those layers, in ascending order
    (Hugging Face ``hidden_states[i]``). Empty until a drafter is read, or without one.
    """

    family: str
    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    caches: tuple[CacheSpec, ...]
    windows: tuple[int, ...]
    taps: tuple[int, ...] = ()

    def with_taps(self, taps: Sequence[int] | None = None) -> TargetSpec:
        """Return the target with these taps; None selects ``default_taps``.

        Raises ``BuildError`` for taps beyond its layers.
        """
        if taps is None:
            return replace(self, taps=default_taps(self.num_layers))
        return replace(self, taps=check_taps(taps, self.num_layers) if taps else ())


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a graph weight, and their checkpoint tensors.

    ``copy``: one tensor, unchanged. ``transpose``: every matrix of one tensor ``[E, A, B]`` transposed to ``[B, A]``.
    ``halves``: the two halves of every matrix of one tensor ``[E, A, B]``, with interleaved rows. ``stack``: one of a
    stack of matrices. ``interleave``: the same, with interleaved rows of two matrices.
    """

    keys: tuple[str, ...]
    how: Literal["copy", "transpose", "halves", "stack", "interleave"] = "copy"


class Family:
    """A family of target architectures: defaults for a decoder with grouped-query attention, to be overridden."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]
    """Supported names in ``config.json``; the first is also the ``transformers`` class to trace."""
    entries: ClassVar[Entries] = Entries(SIZES)
    """Entries of the decoder's config."""
    gguf: ClassVar[tuple[GgufNaming, ...]] = ()
    """GGUF naming, for each GGUF architecture of this family."""
    own_swiglu: ClassVar[str] = ""
    """How its routed experts differ from ``down(silu(gate(x)) * up(x))``; empty if they do not."""

    def text(self, config: Config) -> Config:
        """Return the decoder's part of ``config.json``."""
        return config

    def check(self, text: Config) -> None:
        """Raise ``BuildError`` for unsupported settings."""

    def caches(self, text: Config) -> tuple[CacheSpec, ...]:
        """Return the cache of every layer."""
        heads = text["num_attention_heads"]
        head_dim = text.get("head_dim") or text["hidden_size"] // heads
        cache = CacheSpec(text.get("num_key_value_heads") or heads, head_dim)
        return tuple(cache for _ in range(text["num_hidden_layers"]))

    def other_activation(self, text: Config) -> str:
        """Return the activation of the routed experts if it is not SiLU, which TensorRT's own layer requires."""
        return ""

    def layer_kinds(self, text: Config) -> tuple[str, ...]:
        """Return the kind of each layer; layers of one kind have the same nodes and the same weight shapes."""
        return tuple(text.get("layer_types") or (ONLY_KIND,) * text["num_hidden_layers"])

    def windows(self, text: Config) -> tuple[int, ...]:
        """Return the attention window of every layer, 0 if it is unlimited."""
        return tuple(text["sliding_window"] if kind == _SLIDING else 0 for kind in self.layer_kinds(text))

    def describe(self, config: Config, file: str = "config.json") -> TargetSpec:
        """Create the spec from the content of ``file``. Raises ``BuildError`` for missing or illegal entries."""
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
            max_position_embeddings=max_positions(text),
            caches=self.caches(text),
            windows=self.windows(text),
        )

    def keeping(self, config: Config, layers: Sequence[int]) -> dict[str, Any]:
        """Return the decoder's config with only some layers, by their ids: for plans and small trials."""
        text = dict(self.text(config))
        kinds = self.layer_kinds(text)
        if not text.get("layer_types") and {*kinds} <= {*self.entries.layer_kinds}:
            text["layer_types"] = kinds  # the default types depend on the position
        if text.get("layer_types"):
            text["layer_types"] = [text["layer_types"][i] for i in layers]
        text["num_hidden_layers"] = len(layers)
        return text

    def model_class(self) -> type[Any]:
        """Return the ``transformers`` class whose modeling code is traced, unchanged."""
        import transformers

        cls: type[Any] = getattr(transformers, self.architectures[0])
        return cls

    def settings(self, config: Config) -> Any:
        """Return the configuration object for ``model_class``."""
        return self.model_class().config_class.from_dict(deepcopy(dict(self.text(config))))  # it modifies its argument

    def load(self, folder: Path, config: Config) -> Any:
        """Load the target in ``transformers`` in FP32 with eager attention: the reference for comparisons."""
        import torch

        cls = self.model_class()
        return cls.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()

    def tied(self, config: Config) -> Mapping[str, str]:
        """Return checkpoint names that alias another tensor: ``{absent name: stored name}``."""
        tied = self.text(config).get("tie_word_embeddings")
        return {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}

    def untied(self, config: Config) -> dict[str, Any]:
        """Return ``config`` without tied tensors."""
        return {**config, "tie_word_embeddings": False}

    def sources(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """Return the pieces of a graph weight ``name`` of ``shape``, in order, with canonical tensor names."""
        return (Piece((name,)),)

    def canonical(self, key: str) -> str:
        """Return the name of a checkpoint's tensor in the traced model."""
        return key

    def ignored(self, key: str) -> bool:
        """Return True for checkpoint tensors that the decoder does not use."""
        return "rotary_emb" in key

    def patches(self) -> Mapping[str, Callable[..., Any]]:
        """Return functions to replace in the modeling module during tracing, besides those common to all families."""
        return {}

    def prepare(self, model: Any) -> None:
        """Give values to buffers that the checkpoint does not store; ``model`` is on the meta device."""


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Return the usual taps of EAGLE-3 heads: ``(2, L // 2, L - 3)``, the defaults of vLLM and SGLang.

    SpecForge and Model-Optimizer count the layers whose outputs these are: ``(1, L // 2 - 1, L - 4)``.

    Raises ``BuildError`` if there are too few layers for ascending taps.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    if list(taps) != sorted(set(taps)):
        raise BuildError(
            f"a target of {num_layers} layers has no default auxiliary hidden-state layers (taps)",
            why="the defaults are 2, L/2 and L-3 for L layers, which are distinct only for 7 or more layers",
            fix="list them in the head's config.json (eagle_aux_hidden_state_layer_ids), or build without a drafter: "
            "--draft none",
        )
    return taps


def check_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return ``taps`` as a tuple; raises ``BuildError`` unless they ascend within ``0..L-1``."""
    if list(taps) != sorted(set(taps)) or not all(0 <= t < num_layers for t in taps) or not taps:
        what = f"taps {list(taps)} are invalid for a target of {num_layers} layers"
        if taps and max(taps) == num_layers:
            raise BuildError(
                what,
                why=f"{num_layers} means the output of the last layer, which cannot be tapped: taps (auxiliary "
                f"hidden-state layers) are the inputs of layers 0 to {num_layers - 1}",
                fix="use a head that does not read the output of the target's last layer",
            )
        raise BuildError(
            what,
            why="taps (auxiliary hidden-state layers) must be distinct 0-based layer ids in ascending order",
            fix="correct the head's eagle_aux_hidden_state_layer_ids",
        )
    return tuple(taps)


def count_kinds(kinds: Sequence[str]) -> dict[str, int]:
    """Count the layers of each kind, in order of appearance."""
    return dict(Counter(kinds))
