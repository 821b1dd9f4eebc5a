"""Page-locked host memory: staging buffers for uploads, and ring buffers for downloads that are read late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from .device import Device, Event


class Staging:
    """Pinned buffers to write and upload from. A buffer is reused after its copies have run."""

    def __init__(self, device: Device, size: int, blocks: int = 4) -> None:
        self._device = device
        self._blocks = [device.pinned((size,), np.uint8) for _ in range(blocks)]
        self._copied: list[Event | None] = [None] * blocks
        self._turn = 0

    @contextmanager
    def block(self) -> Iterator[np.ndarray]:
        """Yield u8 [size] to fill and to upload from before the context ends."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._blocks)
        before = self._copied[turn]
        if before is not None:
            before.wait()
        yield self._blocks[turn]
        self._copied[turn] = self._device.record()


class DeferredEmission:
    """An emission that is being downloaded. It covers the first rows; the other rows did not run and have no tokens."""

    def __init__(self, tokens: np.ndarray, num_tokens: np.ndarray, drafted: Sequence[int], arrived: Event) -> None:
        self._tokens, self._num_tokens, self._arrived = tokens, num_tokens, arrived
        self.drafted = drafted
        self.pass_seconds: tuple[float, float] | None = None  # no call waits for a pass
        self.nodes: Mapping[int, Sequence[int]] = {}  # no draft trees
        self.heard: Callable[[np.ndarray], None] | None = None  # called with the counts when they are read
        self._read: tuple[np.ndarray, np.ndarray] | None = None

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the copy the first time, then return its content on every call."""
        if self._read is None:
            self._arrived.wait()
            ran, rows = len(self._tokens), len(self.drafted)
            tokens, counts = np.full((rows, self._tokens.shape[1]), -1, np.int32), np.zeros(rows, np.int32)
            tokens[:ran], counts[:ran] = self._tokens, self._num_tokens
            self._read = tokens, counts
            if self.heard is not None:
                self.heard(counts)
        return self._read


class Readback:
    """A ring of pinned buffers for tokens. An emission that is unread when its buffer is needed is read then."""

    def __init__(self, device: Device, rows: int, columns: int, places: int) -> None:
        self._device = device
        self._tokens = [device.pinned((rows * columns,), np.int32) for _ in range(places)]
        self._counts = [device.pinned((rows,), np.int32) for _ in range(places)]
        self._holders: list[DeferredEmission | None] = [None] * places
        self._turn = 0

    def start(
        self, tokens: int, num_tokens: int, rows: int, emitted: int, shown: int, drafted: Sequence[int]
    ) -> DeferredEmission:
        """Fetch ``tokens`` i32 [rows, emitted], of which ``shown`` columns matter, and ``num_tokens`` i32 [rows].

        ``drafted`` covers all rows, of which only the first ``rows`` ran.
        """
        turn, self._turn = self._turn, (self._turn + 1) % len(self._holders)
        holder = self._holders[turn]
        if holder is not None:
            holder.read()
        flat, counts = self._tokens[turn][: rows * emitted], self._counts[turn][:rows]
        self._device.download(flat, tokens)
        self._device.download(counts, num_tokens)
        emission = DeferredEmission(flat.reshape(rows, emitted)[:, :shown], counts, drafted, self._device.record())
        self._holders[turn] = emission
        return emission
