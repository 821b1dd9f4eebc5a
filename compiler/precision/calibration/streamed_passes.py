"""Forward passes of a whole target with only one decoder layer's weights in memory, or the head's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...checkpoints.target import Target
from ...console import interrupts
from ...console.progress import Advance
from ...store.atomic_files import require_space
from .layerwise import DTYPES, Layerwise
from .resume import Array, States


class StreamedPass(NamedTuple):
    """The target's outputs for one text: ``logits`` f32 [len, V]; ``features`` f32 [len, A*H], the tapped streams."""

    logits: Array
    features: Array


def num_steps(target: Target) -> int:
    """Return the number of progress steps per text in ``streamed_passes``: one per layer, and the head."""
    return target.spec.num_layers + 1


def streamed_passes(
    target: Target, texts: Sequence[Sequence[int]], scratch: Path, advance: Advance
) -> Iterator[StreamedPass]:
    """Yield a forward pass over each of ``texts`` in FP32, in order, by transformers' own modeling code.

    All texts go through a layer before the next one is read; the streams in between are stored in the folder
    ``scratch``. Raises ``BuildError`` for a checkpoint that does not match its configuration.
    """
    spec, dtype = target.spec, DTYPES["float32"]
    states = States([len(ids) for ids in texts], spec.hidden_size, dtype)
    require_space(scratch, 4 * (2 + len(spec.taps)) * spec.hidden_size * sum(states.lengths))
    with torch.no_grad():
        model = Layerwise(target, "float32")
        states.write(_entering(scratch, 0), model.embed(texts))
        for index in range(spec.num_layers):
            states.write(_entering(scratch, index + 1), _run_layer(model, index, states, scratch, advance))
            if index not in spec.taps:
                _entering(scratch, index).unlink()
        tapped = [states.read(_entering(scratch, layer)) for layer in spec.taps]
        with model.head() as head:
            for last, *streams in zip(states.read(_entering(scratch, spec.num_layers)), *tapped, strict=True):
                interrupts.check()
                features = torch.cat(streams, -1)[0] if streams else last.new_zeros(last.shape[1], 0)
                yield StreamedPass(_array(head(last)[0]), _array(features))
                advance(1)


def _run_layer(model: Layerwise, index: int, states: States, scratch: Path, advance: Advance) -> Iterator[Tensor]:
    """Run all texts through one layer."""
    with model.layer(index) as layer:
        for hidden in states.read(_entering(scratch, index)):
            interrupts.check()
            yield model.run(layer, index, hidden)
            advance(1)


def _entering(scratch: Path, layer: int) -> Path:
    return scratch / f"entering-{layer:04}"


def _array(values: Tensor) -> Array:
    return np.ascontiguousarray(values.float().numpy())
