"""Device memory: blocks of tensors, and memory that all passes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ....plugins.graph_contract import CANDIDATES, HIDDEN, POLICY, POSITIONS, TENSORS, WIDE, cache_names, written
from ....plugins.number_types import BY_NAME
from ...folder.manifest import Manifest
from ...folder.records import Part
from .device import ALIGNMENT, Box, Device

# Large outputs that only the next pass reads; every pass writes them to the same place.
SCRATCH = ("aux_hidden", "logits")

Addresses = Mapping[str, int]
Span = tuple[int, int]  # address and size


def itemsize(dtype: str) -> int:
    """Return the bytes per number of this type."""
    return BY_NAME[dtype].bytes(1)


@dataclass(frozen=True)
class WindowSizes:
    """B rows, S columns of the window, E emitted columns, R cache positions that are read; K is E - 1."""

    rows: int
    columns: int
    emitted: int
    positions: int = 0


class Sizer:
    """Shapes and sizes of every tensor except the caches, by name.

    ``wide`` is the type of features and logits, and the default type of caches.
    """

    def __init__(self, manifest: Manifest) -> None:
        shapes, plan = manifest.shapes, manifest.target.plan
        self.wide = next((t.dtype for t in plan.tensors if t.name == "logits"), "float16") if plan else "float16"
        self.vocab_size = shapes.vocab_size
        self._fixed = {
            "F": len(shapes.taps) * shapes.hidden_size,
            "V": shapes.vocab_size,
            "Vd": shapes.draft_vocab_size,
        }
        drafter = manifest.drafter.plan if manifest.drafter else None
        if drafter and (hidden := [each.shape[-1] for each in drafter.tensors if each.name == HIDDEN]):
            self._fixed["H"] = hidden[0]
        if drafter and (named := [each.shape[-1] for each in drafter.tensors if each.name == CANDIDATES[0]]):
            self._fixed["C"] = named[0]

    def shape(self, name: str, sizes: WindowSizes) -> tuple[int, ...]:
        """Return the shape of a tensor at these sizes."""
        dims = {**self._fixed, "B": sizes.rows, "S": sizes.columns, "E": sizes.emitted, "E-1": sizes.emitted - 1}
        dims["R"] = sizes.positions
        return tuple(dims[dim] for dim in TENSORS[name].dims)

    def bytes(self, name: str, sizes: WindowSizes) -> int:
        """Return the bytes of a tensor at these sizes."""
        dtype = TENSORS[name].dtype
        return math.prod(self.shape(name, sizes)) * itemsize(self.wide if dtype == WIDE else dtype)

    def shapes(self, names: Iterable[str], sizes: WindowSizes) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of those of ``names`` that are not caches."""
        return {name: self.shape(name, sizes) for name in names if name in TENSORS}


class Block:
    """Several tensors in one allocation, in the given order, each at an aligned address."""

    def __init__(self, device: Device, sizes: Mapping[str, int]) -> None:
        self.offsets: dict[str, int] = {}
        self.size = 0
        for name, size in sizes.items():
            self.offsets[name] = self.size
            self.size += -(-size // ALIGNMENT) * ALIGNMENT
        self.base = device.allocate(self.size)
        self.addresses = {name: self.base + offset for name, offset in self.offsets.items()}

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]


def tensor_block(device: Device, sizer: Sizer, names: Iterable[str], sizes: WindowSizes) -> Block:
    """Return a block of the contract's tensors."""
    return Block(device, {name: sizer.bytes(name, sizes) for name in names})


def scratch_block(device: Device, sizer: Sizer, names: Iterable[str], largest: Sequence[WindowSizes]) -> Block:
    """Return a block of tensors that each have room for passes of any of these sizes."""
    return Block(device, {name: max(sizer.bytes(name, sizes) for sizes in largest) for name in names})


class Memory:
    """Memory shared by all passes over ``slots`` rows. ``largest`` are the sizes of the largest passes.

    A drafter has caches and large outputs of its own (``PlanDrafter``). Caches start as zeros, which are also valid
    quantized codes: unwritten positions must hold finite numbers.
    """

    def __init__(self, device: Device, manifest: Manifest, slots: int, largest: Iterable[WindowSizes]) -> None:
        self.device, self.slots = device, slots
        self.sizer = Sizer(manifest)
        self.numbers_length = manifest.shapes.max_seq_len + 1
        # Idle rows point here, after everything that a request can hold, because their passes write as well.
        self.parking = manifest.shapes.max_seq_len
        self.cache_length = manifest.shapes.cache_length
        self.caches = Caches(device, manifest.target, slots, self.cache_length, self.sizer.wide)
        self.numbers = device.allocate(slots * self.numbers_length * itemsize("float32"))
        self.positions = _counted(device, manifest.shapes.cache_length)
        self.policy = tensor_block(device, self.sizer, POLICY, WindowSizes(slots, 1, 2))
        self.largest = tuple(largest)
        self.scratch = scratch_block(device, self.sizer, SCRATCH, self.largest)

    @property
    def shared(self) -> Addresses:
        """The bindings of every pass over the windows of any slot: large outputs, and the sequence of positions."""
        return {**self.scratch.addresses, POSITIONS: self.positions}

    def numbers_of(self, slot: int) -> int:
        """Return the address of a slot's table of random numbers."""
        return self.numbers + slot * self.numbers_length * itemsize("float32")


