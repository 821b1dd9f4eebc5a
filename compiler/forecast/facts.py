"""What a plan says, as one record that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..hardware.gpus import Verdict
from .weight_bytes import WeightLine

TABLES = "rotary tables"
_NOT_WEIGHTS = ("scales", TABLES)


@dataclass(frozen=True)
class Drafter:
    """The head, as far as it is known: None stands for what only its checkpoint will tell."""

    precision: str
    count: int | None
    bytes: int | None
    note: str


@dataclass(frozen=True)
class KvCache:
    """Bytes per token, and per slot of T tokens."""

    precision: str
    target_token_bytes: int
    drafter_token_bytes: int | None
    target_slot_bytes: int
    drafter_slot_bytes: int | None


@dataclass(frozen=True)
class Graph:
    """Operators of the target's graph, extrapolated from ``traced_layers`` layers and one more of each kind."""

    traced_layers: int
    semantic: int
    lowered: int
    semantic_operators: Mapping[str, int]
    lowered_operators: Mapping[str, int]


@dataclass(frozen=True)
class HostMemory:
    """Upper figures for the process that traces and writes."""

    libraries_bytes: int
    buffer_bytes: int
    graph_bytes: int

    @property
    def bytes(self) -> int:
        """All of it at once."""
        return self.libraries_bytes + self.buffer_bytes + self.graph_bytes


@dataclass(frozen=True)
class Time:
    """Upper figures for this machine: the trace by the trials, the weights by a stated rate."""

    trace_seconds: float
    weight_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Plan:
    """Everything ``--dry-run`` says. ``origin`` is where the facts of the target came from."""

    model: str
    origin: str
    architecture: str
    layers: Mapping[str, int]
    precision: str
    recipe: str
    lowering: str
    max_seq_len: int
    num_speculative_tokens: int
    cache_length: int
    weights: tuple[WeightLine, ...]
    drafter: Drafter
    kv: KvCache
    graph: Graph
    host: HostMemory
    time: Time
    gpu: Verdict | None
    notes: tuple[str, ...]

    @property
    def weight_count(self) -> int:
        """The target's own weights, without scales and tables."""
        return sum(each.count for each in self.weights if each.role not in _NOT_WEIGHTS)

    @property
    def weight_bytes(self) -> int:
        """Every line of ``weights``."""
        return sum(each.bytes for each in self.weights)

    def as_json(self) -> dict[str, Any]:
        """Every field, and the sums."""
        content = asdict(self) | {"weight_count": self.weight_count, "weight_bytes": self.weight_bytes}
        content["host"]["bytes"] = self.host.bytes
        if self.gpu:
            content["gpu"]["fits"] = self.gpu.fits
        return content
