"""Patches that make unchanged ``transformers`` modeling code emit semantic ops while it is traced.

All patches are external and undone on exit: the attention interface and a duck-typed cache become one
``CachedAttention`` per layer, routed experts one ``SparseExperts``, every RMSNorm one node, rotary embedding one node
over a table of positions, and the LM head runs only on the columns that can be emitted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...plugins.errors import BuildError
from ...plugins.ops.sparse_experts.spec import GATE, GELU
from ...plugins.optional_packages import install

IMPLEMENTATION = "peagle"  # name under which attention and experts are registered in transformers
# The gates of routed experts, by the class of their activation.
_GATES: Mapping[str, Mapping[str, float]] = {"SiLU": {}, "SiLUActivation": {}, "GELUTanh": GELU}


@dataclass
class Window:
    """The window of one traced forward pass, shared by its ops.

    ``start`` i64 [B], ``positions`` i64 [B,S], ``columns`` i64 [B,E] (window columns that need logits), caches per
    layer ``[B,Hkv,T,D]``, replaced by their updated values as the layers run.
    """

    start: Tensor
    positions: Tensor
    columns: Tensor | None
    k_caches: list[Tensor]
    v_caches: list[Tensor]
    taken: set[int] = field(default_factory=set)
    emits: bool = False  # the LM head received ``columns`` only

    is_compileable = False

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return both unchanged when decoder layers call ``Cache.update``: the attention op writes the cache."""
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        """Return 0; part of the cache protocol, unused by the layers if positions are given."""
        return 0


_window: ContextVar[Window] = ContextVar("window")


def attend(
    window: Window, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, span: int, softcap: float, sinks: Any
) -> Tensor:
    """Run ``CachedAttention`` of one layer, q ``[B,Hq,S,D]`` -> ``[B,S,Hq,D]``, and update the window's caches."""
    caches = (window.k_caches[layer], window.v_caches[layer])
    wide = (0.0, 0.0, 0, 0)  # neither codes nor float16; quantization sets them later
    (heads, head_dim), (cache_heads, cache_dim) = ((x.shape[1], x.shape[3]) for x in (k, caches[0]))
    if (heads, head_dim) != (cache_heads, cache_dim):
        raise BuildError(
            f"layer {layer} has {heads} key heads of size {head_dim}, but config.json gives {cache_heads} of size "
            f"{cache_dim}",
            why="this model family does not support this configuration",
            fix="report the config.json of this checkpoint",
        )
    y, window.k_caches[layer], window.v_caches[layer] = torch.ops.peagle.cached_attention(
        q, k, v, *caches, window.start, sinks, None, scale, span, softcap, *wide
    )
    window.taken.add(layer)
    return y


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """Rotate ``[B,H,S,D]`` by the rows ``positions`` ``[B,S]`` of tables ``[P,D/2]``."""
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
    """An ``AttentionInterface`` function. No mask function is registered for its name, so no mask is built."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window = _window.get()
    y = attend(
        window, module.layer_idx, query, key, value, scale, int(sliding_window or 0), float(softcap or 0.0), s_aux
    )
    return y, None


def _experts(self: Any, hidden: Tensor, experts: Tensor, scores: Tensor) -> Tensor:
    """An ``ExpertsInterface`` function; hidden ``[N,H]``, experts and scores ``[N,A]`` from the router."""
    if hasattr(self, "limit"):  # the clamped SwiGLU of GPT-OSS
        terms: Mapping[str, float] = {"alpha": float(self.alpha), "beta": 1.0, "limit": float(self.limit)}
    elif (activation := type(self.act_fn).__name__) in _GATES:
        terms = _GATES[activation]
    else:
        raise BuildError(
            f"experts with {activation} are not supported",
            why="only experts with SiLU and with GELU in its tanh form are supported",
            fix="use a checkpoint of a tested family (docs/evidence.md)",
        )
    biases = (getattr(self, "gate_up_proj_bias", None), getattr(self, "down_proj_bias", None))
    weights = (self.gate_up_proj, self.down_proj, *biases)
    numbers = (terms.get(each.name, each.default) for each in GATE)
    scores = scores.to(hidden.dtype)  # Gemma-4's router leaves them in float32
    return torch.ops.peagle.sparse_experts(hidden, experts, scores, *weights, *numbers, "", 1.0)  # not quantized yet


def _rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    weight = getattr(self, "weight", None)
    if weight is None:
        weight = torch.ones(hidden_states.shape[-1], dtype=hidden_states.dtype, device=hidden_states.device)
    eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
    return torch.ops.peagle.rms_norm(hidden_states, weight, float(eps))


def _rotary_pair(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    positions = _window.get().positions
    return rotate(q, cos, sin, positions), rotate(k, cos, sin, positions)


def rotate_one(x: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    """Rotate one tensor ``[B,S,H,D]``, for modeling code that processes one at a time."""
    return rotate(x.transpose(1, 2), cos, sin, _window.get().positions).transpose(1, 2)


def _emitted_columns(hidden: Tensor, *_: Any) -> Tensor:
    """Replacement for ``slice_logits_to_keep``: [B,S,H] -> [B,E,H], with different columns in every row."""
    window = _window.get()
    window.emits = True
    return hidden if window.columns is None else take_columns(hidden, window.columns)


def _slice_before_head(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same for modeling code that slices by itself, as in transformers before 5.21."""
    hidden, *others = inputs
    return hidden if _window.get().emits else _emitted_columns(hidden), *others


