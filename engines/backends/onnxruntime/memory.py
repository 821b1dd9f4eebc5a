"""Arrays that both graphs are bound to: the caches, each slot's policy and random numbers.

Each layer's caches are ``[slots, heads, T, head_dim]``, f32 unless the engine uses f16 or i8 (whose rows have two more
numbers). They are input and output of the same run: the graph writes in place. Caches of one size and type are parts of
one array, a *stack*, so that a position of all of them is copied by one call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ....plugins.graph_contract import cache_names
from ....plugins.problems import counted
from ...folder.manifest import Manifest
from ...folder.records import Cache, Part
from ...machine import memory_bytes
from ...requests.params import SamplingParams, policy_of
from ...running.token_choice import TokenChoice

Arrays = dict[str, np.ndarray]
Stacks = tuple[np.ndarray, ...]  # [caches, slots, heads, T, head_dim] each
_LINE = 64  # bytes
_PREFAULT_POSITIONS = 64  # positions
_WIDE = "float32"  # type of the graphs' features and logits


class CacheArrays:
    """Key and value caches of the target and of one drafter, for all slots."""

    def __init__(self, manifest: Manifest, slots: int) -> None:
        """Reserve the caches. Raises ``EnvironmentProblem`` if their full size exceeds this machine's memory."""
        self.length = length = manifest.shapes.cache_length
        check_room(row_bytes(manifest), slots, length)
        try:
            self.target, self.target_stacks = _allocate(manifest.target, slots, length)
            own = manifest.drafter
            self.drafter, self.drafter_stacks = _allocate(own, slots, length) if own else ({}, ())
        except MemoryError as error:  # a process limit
            raise _insufficient_memory(row_bytes(manifest), slots, length, str(error)) from error

    def with_drafter(self, drafter: Part, slots: int) -> CacheArrays:
        """Return the same caches of the target with new ones of another drafter. Raises ``EnvironmentProblem``."""
        other = copy(self)
        row = self.length * sum(cache.position_bytes(_WIDE) for cache in drafter.caches)
        check_room(row, slots, self.length)
        try:
            other.drafter, other.drafter_stacks = _allocate(drafter, slots, self.length)
        except MemoryError as error:
            raise _insufficient_memory(row, slots, self.length, str(error)) from error
        return other

    def touch_drafter(self) -> None:
        """Allocate the drafter's first pages now instead of in the first drafting round of each slot.

        The target's pages are allocated by the prompts. With huge pages, one page may cover a layer.
        """
        for stack in self.drafter_stacks:
            stack[:, :, :, :_PREFAULT_POSITIONS] = 0


