"""Memory of one address space: its bytes, which of them exist and have been written, and who accessed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .errors import DataRace, Fault, Misaligned, OutOfBounds, UninitializedRead
from .operations import Array
from .races import ATOMIC, KINDS, READ, WRITE, Shadow
from .threads import Shape, Threads

REGION_BITS = 36  # global arrays lie so far apart that no small mistake leads from one into another
MARGIN = 1 << 20  # before the first byte of each
PADDING = 64


@dataclass(frozen=True)
class Site:
    """Who accesses memory: an instruction of a kernel, and the lanes that execute it."""

    kernel: str
    line: int
    threads: Threads
    lanes: Array

    def of(self, index: Array) -> Site:
        """Return the site of some of the lanes."""
        return Site(self.kernel, self.line, self.threads, self.lanes[index])

    def fault(self, kind: type[Fault], which: int, what: str) -> Fault:
        """Return the error for the lane at that index."""
        return kind(f"{self.kernel}, line {self.line}, {self.threads.name(int(self.lanes[which]))}: {what}")


class Memory:
    """Bytes with flat offsets. ``shadow`` is None where races cannot be; ``locked`` where writes are not allowed."""

    def __init__(self, name: str, size: int, shadow: Shadow | None = None, locked: bool = False) -> None:
        self.name, self.size, self.shadow, self.locked = name, size, shadow, locked
        self.bytes = np.zeros(-(-size // 16) * 16 + PADDING, np.uint8)
        self.written = np.zeros(self.bytes.shape, np.uint8)

    def fill(self, content: bytes, at: int = 0) -> None:
        """Give memory its bytes before the launch."""
        self.bytes[at : at + len(content)] = np.frombuffer(content, np.uint8)
        self.written[at : at + len(content)] = 1

    def load(self, offset: Array, width: int, count: int, site: Site, forever: bool = False) -> Array:
        """Read ``count`` numbers of ``width`` bytes at each offset, as unsigned integers [lanes, count]."""
        self._note(READ, offset, width * count, site, forever)
        index = (offset // width)[:, None] + np.arange(count)
        self._require_written(index, width, site)
        found: Array = self.bytes.view(f"u{width}")[index]
        return found

    def store(self, offset: Array, values: Array, site: Site) -> None:
        """Write the unsigned integers [lanes, count], each row at its offset."""
        width, count = values.dtype.itemsize, values.shape[1]
        self._note(WRITE, offset, width * count, site)
        index = (offset // width)[:, None] + np.arange(count)
        self.bytes.view(f"u{width}")[index] = values
        self.written.view(f"u{width}")[index] = _all_ones(width)

    def update(self, offset: Array, width: int, change: Callable[[Array, Array], None], site: Site) -> None:
        """Change numbers atomically: ``change`` gets all numbers and the indices of these."""
        self._note(ATOMIC, offset, width, site)
        index = offset // width
        self._require_written(index[:, None], width, site)
        change(self.bytes.view(f"u{width}"), index)

    def _require_written(self, index: Array, width: int, site: Site) -> None:
        known = self.written.view(f"u{width}")[index] == _all_ones(width)
        if not known.all():
            raise site.fault(
                UninitializedRead, int(np.flatnonzero(~known.all(axis=1))[0]), f"reads {self.name} that nothing wrote"
            )

    def _note(self, kind: int, offset: Array, width: int, site: Site, forever: bool = False) -> None:
        if kind != READ and self.locked:
            raise site.fault(OutOfBounds, 0, f"writes to {self.name}, an input")
        if self.shadow is None or self.locked:
            return
        if forever and (bad := self.shadow.written(offset, width)).any():
            raise site.fault(
                DataRace, int(np.flatnonzero(bad)[0]), f"reads {self.name} as constant that the kernel wrote"
            )
        race = self.shadow.access(kind, offset, width, site.lanes, site.threads, site.line, forever)
        if race is not None:
            which = int(np.flatnonzero(site.lanes == race.lane)[0])
            raise site.fault(
                DataRace,
                which,
                f"{KINDS[kind]} {self.name}, byte {race.cell * self.shadow.width}, that "
                f"{site.threads.name_of(race.thread)} {KINDS[race.kind]} in line {race.line}, in no order",
            )


def _all_ones(width: int) -> int:
    return int.from_bytes(b"\1" * width, "little")


def require_aligned(address: Array, width: int, site: Site) -> None:
    """Raise ``Misaligned`` unless all addresses are multiples of the width."""
    wrong = address % address.dtype.type(width) != 0
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise site.fault(Misaligned, i, f"accesses {width} bytes at {int(address[i]):#x}")


@dataclass
class GlobalMemory:
    """The arrays of a launch, each a memory of its own. ``shift`` moves an array's first byte off its alignment."""

    shape: Shape
    regions: list[tuple[Memory, int]] = field(default_factory=list)

    def add(self, name: str, content: bytes | int, width: int, locked: bool = False, shift: int = 0) -> int:
        """Add an array of that many unwritten bytes, or of these; return its address. ``width`` is of its numbers."""
        size = content if isinstance(content, int) else len(content)
        whole = -(-(shift + size) // 16) * 16
        shadow = None if locked else Shadow(whole, width, self.shape)
        memory = Memory(name, shift + size, shadow, locked)
        if not isinstance(content, int):
            memory.fill(content, shift)
        self.regions.append((memory, shift))
        return (len(self.regions) << REGION_BITS) + MARGIN + shift

    def read(self, address: int) -> bytes:
        """Return the bytes of the array at an address that ``add`` returned."""
        memory, shift = self.regions[(address >> REGION_BITS) - 1]
        return memory.bytes[shift : memory.size].tobytes()

    def written(self, address: int) -> Array:
        """Return for each byte of the array whether it was written."""
        memory, shift = self.regions[(address >> REGION_BITS) - 1]
        return memory.written[shift : memory.size] == 1

    def locate(self, address: Array, width: int, site: Site) -> list[tuple[Memory, Array, Array]]:
        """Return (memory, indices into the addresses, offsets) for each array that is accessed."""
        require_aligned(address, width, site)
        region = (address >> np.uint64(REGION_BITS)).astype(np.int64)
        offset = (address & np.uint64((1 << REGION_BITS) - 1)).astype(np.int64) - MARGIN
        found = []
        first = int(region[0])
        for each in (first,) if (region == first).all() else np.unique(region).tolist():
            which = np.flatnonzero(region == each)
            if not 1 <= each <= len(self.regions):
                raise site.fault(OutOfBounds, int(which[0]), f"accesses {int(address[which[0]]):#x}, where nothing is")
            memory, shift = self.regions[each - 1]
            wrong = (offset[which] < shift) | (offset[which] + width > memory.size)
            if wrong.any():
                i = int(which[np.flatnonzero(wrong)[0]])
                raise site.fault(
                    OutOfBounds,
                    i,
                    f"accesses byte {int(offset[i]) - shift} of {memory.name}, which has {memory.size - shift}",
                )
            found.append((memory, which, offset[which]))
        return found
