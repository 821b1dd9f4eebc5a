"""Observe one decoder layer: inputs of its linears and experts, and the contents of its cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....graphs.names import EXPERT_WEIGHTS, cache_name, weight_name
from ....graphs.targets.range_shapes import expert_modules, linears
from ....plugins.errors import BuildError
from .range_methods import Method, Observer

EXPERTS = "peagle-calibration"  # name under which the experts function is registered in transformers

Array = np.ndarray[Any, Any]

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


class Watch:
    """The observers of one layer. Linears with the very same input tensor (q, k and v; gate and up) share one."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._observers: dict[str, Observer] = {}
        self._leaders: dict[str, str] = {}
        self._seen: list[tuple[Tensor, str]] = []
        self._experts: dict[int, str] = {}
        self._tokens: dict[str, Array] = {}
        self._squares: dict[str, Tensor] = {}
        self._rows: dict[str, int] = {}
        self._half = 0
        self._peaks: dict[str, list[float]] = {}

    @contextmanager
    def on(self, layer: nn.Module, prefix: str) -> Iterator[None]:
        """Observe ``layer`` inside the block; ``prefix`` is the prefix of its tensor names."""
        self._experts = {id(module): name for name, module in expert_modules(layer, prefix).items()}
        self._tokens = {
            name: np.zeros(module.num_experts, np.int64) for name, module in expert_modules(layer, prefix).items()
        }
        hooks = [
            module.register_forward_pre_hook(self._hook(weight_name(name)))
            for name, module in linears(layer, prefix).items()
        ]
        token = _watch.set(self)
        try:
            yield
        finally:
            _watch.reset(token)
            for hook in hooks:
                hook.remove()

    @contextmanager
    def sample(self, index: int) -> Iterator[None]:
        """Context of one forward pass, with sample ``index``."""
        self._half = index % 2
        try:
            yield
        finally:
            self._seen.clear()

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """``Cache.update`` as decoder layers call it: observes keys and values, and keeps none."""
        self.observe_tensor(cache_name("k", layer), key, self._method.for_caches)
        self.observe_tensor(cache_name("v", layer), value, self._method.for_caches)
        return key, value

    def get_seq_length(self, *_: Any) -> int:
        """Part of the cache protocol; the cache is always empty."""
        return 0

    def expert(self, module: nn.Module, weight: str, index: int, values: Tensor) -> None:
        """Observe the input of one weight of one expert, ``[tokens, width]``."""
        name = self._experts[id(module)]
        self.observe_tensor(_expert_key(f"{name}.{weight}", index), values)
        self._add_squares(f"{name}.{weight}", values)
        if weight == EXPERT_WEIGHTS[0]:
            self._tokens[name][index] += len(values)

    def ranges(self) -> dict[str, Array]:
        """Return ranges, float32, by the names of ``RangeShapes``; 0 for an expert without tokens."""
        return self._by_name({name: observer.amax() for name, observer in self._observers.items()}, 0.0)

    def clipped(self, ranges: Mapping[str, Array]) -> dict[str, Array]:
        """Return the share of observed values beyond ``ranges``, in their shape, for inputs that have any."""
        shares = {
            name: observer.clipped(float(self._range(ranges, name))) for name, observer in self._observers.items()
        }
        return {name: values for name, values in self._by_name(shares, 0.0).items() if values.any()}

    def peaks(self) -> dict[str, Array]:
        """Return the largest magnitude in samples of even and odd index, float32 ``[..., 2]``; 0 if none."""
        return self._by_name(self._peaks, [0.0, 0.0])

    def squares(self) -> dict[str, Array]:
        """Return the mean square of every input of a linear, float32 [columns], by the name of its weight.

        The experts of a layer share one: many of them see few tokens.
        """
        means = {n: (total / self._rows[n]).float().cpu().numpy() for n, total in self._squares.items()}
        return means | {name: means[leader] for name, leader in self._leaders.items()}

    def tokens(self) -> dict[str, Array]:
        """Return the number of tokens of each expert, int64 [E], by module."""
        return dict(self._tokens)

    def _by_name(self, observed: Mapping[str, Any], nothing: Any) -> dict[str, Array]:
        """Return values by the names of ``RangeShapes``: shared ones repeated, those of experts stacked."""
        values = {name: np.asarray(value, np.float32) for name, value in observed.items()}
        result = {name: values[leader] for name, leader in self._leaders.items()}
        result |= {name: value for name, value in values.items() if name not in result and "#" not in name}
        for module, tokens in self._tokens.items():
            for weight in EXPERT_WEIGHTS:
                keys = (_expert_key(f"{module}.{weight}", expert) for expert in range(len(tokens)))
                result[f"{module}.{weight}"] = np.array([values.get(key, nothing) for key in keys], np.float32)
        return result

    @staticmethod
    def _range(ranges: Mapping[str, Array], key: str) -> Any:
        name, _, expert = key.partition("#")
        return ranges[name][int(expert)] if expert else ranges[name]

    def _hook(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            leader = next((name for tensor, name in self._seen if tensor is args[0]), None)
            if leader is None:
                leader = name
                self._seen.append((args[0], name))
                self.enter(name, args[0])
            self._leaders[name] = leader

        return hook

    def enter(self, name: str, values: Tensor) -> None:
        """Observe the input of the linear with the weight ``name``, ``[..., columns]``."""
        self.observe_tensor(name, values)
        self._leaders[name] = name
        self._add_squares(name, values)

    def _add_squares(self, name: str, values: Tensor) -> None:
        rows = values.detach().reshape(-1, values.shape[-1])
        total = rows.double().square().sum(0)
        self._squares[name] = self._squares[name] + total if name in self._squares else total
        self._rows[name] = self._rows.get(name, 0) + len(rows)

    def observe_tensor(self, name: str, values: Tensor, method: Method | None = None) -> None:
        """Observe a tensor of any shape, by ``method`` or the watch's own.

        Raises ``BuildError`` if a value in it is not finite.
        """
        low, high = torch.aminmax(values.detach().float())
        peak = float(torch.maximum(-low, high))
        if not math.isfinite(peak):
            raise BuildError(
                f"the input of {name.partition('#')[0]} has NaN or infinite values",
                why="a weight is damaged, or values overflow the type that calibration computes in",
                fix="check that the checkpoint generates sensible text with transformers, and calibrate in float32",
            )
        if name not in self._observers:
            self._observers[name], self._peaks[name] = (method or self._method).observer(), [0.0, 0.0]
        self._peaks[name][self._half] = max(self._peaks[name][self._half], peak)
        self._observers[name].observe(values, peak)


def watched_experts(self: Any, hidden: Tensor, experts: Tensor, scores: Tensor) -> Tensor:
    """An ``ExpertsInterface`` function: the modeling code's loop over experts, with optional observation.

    hidden ``[N,H]``, experts and scores ``[N,A]``; performs the same operations as transformers' eager experts.
    """
    watch = _watch.get()
    result = torch.zeros_like(hidden)
    for expert in range(self.num_experts):
        rank, token = torch.where(expert == experts.T)
        if not len(token):
            continue
        inputs = hidden[token]
        if watch:
            watch.expert(self, "gate_up_proj", expert, inputs)
        gated = self._apply_gate(_project(self, "gate_up_proj", expert, inputs))
        if watch:
            watch.expert(self, "down_proj", expert, gated)
        output = _project(self, "down_proj", expert, gated) * scores[token, rank, None]
        result.index_add_(0, token, output.to(result.dtype))
    return result


def register() -> None:
    """Register ``EXPERTS`` with transformers."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, watched_experts)


def _project(self: Any, name: str, expert: int, inputs: Tensor) -> Tensor:
    weight = getattr(self, name)[expert]
    output = inputs @ weight if self.is_transposed else nn.functional.linear(inputs, weight)
    return output + getattr(self, f"{name}_bias")[expert] if self.has_bias else output


def _expert_key(name: str, index: int) -> str:
    return f"{name}#{index}"