def check_room(row: int, slots: int, length: int) -> None:
    """Raise ``EnvironmentProblem`` if ``slots`` caches of ``row`` bytes exceed the machine's memory.

    The allocation itself would succeed, because pages are allocated on first write; the process would be killed then.
    """
    memory = memory_bytes()
    if row * slots > memory:
        rows = int(memory // row)
        fits = f"{rows} would fit" if rows else "not even the caches of one request fit"
        raise _insufficient_memory(row, slots, length, f"this machine has {_gib(memory)}: {fits}")


def _insufficient_memory(row: int, slots: int, length: int, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the KV caches of {counted(slots, 'request')} of up to {length} tokens need {_gib(row * slots)} of memory",
        why=why,
        fix="load with a smaller max_batch_size, rebuild with a smaller --max-seq-len, or free memory",
    )


def _gib(count: float) -> str:
    return f"{count / 2**30:.3g} GiB"


def row_bytes(manifest: Manifest) -> int:
    """Return the bytes of all caches of one request."""
    caches = [cache for part in manifest.parts.values() for cache in part.caches]
    return manifest.shapes.cache_length * sum(cache.position_bytes(_WIDE) for cache in caches)


def _allocate(part: Part, slots: int, length: int) -> tuple[Arrays, Stacks]:
    """Return the caches of a graph by name, and the stacks that they are parts of."""
    names = cache_names(len(part.caches))
    alike: dict[tuple[tuple[int, ...], np.dtype], list[str]] = {}
    for name, cache in zip(names, (*part.caches, *part.caches), strict=True):
        alike.setdefault(((slots, cache.heads, length, cache.width), _dtype(cache)), []).append(name)
    stacks = {tuple(names): _zeros(len(names), *size) for size, names in alike.items()}
    found = {name: cache for names, stack in stacks.items() for name, cache in zip(names, stack, strict=True)}
    return {name: found[name] for name in names}, tuple(stacks.values())


def _dtype(cache: Cache) -> np.dtype:
    """Return the NumPy type of a cache; a cache of the graph's own type names none."""
    return np.dtype(cache.dtype or _WIDE)


def _zeros(count: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return ``count`` arrays of zeros, [count, *shape], each aligned to a cache line.

    A vector that spans two lines takes twice as long to read.
    """
    lines = -(-math.prod(shape) * dtype.itemsize // _LINE)
    flat = np.zeros((count * lines + 1) * _LINE, np.uint8)
    first = -flat.ctypes.data % _LINE
    each = flat[first : first + count * lines * _LINE].reshape(count, lines * _LINE)
    return each[:, : math.prod(shape) * dtype.itemsize].view(dtype).reshape(count, *shape)


@dataclass(frozen=True)
class KeptArrays:
    """Copies of some positions of a row of every stack, from ``start`` on: [caches, heads, count, head_dim] each."""

    start: int
    stacks: Stacks

    @property
    def num_bytes(self) -> int:
        """The size of the copies in bytes."""
        return sum(stack.nbytes for stack in self.stacks)

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + int(self.stacks[0].shape[2])


class SlotArrays:
    """One slot's cache rows, and the sampling policy and random numbers that choose its tokens."""

    def __init__(self, caches: CacheArrays, slot: int) -> None:
        self.row = slot  # index of the cache row
        self.target_caches = {n: c[slot : slot + 1] for n, c in caches.target.items()}
        self.drafter_caches = {n: c[slot : slot + 1] for n, c in caches.drafter.items()}
        self._of_target, self._of_drafter = _rows(caches.target_stacks, slot), _rows(caches.drafter_stacks, slot)
        self.policy: Arrays = policy_of(SamplingParams())
        self.numbers = np.zeros(0, np.float32)
        self.choice: TokenChoice | None = None

    def admit(self, params: SamplingParams, numbers: np.ndarray, choice: TokenChoice | None = None) -> None:
        """Choose tokens by this policy and these numbers from now on, or by the host's ``choice``."""
        self.numbers, self.choice = numbers, choice
        for name, value in policy_of(params).items():
            self.policy[name][:] = value

    def take(self, other: SlotArrays) -> None:
        """Copy the policy of ``other``; bound arrays stay bound."""
        self.numbers, self.choice = other.numbers, other.choice
        for name, value in other.policy.items():
            self.policy[name][:] = value

    def keep(self, start: int, end: int) -> KeptArrays:
        """Copy the positions from ``start`` up to ``end`` of every cache."""
        return KeptArrays(start, tuple(row[:, :, start:end].copy() for row in (*self._of_target, *self._of_drafter)))

    def restore(self, kept: KeptArrays) -> None:
        """Restore saved copies."""
        for row, was in zip((*self._of_target, *self._of_drafter), kept.stacks, strict=True):
            row[:, :, kept.start : kept.end] = was

    def close_up(self, start: int, columns: Iterable[int], at: int) -> None:
        """Move the target's entries of window ``columns`` to the positions from column ``at`` on.

        The window begins at position ``start``. A column is never before the position that it moves to.
        """
        for to, column in enumerate(columns, start + at):
            for row in self._of_target:
                row[:, :, to] = row[:, :, start + column]

    def moved_to(self, caches: CacheArrays, slot: int) -> SlotArrays:
        """Return the same policy, numbers and choice for another cache row."""
        moved = SlotArrays(caches, slot)
        moved.policy, moved.numbers, moved.choice = self.policy, self.numbers, self.choice
        return moved


def _rows(stacks: Stacks, slot: int) -> Stacks:
    """Return one row of every stack: [caches, heads, T, head_dim] each."""
    return tuple(stack[:, slot] for stack in stacks)
