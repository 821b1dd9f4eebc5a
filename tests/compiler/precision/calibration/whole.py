"""The reference: ranges of a whole target in transformers, read from the inputs of its matmuls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache

from peagle.graphs.targets import family_for
from tests.models import Pair

_MATMULS = {torch.nn.functional.linear, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.matmul}


class Matmuls(TorchFunctionMode):
    """Keeps of every matmul with a parameter, or with one expert's part of it, its largest input, squares and rows."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.owner: dict[int, tuple[str, int]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parts = parameter if parameter.dim() == 3 else [parameter]
            self.owner |= {part.data_ptr(): (name, index) for index, part in enumerate(parts)}
        self.largest: dict[tuple[str, int], float] = defaultdict(float)
        self.squares: dict[str, torch.Tensor | float] = defaultdict(float)  # summed
        self.rows: dict[tuple[str, int], int] = defaultdict(int)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _MATMULS and (owner := self.owner.get(args[1].data_ptr())):
            self.largest[owner] = max(self.largest[owner], args[0].abs().max().item())
            self.squares[owner[0]] += args[0].double().square().reshape(-1, args[0].shape[-1]).sum(0)
            self.rows[owner] += args[0].shape[:-1].numel()
        return func(*args, **(kwargs or {}))


def whole_model(
    pair: Pair, sequences: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32
) -> tuple[Matmuls, dict[str, float]]:
    """Return the input of each matmul, and the largest key and value of each layer by the graph's cache names."""
    model = family_for(pair.config).load(pair.target, pair.config)
    stored = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    for tensor in (
        *model.parameters(),
        *stored.values(),
    ):  # values stay float32, as with `from_pretrained`
        tensor.data = tensor.data.to(dtype, copy=True)  # copied, because alignment affects the last bits
    model.config._experts_implementation = "eager"
    caches: dict[str, float] = defaultdict(float)
    with torch.no_grad(), Matmuls(model) as matmuls:
        for sequence in sequences:
            cache = DynamicCache()
            model(input_ids=torch.tensor([list(sequence)]), past_key_values=cache, use_cache=True)
            for index, layer in enumerate(cache.layers):
                for kind, values in (("k", layer.keys), ("v", layer.values)):
                    name = f"{kind}_cache.{index}"
                    caches[name] = max(caches[name], values.abs().max().item())
    return matmuls, dict(caches)
