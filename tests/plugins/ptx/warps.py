"""Lanes of a warp that exchange registers: shuffles, votes and reductions. All lanes of the mask must take part."""

from __future__ import annotations

import re

import numpy as np

from .errors import InvalidOperand, UnsupportedPtxError
from .frame import Frame, Step, reader, writer
from .operations import COMBINE, Array
from .syntax import Instruction, Pair, Register, Sink
from .threads import WARP

_SHUFFLE = re.compile(r"shfl\.sync\.(up|down|bfly|idx)\.b32")
_REDUCE = re.compile(r"redux\.sync\.(?:(add|min|max)\.([us]32)|(and|or|xor)\.(b32))")
_VOTE = re.compile(r"vote\.sync\.(all|any|uni)\.pred|vote\.sync\.(ballot)\.b32")


def complete(frame: Frame, masks: Array, line: int) -> Array:
    """Return True for warps in which all lanes of the mask are present. A lane that its own mask omits is a fault."""
    threads, lanes = frame.threads, frame.lanes
    bit = np.uint32(1) << threads.lane[lanes].astype(np.uint32)
    if ((masks & bit) == 0).any():
        site = frame.site(line)
        raise site.fault(InvalidOperand, int(np.flatnonzero((masks & bit) == 0)[0]), "is not in its own mask")
    # A lane counts for its group only if all agree about who belongs to it.
    key, place = np.unique((threads.warp[lanes].astype(np.uint64) << np.uint64(32)) | masks, return_inverse=True)
    present = np.zeros(len(key), np.uint32)
    np.bitwise_or.at(present, place, bit)
    exist = np.minimum(threads.shape.block - threads.thread[lanes] // WARP * WARP, WARP)
    needed = masks & ((np.uint64(1) << exist.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    result: Array = present[place] == needed
    return result


def _by_lane(frame: Frame, values: Array, masks: Array) -> tuple[Array, Array, Array]:
    """Return the values [warps, 32] of all lanes, the masks with which they came, and the warps of the lanes."""
    warp, lane = frame.threads.warp[frame.lanes], frame.threads.lane[frame.lanes]
    count = int(warp.max()) + 1
    table, came = np.zeros((count, WARP), values.dtype), np.zeros((count, WARP), np.uint32)
    table[warp, lane], came[warp, lane] = values, masks
    return table, came, warp


def _shuffle(instruction: Instruction, mode: str) -> Step:
    line = instruction.line
    to, source, by, clamp, mask = instruction.operands
    value, predicate = (to.value, to.predicate) if isinstance(to, Pair) else (to, Sink())
    put, tell = writer(value, "b32", line), writer(predicate, "pred", line)
    get = [reader(operand, "u32", line) for operand in (source, by, clamp, mask)]

    def step(frame: Frame) -> None:
        values, distance, limits, masks = (read(frame) for read in get)
        lane = frame.threads.lane[frame.lanes].astype(np.int64)
        distance, segment = (distance & np.uint32(31)).astype(np.int64), (limits >> np.uint32(8)).astype(np.int64) & 31
        last = (lane & segment) | (limits.astype(np.int64) & 31 & ~segment)
        first = lane & segment
        if mode == "up":
            source_lane = lane - distance
            inside = source_lane >= last
        elif mode == "down":
            source_lane = lane + distance
            inside = source_lane <= last
        elif mode == "bfly":
            source_lane = lane ^ distance
            inside = source_lane <= last
        else:
            source_lane = first | (distance & ~segment)
            inside = source_lane <= last
        chosen = np.where(inside, source_lane, lane)
        table, came, warp = _by_lane(frame, values, masks)
        absent = came[warp, chosen] != masks
        if absent.any():
            site = frame.site(line)
            raise site.fault(InvalidOperand, int(np.flatnonzero(absent)[0]), "reads a lane that does not take part")
        put(frame, table[warp, chosen])
        tell(frame, inside)

    return step


def _reduce(instruction: Instruction, name: str, kind: str) -> Step:
    line = instruction.line
    to, source, mask = instruction.operands
    put, get, get_mask = writer(to, kind, line), reader(source, kind, line), reader(mask, "u32", line)
    ufunc = COMBINE[name]

    def step(frame: Frame) -> None:
        values, masks = get(frame), get_mask(frame)
        group = (frame.threads.warp[frame.lanes].astype(np.uint64) << np.uint64(32)) | masks
        order = np.argsort(group, kind="stable")
        _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
        result = np.empty_like(values)
        result[order] = np.repeat(ufunc.reduceat(values[order], starts), counts).astype(values.dtype)
        put(frame, result)

    return step


def _vote(instruction: Instruction, name: str) -> Step:
    line = instruction.line
    to, source, mask = instruction.operands
    kind = "b32" if name == "ballot" else "pred"
    put, get, get_mask = writer(to, kind, line), reader(source, "pred", line), reader(mask, "u32", line)

    def step(frame: Frame) -> None:
        votes, masks = get(frame), get_mask(frame)
        table, came, warp = _by_lane(frame, votes, masks)
        mine = came[warp] == masks[:, None]
        yes = (table[warp] & mine).sum(axis=1)
        members = mine.sum(axis=1)
        if name == "ballot":
            bits = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
            put(frame, ((table[warp] & mine) * bits).sum(axis=1).astype(np.uint32))
        else:
            put(frame, {"all": yes == members, "any": yes > 0, "uni": (yes == 0) | (yes == members)}[name])

    return step


def warp_step(instruction: Instruction) -> Step | None:
    """Return the step of an instruction of this file, None for any other."""
    opcode = instruction.opcode
    if match := _SHUFFLE.fullmatch(opcode):
        if len(instruction.operands) != 5 or not isinstance(instruction.operands[0], Register | Pair | Sink):
            raise UnsupportedPtxError(f"line {instruction.line}: operands of {opcode}")
        return _shuffle(instruction, match[1])
    if match := _REDUCE.fullmatch(opcode):
        return _reduce(instruction, match[1] or match[3], match[2] or match[4])
    if match := _VOTE.fullmatch(opcode):
        return _vote(instruction, match[1] or match[2])
    return None
