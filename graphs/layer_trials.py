"""Trace a few layers of a target to estimate the size of its whole graph.

Layers of one kind have the same nodes (``Family.layer_kinds``). The whole graph therefore has the nodes of a base, with
layers of every kind, plus for each further layer the nodes that another layer of its kind adds. Every trial is a subset
of the target's own layers that includes the last one, which some modeling code treats differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from json import loads
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from .lowering import lower
from .lowering.shared_passes import ROPE_METADATA
from .targets import TargetSpec, family_for
from .targets.family import count_kinds
from .targets.skeleton import Skeleton
from .trace import Dtype, trace_target

if TYPE_CHECKING:
    from .lowering import Lowering

_CACHE = 64  # arbitrary: nodes do not depend on it, and table bytes are proportional to it
_HALVES = ("cos", "sin")
_TAPS = 2  # one node joins the streams of any number of taps except one


@dataclass(frozen=True)
class LayerTrial:
    """A target with a few layers: the number of each kind, and its semantic graph."""

    layers: Mapping[str, int]
    model: ir.Model
    _lowered: dict[Lowering, ir.Model] = field(default_factory=dict, init=False, repr=False, compare=False)

    def lowered(self, lowering: Lowering) -> ir.Model:
        """Lower a copy of the trial's graph, once; the semantic one stays unchanged. The result is to be read only."""
        if lowering not in self._lowered:
            copy = ir.from_proto(ir.to_proto(self.model))
            self._lowered[lowering] = lower(copy, lowering, cache_length=_CACHE).model
        return self._lowered[lowering]


@dataclass(frozen=True)
class Trials:
    """The trials of one target: ``more[kind]`` is ``base`` with another layer of that kind.

    ``layers`` counts the whole target's layers by kind.
    """

    layers: Mapping[str, int]
    base: LayerTrial
    more: Mapping[str, LayerTrial]

    def rewritten(self, rewrite: Callable[[ir.Model], None]) -> Trials:
        """Return these trials with another semantic graph, which ``rewrite`` makes of a copy in place."""

        def other(trial: LayerTrial) -> LayerTrial:
            model = ir.from_proto(ir.to_proto(trial.model))
            rewrite(model)
            return replace(trial, model=model)

        return replace(self, base=other(self.base), more={kind: other(trial) for kind, trial in self.more.items()})

    def operators(self, lowering: Lowering | None = None) -> dict[str, int]:
        """Count each operator in the whole graph, semantic or lowered; most frequent first."""
        return dict((+self._whole_model(lambda trial: _operators(trial, lowering))).most_common())

    def count(self, counted: Callable[[ir.Model], int], lowering: Lowering) -> int:
        """Return what ``counted`` gives for the whole lowered graph, if it is a sum over nodes of each layer."""
        return self._whole_model(lambda trial: Counter({"": counted(trial.lowered(lowering))}))[""]

    def _whole_model(self, counted: Callable[[LayerTrial], Counter[str]]) -> Counter[str]:
        base = counted(self.base)
        total = Counter(base)
        for kind, trial in self.more.items():
            counts, times = counted(trial), self.layers[kind] - self.base.layers[kind]
            for name in {*base, *counts}:
                total[name] += times * (counts[name] - base[name])
        return total

    def table_bytes(self, lowering: Lowering) -> int:
        """Return the bytes of the rotary tables of the lowered graph per position."""
        tables = {
            f"{path}.{suffix}" for path in loads(self.base.model.metadata_props[ROPE_METADATA]) for suffix in _HALVES
        }
        values = self.base.lowered(lowering).graph.initializers.items()
        return sum(int(value.const_value.nbytes) for name, value in values if name in tables) // _CACHE

    @property
    def traced_layers(self) -> int:
        """The number of layers in the base."""
        return sum(self.base.layers.values())


Step = Callable[[str], AbstractContextManager[object]]


def run_trials(
    config: Mapping[str, Any], spec: TargetSpec, dtype: Dtype = "float32", *, step: Step = nullcontext
) -> Trials:
    """Trace a few layers of the target, with taps if it has any. Takes seconds and needs no weights.

    ``step`` receives the description of each step, and is the context for it.
    """
    family = family_for(config)
    kinds = family.layer_kinds(family.text(config))
    taps = min(len(spec.taps), _TAPS)

    def trial(layers: Sequence[int]) -> LayerTrial:
        part = family.keeping(config, layers) | {"architectures": config["architectures"]}
        shortened = replace(family.describe(part), taps=tuple(range(taps)))
        with step(f"trace {len(layers)} of {len(kinds)} layers"):
            model = trace_target(Skeleton(part), shortened, dtype)
        return LayerTrial(count_kinds([kinds[i] for i in layers]), model)

    base_ids = base_layers(kinds, taps)
    spare = {
        kind: [i for i, other in enumerate(kinds) if other == kind and i not in base_ids] for kind in count_kinds(kinds)
    }
    base = trial(base_ids)
    more = {kind: trial(sorted([*base_ids, free[0]])) for kind, free in spare.items() if free}
    return Trials(count_kinds(kinds), base, more)


def base_layers(kinds: Sequence[str], at_least: int) -> list[int]:
    """Choose the last layer of every kind, and then the first ones until there are ``at_least`` layers."""
    last = {kind: i for i, kind in enumerate(kinds)}
    others = [i for i in range(len(kinds)) if i not in last.values()]
    return sorted([*last.values(), *others[: max(at_least - len(last), 0)]])


def _operators(trial: LayerTrial, lowering: Lowering | None) -> Counter[str]:
    model = trial.lowered(lowering) if lowering else trial.model
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type) for node in model.graph)
