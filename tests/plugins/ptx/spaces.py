"""Address spaces: where an address of each lies, and what generic addresses stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InvalidOperand, OutOfBounds
from .frame import Frame
from .memory import Memory, Site, require_aligned
from .operations import Array

# Neither space begins at 0, so that a null pointer is out of bounds.
SHARED_BASE, LOCAL_BASE = 1024, 256
RANK_BITS = 24  # an address of shared::cluster holds the block's rank plus one above these; 0 is the own block
SHARED_WINDOW, LOCAL_WINDOW = 1 << 60, 1 << 61  # where generic addresses of these spaces begin
WINDOWS = {"global": 0, "const": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}

Places = list[tuple[Memory, Array, Array]]


def locate(frame: Frame, space: str, address: Array, width: int, site: Site) -> Places:
    """Return (memory, indices into the lanes, offsets) of an access of ``width`` bytes at each address."""
    if space in ("global", "const"):
        found: Places = frame.machine.memory.locate(address, width, site)
        return found
    if space == "generic":
        return _generic(frame, address, width, site)
    require_aligned(address, width, site)
    at = address.astype(np.int64)
    if space == "local":
        size, base = frame.machine.local_size, LOCAL_BASE
        owner, memory = frame.lanes, frame.machine.local
    else:
        size, base = frame.machine.shared_size, SHARED_BASE
        owner, memory = frame.threads.local_block[frame.lanes], frame.machine.shared
        if space == "shared::cluster":
            owner, at = _peer(frame, owner, at, site)
    inside = (at >= base) & (at + width <= base + size)
    if not inside.all():
        i = int(np.flatnonzero(~inside)[0])
        raise site.fault(OutOfBounds, i, f"accesses byte {int(at[i]) - base} of {space} memory, which has {size}")
    return [(memory, np.arange(len(at)), owner * frame.machine.pitch(space) + at - base)]


def _peer(frame: Frame, own: Array, address: Array, site: Site) -> tuple[Array, Array]:
    """Return the blocks and the offsets in them of addresses in shared::cluster."""
    rank = address >> RANK_BITS
    first = own // frame.machine.shape.cluster * frame.machine.shape.cluster
    block = np.where(rank > 0, first + rank - 1, own)
    wrong = rank > frame.machine.shape.cluster
    if wrong.any():
        raise site.fault(OutOfBounds, int(np.flatnonzero(wrong)[0]), "accesses a block that the cluster does not have")
    gone = frame.machine.gone[block]
    if gone.any():
        i = int(np.flatnonzero(gone)[0])
        raise site.fault(
            OutOfBounds, i, f"accesses shared memory of block {int(rank[i]) - 1} of the cluster after its end"
        )
    return block, address & ((1 << RANK_BITS) - 1)


def _generic(frame: Frame, address: Array, width: int, site: Site) -> Places:
    """Look at the windows: each lane's address may lie in another space."""
    found: Places = []
    space_of = np.where(address >= LOCAL_WINDOW, 2, np.where(address >= SHARED_WINDOW, 1, 0))
    for number, space in enumerate(("global", "shared::cluster", "local")):
        which = np.flatnonzero(space_of == number)
        if which.size:
            base = np.uint64((0, SHARED_WINDOW, LOCAL_WINDOW)[number])
            part = Frame(frame.machine, frame.lanes[which])
            inner = Site(site.kernel, site.line, site.threads, part.lanes)
            places = locate(part, space, address[which] - base, width, inner)
            found += [(memory, which[index], offset) for memory, index, offset in places]
    return found


def map_shared(frame: Frame, address: Array, rank: Array, site: Site) -> Array:
    """Return ``mapa``: the same place in the shared memory of another block of the cluster."""
    wrong = rank >= frame.machine.shape.cluster
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise site.fault(InvalidOperand, i, f"maps an address to block {int(rank[i])} of the cluster")
    within = address & address.dtype.type((1 << RANK_BITS) - 1)
    mapped: Any = within | ((rank.astype(address.dtype) + address.dtype.type(1)) << address.dtype.type(RANK_BITS))
    result: Array = mapped
    return result


def to_generic(space: str, address: Array) -> Array:
    """Return the generic address of an address in a space."""
    return address + address.dtype.type(WINDOWS[space])


def from_generic(space: str, address: Array, site: Site) -> Array:
    """Return the address in a space of a generic address, which must be in its window."""
    low = WINDOWS[space]
    high = {0: SHARED_WINDOW, SHARED_WINDOW: LOCAL_WINDOW}.get(low, 1 << 62)
    wrong = (address < low) | (address >= high)
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise site.fault(InvalidOperand, i, f"{int(address[i]):#x} is no address of {space} memory")
    return address - address.dtype.type(low)
