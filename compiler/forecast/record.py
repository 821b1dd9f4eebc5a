"""What a forecast says, as one record that JSON can hold, and what fits into a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...plugins.errors import PeagleError
from ..hardware.gpus import Gpu, lacks
from ..needs.disk import Disk
from ..needs.room import Need
from ..needs.weight_bytes import WeightLine
from ..precision.recipes import MULTIPLIED

if TYPE_CHECKING:
    from ..needs.build_work import BuildWork  # which needs the packages that graphs do

TABLES = "rotary tables"
_NOT_WEIGHTS = ("scales", TABLES)
RESERVED_FOR = "activations, workspaces, the driver and fragments"
_RESERVE = 0.1


@dataclass(frozen=True)
class DrafterSize:
    """The head, as far as it is known: None stands for what only its checkpoint will tell."""

    precision: str
    count: int | None
    bytes: int | None
    note: str


@dataclass(frozen=True)
class KvCache:
    """Caches in bytes per token, and per slot of T tokens."""

    precision: str
    target_token_bytes: int
    drafter_token_bytes: int | None
    target_slot_bytes: int
    drafter_slot_bytes: int | None


@dataclass(frozen=True)
class GraphSize:
    """Operators of the target's graph, extrapolated from ``traced_layers`` layers and one more of each kind."""

    traced_layers: int
    semantic: int
    lowered: int
    semantic_operators: Mapping[str, int]
    lowered_operators: Mapping[str, int]


@dataclass(frozen=True)
class HostMemory:
    """Memory of the process that traces and writes, about, on the safe side of what was measured."""

    libraries_bytes: int
    buffer_bytes: int
    graph_bytes: int

    @property
    def bytes(self) -> int:
        """Memory for all of it at once."""
        return self.libraries_bytes + self.buffer_bytes + self.graph_bytes


@dataclass(frozen=True)
class Time:
    """Seconds on this machine, about: the trace by the trials, the weights by a stated rate."""

    trace_seconds: float
    weight_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Verdict:
    """Whether weights and the caches of ``slots`` slots fit beside the reserve.

    ``most_slots`` is how many would; ``short_bytes`` what is missing for those asked for, 0 when they fit. ``refusal``
    says why the GPU cannot run it whatever the size; it is empty otherwise.
    """

    gpu: Gpu
    reserve_bytes: int
    weight_bytes: int
    slot_bytes: int
    slots: int
    most_slots: int
    short_bytes: int
    refusal: str

    @property
    def fits(self) -> bool:
        """Whether the slots asked for fit, on a GPU that can run it."""
        return not self.short_bytes and not self.refusal


@dataclass(frozen=True)
class Outcome:
    """How the same command would end here without ``--dry-run``: its exit code, and why if it is not 0.

    The exit code is 0 without a known blocker; ``why`` then names what ``--ignore-limits`` overrides.
    """

    exit_code: int = 0
    why: str = ""

    @classmethod
    def of(cls, error: PeagleError | None, *, ignored: bool = False) -> Outcome:
        """The end with an error, or in spite of one that is ``ignored``."""
        if error is None:
            return cls()
        return cls(0, f"{error.what}; {error.why}") if ignored else cls(error.exit_code, error.in_a_line)


@dataclass(frozen=True)
class Forecast:
    """Everything ``--dry-run`` says. ``origin`` is where the facts of the target came from.

    ``refusal`` and ``multiplied`` are said before all else: too little would be multiplied in the recipe's type, and
    a build would be refused; or less than is stored in it. ``disk``, ``needs`` and ``outcome`` are for a request that
    says where to write.
    There is room for ``num_speculative_tokens`` drafts; a round has ``drafts_asked``, with None as many as pay.
    """

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
    drafter: DrafterSize
    kv: KvCache
    graph: GraphSize
    host: HostMemory
    time: Time
    work: BuildWork
    gpu: Verdict | None
    notes: tuple[str, ...]
    multiplied: str = ""
    refusal: str = ""
    disk: Disk | None = None
    needs: tuple[Need, ...] = ()
    outcome: Outcome = Outcome()
    drafts_asked: int | None = None

    @property
    def drafts(self) -> str:
        """How many drafts a round verifies, in words."""
        most, asked = self.num_speculative_tokens, self.drafts_asked
        if most == 0:
            return "no drafts"
        if asked is None:
            return f"as many drafts a round as pay, room for {most}"
        return f"{asked} drafts a round" if asked == most else f"{asked} drafts a round, room for {most}"

    @property
    def weight_count(self) -> int:
        """The target's own weights, without scales and tables."""
        return sum(each.count for each in self.weights if each.role not in _NOT_WEIGHTS)

    @property
    def weight_bytes(self) -> int:
        """The bytes of every line of ``weights``."""
        return sum(each.bytes for each in self.weights)

    def as_json(self) -> dict[str, Any]:
        """Every field, and the sums."""
        content = (
            ({"refusal": self.refusal} if self.refusal else {})
            | ({MULTIPLIED: self.multiplied} if self.multiplied else {})
            | asdict(self)
            | {"weight_count": self.weight_count, "weight_bytes": self.weight_bytes}
        )
        content["host"]["bytes"] = self.host.bytes
        if self.disk:
            content["disk"]["short_bytes"] = self.disk.short_bytes
        if self.gpu:
            content["gpu"]["fits"] = self.gpu.fits
        return content


def fit(gpu: Gpu, types: Collection[str], weight_bytes: int, slot_bytes: int, slots: int = 1) -> Verdict:
    """What ``gpu`` holds of an engine with this many bytes of weights, and per slot, that computes with ``types``."""
    reserve = int(gpu.memory_bytes * _RESERVE)
    room = gpu.memory_bytes - reserve - weight_bytes
    refusal = "; ".join(f"{reason}: plan it without {kind}" for kind in types if (reason := lacks(gpu.sm, kind)))
    return Verdict(
        gpu=gpu,
        reserve_bytes=reserve,
        weight_bytes=weight_bytes,
        slot_bytes=slot_bytes,
        slots=slots,
        most_slots=max(room // slot_bytes, 0),
        short_bytes=max(slots * slot_bytes - room, 0),
        refusal=refusal,
    )