class Caches:
    """Key and value caches of one half, ``[slots, heads, T, head_dim]`` each; input and output share an address."""

    def __init__(self, device: Device, part: Part, slots: int, length: int, wide: str) -> None:
        names, pairs = cache_names(len(part.caches)), (*part.caches, *part.caches)
        caches = dict(zip(names, pairs, strict=True))
        self._shapes: dict[str, tuple[int, ...]] = {
            name: (slots, cache.heads, length, cache.head_dim) for name, cache in caches.items()
        }
        self._rows = {
            name: math.prod(self._shapes[name][1:]) * itemsize(cache.dtype or wide) for name, cache in caches.items()
        }
        if slots > 1 and any(size % ALIGNMENT for size in self._rows.values()):
            raise EnvironmentProblem(
                "this engine supports only one request at a time",
                why=f"TensorRT requires the size of a cache row to be a multiple of {ALIGNMENT} bytes, and this engine "
                "has rows of other sizes",
                fix="load the engine with max_batch_size 1, or rebuild it with this version of peagle-compile",
            )
        # Caches of one shape follow one another, so that one copy takes positions of all of them.
        alike: dict[object, list[str]] = {}
        for name, cache in caches.items():
            alike.setdefault(name if self._rows[name] % ALIGNMENT else cache, []).append(name)
        self._stacks = [
            _CacheStack(device, names, caches[names[0]].heads, length, slots, self._rows[names[0]])
            for names in alike.values()
        ]
        self._addresses = {name: address for stack in self._stacks for name, address in stack.addresses.items()}

    def first_rows(self, rows: int) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
        """Return shapes and addresses of the first ``rows`` slots' cache rows."""
        shapes = {name: (rows, *shape[1:]) for name, shape in self._shapes.items()}
        return shapes, _in_place(self._addresses)

    def row(self, slot: int) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
        """Return shapes and addresses of one slot's cache rows, for a pass of one row."""
        shapes = {name: (1, *shape[1:]) for name, shape in self._shapes.items()}
        return shapes, _in_place({name: at + slot * self._rows[name] for name, at in self._addresses.items()})

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of one slot, in all caches."""
        return sum(stack.position_bytes for stack in self._stacks)

    def boxes(self, slot: int, start: int, count: int) -> list[tuple[Box, tuple[int, int, int]]]:
        """Return where ``count`` positions of a slot lie, and the width, height and depth of each box."""
        return [stack.box(slot, start, count) for stack in self._stacks]

    def entries(self) -> list[EntryStack]:
        """Return all caches as the stacks of entries that ``CloseUp`` moves."""
        return [stack.entries() for stack in self._stacks]


@dataclass(frozen=True)
class EntryStack:
    """Buffers of one shape at an address, one after the other: for every row, head and position so many bytes."""

    address: int
    buffers: int
    rows: int
    heads: int
    positions: int
    size: int


class _CacheStack:
    """Caches of one shape in one allocation: ``[caches, slots, heads, length, head_dim]``."""

    def __init__(self, device: Device, names: Sequence[str], heads: int, length: int, slots: int, row: int) -> None:
        self._heads, self._slots, self._count, self._row = heads, slots, len(names), row
        self._head, self._position = row // heads, row // heads // length
        self._base = device.allocate(len(names) * slots * row)
        self.addresses = {name: self._base + at * slots * row for at, name in enumerate(names)}

    @property
    def position_bytes(self) -> int:
        return self._count * self._heads * self._position

    def entries(self) -> EntryStack:
        """Return the whole stack."""
        length = self._head // self._position
        return EntryStack(self._base, self._count, self._slots, self._heads, length, self._position)

    def box(self, slot: int, start: int, count: int) -> tuple[Box, tuple[int, int, int]]:
        """Return the box of ``count`` positions of a slot, a row for each head and a plane for each cache."""
        address = self._base + slot * self._row + start * self._position
        return Box(address, self._head, self._slots * self._heads), (count * self._position, self._heads, self._count)


def _counted(device: Device, length: int) -> int:
    """Return the address of the sequence 0, 1, ..., from which passes of any length read a prefix."""
    numbers = device.pinned((length,), np.int64)
    numbers[:] = np.arange(length)
    address = device.allocate(numbers.nbytes)
    device.upload(address, numbers)
    return address


def _in_place(addresses: Addresses) -> dict[str, int]:
    return {**addresses, **{written(name): address for name, address in addresses.items()}}