def take_columns(x: Tensor, columns: Tensor) -> Tensor:
    """Take rows of ``x`` [B,S,H] by ``columns`` [B,E] -> [B,E,H]; one flat Gather, which every backend supports."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1] + columns
    return x.reshape(-1, x.shape[2]).index_select(0, rows.reshape(-1)).reshape(columns.shape[0], columns.shape[1], -1)


class RotaryTable(nn.Module):
    """A replacement for a rotary module that returns its whole table instead of one row per position.

    ``inv_freq`` and ``scaling`` come from the modeling code, so every RoPE variant is supported; the table itself is
    written during lowering, with the length of the cache. ``kind`` selects a table of a module with several, one per
    kind of layer.
    """

    ROWS = 8

    def __init__(self, original: Any, kind: str = "") -> None:
        super().__init__()
        real = type(original)(original.config)
        prefix = f"{kind}_" if kind else ""
        self.inv_freq: list[float] = [float(f) for f in getattr(real, f"{prefix}inv_freq")]
        self.scaling = float(getattr(real, f"{prefix}attention_scaling"))
        shape = (self.ROWS, len(self.inv_freq))
        self.cos = nn.Buffer(torch.empty(shape, device="meta"), persistent=False)
        self.sin = nn.Buffer(torch.empty(shape, device="meta"), persistent=False)

    def forward(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the tables ``cos, sin`` [P, D/2]."""
        return self.cos, self.sin


class RotaryTables(nn.Module):
    """The tables of a rotary module with one per kind of layer."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({kind: RotaryTable(original, kind) for kind in original.rope_type})

    def forward(self, _: Tensor, __: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Return the tables of layers of this kind."""
        cos, sin = self.tables[kind]()
        return cos, sin


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def semantic_ops(model: nn.Module, window: Window, patches: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Run the modeling code of ``model`` in semantic ops over ``window``. Raises ``BuildError`` if a layer escapes.

    ``patches`` replace functions of the modeling modules by name, in addition to those common to all families.
    """
    from transformers import AttentionInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(IMPLEMENTATION, _attention)
    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, _experts)
    model.config._attn_implementation = model.config._experts_implementation = IMPLEMENTATION
    classes = {type(m) for m in model.modules()}
    modules = [sys.modules[n] for n in sorted({c.__module__ for c in classes}) if "modeling_" in n]
    functions = {"apply_rotary_pos_emb": _rotary_pair, "slice_logits_to_keep": _emitted_columns, **patches}
    with ExitStack() as stack:
        for cls in classes:
            if cls.__name__.endswith("RMSNorm"):
                stack.enter_context(_replaced(cls, "forward", _rms_norm))
        for module in modules:
            for name, value in functions.items():
                if hasattr(module, name):
                    stack.enter_context(_replaced(module, name, value))
        if (head := model.get_output_embeddings()) is not None:
            stack.callback(head.register_forward_pre_hook(_slice_before_head).remove)
        token = _window.set(window)
        try:
            yield
        finally:
            _window.reset(token)
    if len(window.taken) != len(window.k_caches):
        raise _untested(
            f"{len(window.k_caches) - len(window.taken)} attention layers did not use the attention interface",
            "this version of the modeling code bypasses AttentionInterface",
        )
    if not window.emits:
        raise _untested(
            "the LM head computes columns that are not emitted",
            "this version of the modeling code does not call the LM head as expected",
        )


def _untested(what: str, why: str) -> BuildError:
    return BuildError(what, why=why, fix=f"use a tested version of transformers: run `{install('export')}`")
