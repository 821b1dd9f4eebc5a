"""The records that ``engine.json`` is made of: its fields are these dataclasses' own, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...plugins.graph_contract import ANCESTORS, CANDIDATES, HIDDEN, POSITIONS, cache_width
from ...plugins.number_types import BY_NAME

_PIECE = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """Size and content hash of one file of the folder."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, advance: Callable[[int], object] = lambda _: None) -> FileEntry:
        """Read a file; ``advance`` is told of the bytes as they are read."""
        digest, size, piece = hashlib.sha256(), 0, memoryview(bytearray(_PIECE))
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                digest.update(piece[:count])
                size += count
                advance(count)
        return cls(size, digest.hexdigest())


@dataclass(frozen=True)
class Origin:
    """The checkpoint one half was built from: the name it was asked for by, its content hash, where it was read."""

    id: str
    revision: str
    source: str
    architecture: str


@dataclass(frozen=True)
class Cache:
    """One key/value cache pair of a graph: [rows, heads, cache_length, head_dim], of the graph's type unless said."""

    heads: int
    head_dim: int
    dtype: str = ""

    def position_bytes(self, wide: str) -> int:
        """The bytes that a position takes in both; ``wide`` is the type of the graph."""
        return 2 * self.heads * BY_NAME[self.dtype or wide].bytes(self.width)

    @property
    def width(self) -> int:
        """How many numbers it has for each position of a head."""
        return cache_width(self.head_dim, self.dtype)


VERIFY, PREFILL = "verify", "prefill"  # the profiles of every plan
ONE = "one"  # that of plans for several rows, for a round of one


@dataclass(frozen=True)
class Profile:
    """Sizes that an optimisation profile of a TensorRT plan covers, each (least, usual, most).

    ``rows`` B, ``columns`` S of the window, ``emitted`` E = K + 1, ``positions`` R of the caches that are read; none
    of these where a plan reads them whole.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    emitted: tuple[int, ...]
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlanTensor:
    """An input or output of a TensorRT plan as its parser saw it; -1 is a size that a profile bounds."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PlanRecord:
    """A TensorRT plan, as counted when it was built: profiles by index, layers by type, our plugins, its I/O."""

    profiles: tuple[Profile, ...]
    layers: Mapping[str, int]
    plugins: Mapping[str, int]
    tensors: tuple[PlanTensor, ...]


@dataclass(frozen=True)
class Part:
    """One compiled graph: its file (posix path inside the folder) and its I/O contract, by name and in order.

    ``plan`` is there when the file is a TensorRT plan.
    """

    origin: Origin
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    caches: tuple[Cache, ...]
    plan: PlanRecord | None = None

    @property
    def is_autoregressive(self) -> bool:
        """Whether it is a drafter that makes a pass for every draft, and so is fed its own hidden state."""
        return HIDDEN in self.inputs

    @property
    def verifies_trees(self) -> bool:
        """Whether it is a target that is told which columns of a window each of them sees."""
        return ANCESTORS in self.inputs

    @property
    def reads_positions(self) -> bool:
        """Whether it is told how much of its caches to read."""
        return POSITIONS in self.inputs

    @property
    def names_candidates(self) -> bool:
        """Whether it is a drafter that gives several ids for each position."""
        return CANDIDATES[0] in self.outputs


@dataclass(frozen=True)
class BackendRecord:
    """What runs the graphs, the versions of everything that made them, and the GPUs (``sm_120``) that plans are for."""

    name: str
    lowering: str
    versions: Mapping[str, str]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasuredRounds:
    """Rounds of one text as the build measured them, by K = 0, 1, ...: the tokens that one brought, and its cost.

    A cost is in rounds of K = 0. It is of the machine that built, and so where a policy begins and not where it stays.
    """

    tokens: tuple[float, ...]
    costs: tuple[float, ...]


@dataclass(frozen=True)
class Speculation:
    """Drafts per round: the default, the most that the caches have room for, and the depth the head was trained to.

    ``adapts`` says that the default is where rounds begin, and K follows what pays, because nobody asked for that one.
    ``measured`` is there where the build chose the default by measuring.
    """

    num_speculative_tokens: int
    max_num_speculative_tokens: int
    trained_depth: int | None
    adapts: bool = False
    measured: MeasuredRounds | None = None


@dataclass(frozen=True)
class Shapes:
    """Sizes the runtime allocates by."""

    max_seq_len: int
    cache_length: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """One thing that was verified: the level (``body parity aot kernel engine b200``) and how."""

    level: str
    how: str
