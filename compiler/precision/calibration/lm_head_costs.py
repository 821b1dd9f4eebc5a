"""The cost of a quantized LM head: the target's logits on calibration tokens, with the head in a format and without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....plugins.number_formats import Scheme, quantized_formats
from ..rounding.numbers_to_codes import LARGEST, SMALLEST, scales_for
from .layerwise import Layerwise

Array = np.ndarray[Any, Any]

TOKENS = 2048  # compared at most, and at least one of each sample
_AT_ONCE = 128  # tokens; two tables of their logits are in memory
_ROWS = 4096  # of the head's weight, rounded at once


def lm_head_costs(model: Layerwise, streams: Sequence[Tensor], amax: float) -> dict[str, Array]:
    """Return the costs of an LM head in each format with calibrated inputs, float32 [2] by the format's name.

    The first is the mean divergence KL(unquantized || quantized) in nats per token, the second the share of tokens
    whose most likely next token changes. ``streams`` ``[1,S,H]`` are outputs of the last layer; ``amax`` is the
    calibrated range of the head's input. Memory holds the head's weight twice, in the type of ``model``.
    """
    parts = torch.cat([stream[0] for stream in streams]).split(_AT_ONCE)
    costs = {}
    with model.head() as head:
        for each in quantized_formats(tensorrt=True):
            if each.tensorrt and each.is_calibrated(tensorrt=True):
                rounded = _rounded_weight(model.model.lm_head.weight.data, each.tensorrt.scheme)
                found = np.zeros(2)
                for part in parts:
                    wide = torch.log_softmax(head(part[None])[0].float(), -1)
                    with _quantized(model.model.lm_head, rounded, each.tensorrt.scheme, amax):
                        narrow = torch.log_softmax(head(part[None])[0].float(), -1)
                    changed = wide.argmax(-1) != narrow.argmax(-1)
                    found += [(wide.exp() * (wide - narrow)).sum().item(), changed.sum().item()]
                costs[each.name] = np.maximum(found / sum(map(len, parts)), 0).astype(np.float32)
    return costs


@contextmanager
def _quantized(linear: nn.Linear, rounded: Tensor, scheme: Scheme, amax: float) -> Iterator[None]:
    """Let ``linear`` multiply ``rounded`` with inputs rounded like those of a plan."""
    weight, kind = linear.weight, scheme.input or scheme.codes
    scale = torch.tensor(scales_for(np.asarray(amax, np.float32), kind), device=weight.device)
    hook = linear.register_forward_pre_hook(lambda _, args: (_round(args[0], scale, kind),))
    linear.weight = nn.Parameter(rounded, requires_grad=False)
    try:
        yield
    finally:
        linear.weight = weight
        hook.remove()


def _rounded_weight(weight: Tensor, scheme: Scheme) -> Tensor:
    """Return ``weight`` ``[V,H]`` rounded to a scheme with one scale for the matrix or for each row."""
    amax = torch.cat([rows.abs().amax(1, keepdim=True) for rows in weight.split(_ROWS)]).float()
    if scheme.group != "row":
        amax = amax.amax(0, keepdim=True).expand_as(amax)
    scales = torch.from_numpy(scales_for(amax.cpu().numpy(), scheme.codes)).to(weight.device)
    pairs = zip(weight.split(_ROWS), scales.split(_ROWS), strict=True)
    return torch.cat([_round(rows, scale, scheme.codes) for rows, scale in pairs])


def _round(values: Tensor, scale: Tensor, codes: str) -> Tensor:
    """Return ``values`` rounded to the nearest codes times ``scale``, in their own type."""
    scaled = (values.float() / scale).clamp(SMALLEST[codes], LARGEST[codes])
    kind: torch.dtype = getattr(torch, codes)
    nearest = scaled.to(kind).float() if kind.is_floating_point else scaled.round()
    return (nearest * scale).to(values.dtype)
