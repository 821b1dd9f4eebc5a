"""Device memory: blocks of tensors, and what all passes share (caches, random numbers, policies, large outputs)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ....plugins.errors import EnvironmentProblem
from ...folder.manifest import Manifest
from ...folder.records import Part
from ...requests.params import POLICY
from .contract import ITEMSIZE, Contract, Sizes, cache_itemsizes, cache_shapes
from .device import ALIGNMENT, Device

# Large, and read by nobody but the next pass: every pass writes them to the same place.
SCRATCH = ("aux_hidden", "logits", "draft_logits", "draft_ids")

Addresses = Mapping[str, int]


class Block:
    """Several things in one allocation, in the order given, each at an aligned address."""

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


def tensor_block(device: Device, contract: Contract, names: Iterable[str], sizes: Sizes) -> Block:
    """A block of the contract's tensors."""
    return Block(device, {name: contract.bytes(name, sizes) for name in names})


class Memory:
    """What every pass over ``slots`` rows shares. ``largest`` are the sizes of the largest passes.

    Caches begin as zeros, which are zeros as codes too: what no token was written to must at least be numbers.
    """

    def __init__(self, device: Device, manifest: Manifest, slots: int, largest: Iterable[Sizes]) -> None:
        self.device, self.slots = device, slots
        self.contract = Contract(manifest)
        self.numbers_length = manifest.shapes.max_seq_len + 1
        # Where an idle row points: its pass writes there all the same, behind everything a request can hold.
        self.parking = manifest.shapes.max_seq_len
        self.caches = {
            half: Caches(device, part, slots, manifest.shapes.cache_length, self.contract.wide)
            for half, part in (("target", manifest.target), ("drafter", manifest.drafter))
        }
        self.numbers = device.allocate(slots * self.numbers_length * ITEMSIZE["f32"])
        self.policy = tensor_block(device, self.contract, POLICY, Sizes(slots, 1, 2))
        self.scratch = Block(
            device, {name: max(self.contract.bytes(name, sizes) for sizes in largest) for name in SCRATCH}
        )

    def numbers_of(self, slot: int) -> int:
        """Address of a slot's table of random numbers."""
        return self.numbers + slot * self.numbers_length * ITEMSIZE["f32"]


class Caches:
    """Key and value caches of one half, ``[slots, heads, T, head_dim]`` each; input and output share an address."""

    def __init__(self, device: Device, part: Part, slots: int, length: int, wide: str) -> None:
        self._shapes, sizes = cache_shapes(part, slots, length), cache_itemsizes(part, wide)
        self._rows = {name: math.prod(shape[1:]) * sizes[name] for name, shape in self._shapes.items()}
        if slots > 1 and any(size % ALIGNMENT for size in self._rows.values()):
            raise EnvironmentProblem(
                "this engine runs one request at a time only",
                why=f"rows of its caches are no multiple of {ALIGNMENT} bytes, which TensorRT wants of every address",
                fix="load it with max_batch_size 1, or rebuild it with this version",
            )
        self._addresses = {name: device.allocate(slots * size) for name, size in self._rows.items()}

    def all_rows(self) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
        """Shapes and addresses of the whole caches, for a pass over all slots."""
        return self._shapes, _in_place(self._addresses)

    def row(self, slot: int) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
        """Shapes and addresses of one slot's rows, for a pass of one row."""
        shapes = {name: (1, *shape[1:]) for name, shape in self._shapes.items()}
        return shapes, _in_place({name: at + slot * self._rows[name] for name, at in self._addresses.items()})


def _in_place(addresses: Addresses) -> dict[str, int]:
    return {**addresses, **{f"{name}.out": address for name, address in addresses.items()}}
