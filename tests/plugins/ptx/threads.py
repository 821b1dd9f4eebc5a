"""The threads of a launch: their numbers, and how many barriers each has passed, from which follows what is ordered.

Warps, blocks and clusters have barriers of all their threads and no other, so no vector clock is needed: an access of
one thread precedes one of another exactly if a barrier of a group with both lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .operations import Array

WARP = 32
THREAD_LEVEL, WARP_LEVEL, BLOCK_LEVEL, CLUSTER_LEVEL, GRID_LEVEL = range(5)


@dataclass(frozen=True)
class Shape:
    """``grid`` blocks of ``block`` threads, ``cluster`` blocks to a cluster."""

    grid: int
    block: int
    cluster: int = 1

    @property
    def bits(self) -> int:
        """Bits of a thread's number that are its own: a block begins at a power of two, and so with a new warp."""
        return max((self.block - 1).bit_length(), 5)

    @property
    def stride(self) -> int:
        """Numbers of threads per block."""
        return 1 << self.bits


class Threads:
    """The threads of some whole clusters, which run together. Lane i is the i-th of them; ``first`` is a block."""

    def __init__(self, shape: Shape, first: int, blocks: int) -> None:
        self.shape, self.first, self.blocks = shape, first, blocks
        count = blocks * shape.block
        self.count = count
        self.local_block = np.repeat(np.arange(blocks), shape.block)
        self.thread = np.tile(np.arange(shape.block), blocks)
        self.block = self.local_block + first
        self.number = self.block * shape.stride + self.thread  # unique in the grid
        self.warp = (self.local_block * shape.stride + self.thread) // WARP
        self.lane = self.thread % WARP
        self.cluster = self.block // shape.cluster
        self.rank = self.block % shape.cluster
        # Barriers passed: of the warp, of the block; cluster barriers arrived at, and waited for.
        self.passed = np.zeros((4, count), np.int64)
        self.ended = np.zeros(count, np.bool_)

    def name(self, lane: int) -> str:
        """Return how messages call a lane."""
        return f"block {self.block[lane]}, thread {self.thread[lane]}"

    def name_of(self, number: int) -> str:
        """Return how messages call a thread by its number in the grid."""
        return f"block {number // self.shape.stride}, thread {number % self.shape.stride}"


def common_level(one: Array, other: Array, shape: Shape) -> Array:
    """Return the smallest group that both threads, given by their numbers, belong to."""
    differing = one ^ other  # numbers are not negative, so the highest bit that differs tells the group
    level = np.full(one.shape, THREAD_LEVEL, np.int64)
    level += differing != 0
    level += differing >= WARP
    outside = differing >> shape.bits != 0
    if outside.any():
        block, other_block = one >> shape.bits, other >> shape.bits
        level += outside
        level += block // shape.cluster != other_block // shape.cluster
    return level
