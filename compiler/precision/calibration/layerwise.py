"""A target with the weights of one decoder layer at a time, run by transformers' own modeling code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ....graphs.names import LM_HEAD, layer_prefix
from ....plugins.errors import BuildError
from ...checkpoints.target import Target
from .observers import EXPERTS, register

Dtype = Literal["float32", "bfloat16"]
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_EMBEDDING = "model.embed_tokens.weight"
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Layerwise:
    """A target computing in ``dtype`` on ``device``; weights not in use are on the meta device.

    Streams come from host memory and are returned on the device of the layer; the embedding lookup runs on the host.
    Attention is transformers' eager implementation, with explicit masks, also in sliding layers.
    """

    def __init__(self, target: Target, dtype: Dtype, device: str = "cpu") -> None:
        """Raises ``BuildError`` if the checkpoint does not match its configuration."""
        self._target, self._dtype, self._device = target, DTYPES[dtype], torch.device(device)
        target.check()
        register()
        self.model: Any = target.skeleton.modules()
        target.family.prepare(self.model)
        _compute_rotary(self.model, self._device)
        self.model.config._attn_implementation = "eager"
        self.model.config._experts_implementation = EXPERTS
        self._decoder = self.model.model
        self._layers: list[nn.Module] = list(self._decoder.layers)
        self._norm = self._decoder.norm
        self._stubs = [_Stub() for _ in self._layers]
        self._decoder.layers, self._decoder.norm = nn.ModuleList(self._stubs), nn.Identity()

    def embed(self, sequences: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """Yield the stream entering layer 0, ``[1,S,H]`` per sequence; memory holds only rows of tokens that occur."""
        used = sorted({token for sequence in sequences for token in sequence})
        row_of = {token: row for row, token in enumerate(used)}
        embedding = self._decoder.embed_tokens
        meta = embedding.weight
        embedding.padding_idx = None
        embedding.weight = nn.Parameter(self._rows(_EMBEDDING, tuple(meta.shape), used), requires_grad=False)
        try:
            for sequence in sequences:
                yield embedding(torch.tensor([[row_of[token] for token in sequence]]))
        finally:
            embedding.weight = meta

    @contextmanager
    def layer(self, index: int) -> Iterator[nn.Module]:
        """Decoder layer ``index`` with its weights, released on exit."""
        layer = self._layers[index]
        with self._weighted(layer, layer_prefix(index)):
            yield layer

    def run(self, layer: nn.Module, index: int, hidden: Tensor, cache: Any = None) -> Tensor:
        """Run ``layer``, number ``index``, on one stream ``[1,S,H]``; keys and values pass through ``cache``."""
        hidden = hidden.to(self._device)
        args, keywords = self._call(index, hidden)
        result: Tensor = layer(hidden, *args, **{**keywords, "past_key_values": cache})
        return result

    @contextmanager
    def norm(self) -> Iterator[nn.Module]:
        """The norm between the last layer and the head, with its weights."""
        with self._weighted(self._norm, "model.norm."):
            yield self._norm

    @contextmanager
    def head(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """A function from the stream ``[1,S,H]`` after the last layer to logits ``[1,S,V]``, with its weights."""
        with self.norm() as norm, self._weighted(self.model.lm_head, f"{LM_HEAD}."):
            # With stub layers, the model applies exactly its logit computation to the normed stream.
            yield lambda hidden: self.model(inputs_embeds=self.normed(norm, hidden), use_cache=False).logits

    def normed(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        """Apply ``norm``, with its weights, to one stream ``[1,S,H]``."""
        result: Tensor = norm(hidden.to(self._device))
        return result

    def _call(self, index: int, hidden: Tensor) -> Call:
        """Return the layer's other arguments from the modeling code: masks and rotary embedding."""
        self._decoder(inputs_embeds=torch.zeros_like(hidden), use_cache=False)
        return self._stubs[index].call

    @contextmanager
    def _weighted(self, module: nn.Module, prefix: str) -> Iterator[None]:
        values = {
            name: self._tensor(prefix + name, tuple(tensor.shape)).to(self._device)
            for name, tensor in module.state_dict().items()
        }
        module.load_state_dict(values, assign=True)
        del values
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        unloaded = [prefix + name for name, tensor in tensors.items() if tensor.is_meta]
        if unloaded:
            raise BuildError(
                f"the model has buffers without a value: {', '.join(unloaded)}",
                why="the modeling code computes these buffers, but calibration has only the stored tensors",
                fix="let the family's `prepare` compute them (docs/add-a-model.md)",
            )
        del tensors
        try:
            yield
        finally:
            module.to("meta")

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor in the layout of the modeling code and the compute type."""
        values = torch.empty(shape, dtype=self._dtype)
        flat, at = values.view(-1), 0
        for rows in self._runs(name, shape):
            flat[at : at + rows.size] = torch.from_numpy(np.ascontiguousarray(rows).reshape(-1))
            at += rows.size
        return values

    def _rows(self, name: str, shape: tuple[int, ...], positions: Sequence[int]) -> Tensor:
        """Read some rows of a matrix, in ascending order."""
        values, indices, begin = torch.empty(len(positions), shape[1], dtype=self._dtype), np.array(positions), 0
        for rows in self._runs(name, shape):
            here = np.flatnonzero((indices >= begin) & (indices < begin + len(rows)))
            values[here] = torch.from_numpy(rows[indices[here] - begin]).to(self._dtype)
            begin += len(rows)
        return values

    def _runs(self, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Read tensors in the order of the graph's pieces, one after another.

        That is the modeling code's layout: gate and up, which the graph interleaves, follow each other, and matrices
        that the graph transposes are laid out as in the checkpoint.
        """
        sources = self._target.sources
        for piece in sources.pieces(name, shape):
            for key in piece.keys:
                yield from self._target.checkpoint.pieces(sources.key(key))


class _Stub(nn.Module):
    """Replaces a decoder layer and records its call."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Call = ((), {})

    def forward(self, hidden: Tensor, *args: Any, **keywords: Any) -> Tensor:
        self.call = (args, keywords)
        return hidden


def _compute_rotary(model: nn.Module, device: torch.device) -> None:
    """Recreate rotary modules on the device: their buffers are computed, not stored."""
    for path, module in list(model.named_modules()):
        if type(module).__name__.endswith("RotaryEmbedding"):
            parent, _, name = path.rpartition(".")
            kind: Any = type(module)
            setattr(model.get_submodule(parent), name, kind(module.config).to(device))
