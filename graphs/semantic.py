"""How unchanged ``transformers`` modelling code is made to speak in semantic ops while it is traced.

Everything here is a patch from outside, undone on exit: the attention interface and a duck-typed cache become one
``CachedAttention`` per layer, every RMSNorm one node, rotary embedding one node over a table of positions, and the head
is applied only to the columns that can be emitted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..plugins.errors import BuildError

ATTENTION = "peagle"


@dataclass
class Window:
    """What the ops of one traced forward pass share.

    ``start`` i64 [B], ``positions`` i64 [B,S], ``columns`` i64 [B,E] (window columns whose logits are wanted), caches
    per layer ``[B,Hkv,T,D]``, replaced by their updated values as the layers run.
    """

    start: Tensor
    positions: Tensor
    columns: Tensor | None
    k_caches: list[Tensor]
    v_caches: list[Tensor]
    taken: set[int] = field(default_factory=set)

    is_compileable = False

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """``Cache.update`` as decoder layers call it: the attention op does the writing, so nothing changes here."""
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        """Unused by the layers when positions are given; part of the cache protocol."""
        return 0


_window: ContextVar[Window] = ContextVar("window")


def attend(
    window: Window, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, span: int, softcap: float, sinks: Any
) -> Tensor:
    """``CachedAttention`` of one layer; q ``[B,Hq,S,D]`` -> ``[B,S,Hq,D]``, and the window's caches move on."""
    y, window.k_caches[layer], window.v_caches[layer] = torch.ops.peagle.cached_attention(
        q, k, v, window.k_caches[layer], window.v_caches[layer], window.start, sinks, scale, span, softcap
    )
    window.taken.add(layer)
    return y


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of ``[B,H,S,D]`` from tables ``[P,D/2]`` at ``positions`` ``[B,S]``."""
    return torch.ops.peagle.rope(x, cos, sin, positions)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An ``AttentionInterface`` function. Its name has no mask function, so no mask is ever built."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = _window.get()
    y = attend(
        window, module.layer_idx, query, key, value, scale, int(sliding_window or 0), float(softcap or 0.0), s_aux
    )
    return y, None


def _rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    return torch.ops.peagle.rms_norm(hidden_states, self.weight, float(self.variance_epsilon))


def _rotary_pair(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    positions = _window.get().positions
    return rotate(q, cos, sin, positions), rotate(k, cos, sin, positions)


def _emitted_columns(hidden: Tensor, _: Any) -> Tensor:
    """Stands in for ``slice_logits_to_keep``: [B,S,H] -> [B,E,H], a different set of columns in every row."""
    columns = _window.get().columns
    return hidden if columns is None else take_columns(hidden, columns)


def take_columns(x: Tensor, columns: Tensor) -> Tensor:
    """Rows of ``x`` [B,S,H] named by ``columns`` [B,E] -> [B,E,H]; one flat Gather, which every backend has."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1] + columns
    return x.reshape(-1, x.shape[2]).index_select(0, rows.reshape(-1)).reshape(columns.shape[0], columns.shape[1], -1)


class RotaryTable(nn.Module):
    """Stands in for a rotary module: hands out its whole table instead of one row per position.

    ``inv_freq`` and ``scaling`` are those that the modelling code computed, so every RoPE variant is kept; the table
    itself is written when the graph is lowered, at the length of the cache.
    """

    ROWS = 8

    def __init__(self, original: Any) -> None:
        super().__init__()
        if getattr(original, "rope_type", "default") in ("dynamic", "longrope"):
            raise BuildError(
                f"RoPE type {original.rope_type!r} is not supported",
                why="its frequencies change with the length of the sequence, so they fit no table",
                fix="use a checkpoint with rope type default, llama3, linear or yarn",
            )
        real = type(original)(original.config)
        self.inv_freq: list[float] = [float(f) for f in real.inv_freq]
        self.scaling = float(real.attention_scaling)
        shape = (self.ROWS, len(self.inv_freq))
        self.cos = nn.Buffer(torch.empty(shape, device="meta"), persistent=False)
        self.sin = nn.Buffer(torch.empty(shape, device="meta"), persistent=False)

    def forward(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The tables ``cos, sin`` [P, D/2]."""
        return self.cos, self.sin


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def semantic_ops(model: nn.Module, window: Window) -> Iterator[None]:
    """Run ``model``'s modelling code in semantic ops over ``window``. Raises ``BuildError`` if a layer escaped them."""
    from contextlib import ExitStack

    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
    model.config._attn_implementation = ATTENTION
    classes = {type(m) for m in model.modules()}
    modules = [sys.modules[n] for n in sorted({c.__module__ for c in classes}) if "modeling_" in n]
    with ExitStack() as stack:
        for cls in classes:
            if cls.__name__.endswith("RMSNorm"):
                stack.enter_context(_replaced(cls, "forward", _rms_norm))
        for module in modules:
            for name, value in (
                ("apply_rotary_pos_emb", _rotary_pair),
                ("slice_logits_to_keep", _emitted_columns),
            ):
                if hasattr(module, name):
                    stack.enter_context(_replaced(module, name, value))
        token = _window.set(window)
        try:
            yield
        finally:
            _window.reset(token)
    if len(window.taken) != len(window.k_caches):
        raise BuildError(
            f"{len(window.k_caches) - len(window.taken)} attention layers did not go through the attention interface",
            why="this version of the modelling code bypasses AttentionInterface",
            fix="install the pinned transformers version (pip install 'peagle-compile[export]')",
        )
