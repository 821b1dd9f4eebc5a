"""Records of the manifest. The JSON fields of ``engine.json`` are the fields of these dataclasses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...plugins.graph_contract import (
    ANCESTORS,
    CANDIDATES,
    HIDDEN,
    MIN_SIZES,
    PARTIAL_FIELDS,
    POSITIONS,
    PROFILE_FIELDS,
    SKIPPED,
    cache_width,
)
from ...plugins.number_types import BY_NAME

_PIECE = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """Size and content hash of one file of the folder."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, advance: Callable[[int], object] = lambda _: None) -> FileEntry:
        """Read a file; ``advance`` is called with the number of bytes read."""
        digest, size, piece = hashlib.sha256(), 0, memoryview(bytearray(_PIECE))
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                digest.update(piece[:count])
                size += count
                advance(count)
        return cls(size, digest.hexdigest())


@dataclass(frozen=True)
class Origin:
    """The checkpoint of one half: its name on the command line, its content hash, and the folder it was read from."""

    id: str
    revision: str
    source: str
    architecture: str


@dataclass(frozen=True)
class Cache:
    """One key/value cache pair of a graph: [rows, heads, cache_length, head_dim], by default of the graph's type."""

    heads: int
    head_dim: int
    dtype: str = ""

    def position_bytes(self, wide: str) -> int:
        """Return the bytes per position of both caches; ``wide`` is the type of the graph."""
        return 2 * self.heads * BY_NAME[self.dtype or wide].bytes(self.width)

    @property
    def width(self) -> int:
        """Numbers per position of a head."""
        return cache_width(self.head_dim, self.dtype)


VERIFY, PREFILL = "verify", "prefill"  # profiles of every plan
ONE = "one"  # profile of rounds with one row, in plans for several rows
# Profiles of an autoregressive drafter's passes after the first of a round, for all rows, and for one of several.
FURTHER, FURTHER_ONE = "further", "further one"


@dataclass(frozen=True)
class Profile:
    """Sizes that an optimization profile of a TensorRT plan covers, each (min, opt, max).

    ``rows`` B, ``columns`` S of the window, ``emitted`` E = K + 1, and ``positions`` R of the caches that are read,
    empty if the plan always reads whole caches. ``aux_columns`` A are those with the target's features, for an
    autoregressive drafter only; its further passes have none.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    emitted: tuple[int, ...]
    positions: tuple[int, ...] = ()
    aux_columns: tuple[int, ...] = ()

    def wrong(self) -> list[str]:
        """Return the fields that are not three ascending sizes from 1 on, or from a minimum in ``MIN_SIZES``."""
        return [field for field in PROFILE_FIELDS.values() if not self._fits(field)]

    def _fits(self, field: str) -> bool:
        sizes = getattr(self, field)
        if field in PARTIAL_FIELDS and not sizes:
            return True
        return len(sizes) == 3 and MIN_SIZES.get(field, 1) <= sizes[0] <= sizes[1] <= sizes[2]


@dataclass(frozen=True)
class PlanTensor:
    """An input or output of a TensorRT plan as its parser reported it; -1 is a dynamic size."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PlanRecord:
    """A TensorRT plan as built: profiles by index, layer counts by type, the project's plugins, inputs and outputs.

    ``tuned_on`` is the name of the GPU on which TensorRT timed kernels; TensorRT-RTX times none.
    """

    profiles: tuple[Profile, ...]
    layers: Mapping[str, int]
    plugins: Mapping[str, int]
    tensors: tuple[PlanTensor, ...]
    tuned_on: str = ""


@dataclass(frozen=True)
class Part:
    """One compiled graph: its file (posix path inside the folder), and its inputs and outputs, by name and in order.

    ``plan`` is set if the file is a TensorRT plan.
    """

    origin: Origin
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    caches: tuple[Cache, ...]
    plan: PlanRecord | None = None

    @property
    def is_autoregressive(self) -> bool:
        """Return True if this is an autoregressive drafter, with its own hidden state as input."""
        return HIDDEN in self.inputs

    @property
    def verifies_trees(self) -> bool:
        """Return True if this is a target with an input for draft trees."""
        return ANCESTORS in self.inputs or self.makes_paths

    @property
    def makes_paths(self) -> bool:
        """Return True if this is a target that reads trees grown on the device and returns the accepted path."""
        return SKIPPED in self.inputs

    @property
    def reads_positions(self) -> bool:
        """Return True if this graph has an input for the cache length to read."""
        return POSITIONS in self.inputs

    @property
    def names_candidates(self) -> bool:
        """Return True if this is a drafter with several candidates per position."""
        return CANDIDATES[0] in self.outputs


@dataclass(frozen=True)
class BackendRecord:
    """The backend, the versions of all packages that built the graphs, and the GPUs (``sm_120``) that plans support."""

    name: str
    lowering: str
    versions: Mapping[str, str]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchCosts:
    """Costs of rounds of several texts (``rows``) by K = 0, 1, ..., relative to a round of as many texts and K = 0."""

    rows: int
    costs: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredRounds:
    """Rounds of one text as measured by the build, by K = 0, 1, ...: mean tokens and cost.

    Costs are relative to a round of K = 0. They come from the build machine, so a policy only starts from them.
    ``batches`` are those of several texts.
    """

    tokens: tuple[float, ...]
    costs: tuple[float, ...]
    batches: tuple[BatchCosts, ...] = ()


@dataclass(frozen=True)
class Speculation:
    """Drafts per round: the default, the maximum that the caches have room for, and the head's trained depth.

    If ``adapts``, the default is only the initial K, because the user did not set one. ``measured`` is set if the
    build chose the default by measuring.
    """

    num_speculative_tokens: int
    max_num_speculative_tokens: int
    trained_depth: int | None
    adapts: bool = False
    measured: MeasuredRounds | None = None


@dataclass(frozen=True)
class AddedDrafter:
    """A drafter that was added to a finished engine: its draft ``method``, graph and sizes.

    ``precision`` is the number type of its matrices.
    """

    method: str
    part: Part
    speculation: Speculation
    draft_vocab_size: int
    precision: str


@dataclass(frozen=True)
class Shapes:
    """Sizes that determine the runtime's allocations."""

    max_seq_len: int
    cache_length: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """One verification result: the level (``body parity emulated ptx aot kernel engine b200``) and the method."""

    level: str
    how: str
