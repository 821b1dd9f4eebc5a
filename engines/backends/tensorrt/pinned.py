"""Page-locked host memory: staging buffers for uploads, and ring buffers for downloads that are read late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ....plugins.graph_contract import PATH
from .device import Device, Event
from .memory import Addresses


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


class WideReader:
    """Reads numbers of the graphs' own type from the device, as float32; a read waits for all enqueued work."""

    def __init__(self, device: Device, wide: str) -> None:
        self._device, self._is_bfloat16 = device, wide == "bfloat16"
        self._dtype = np.dtype(np.uint16 if self._is_bfloat16 else wide)
        self._bytes: np.ndarray | None = None  # page-locked memory lives as long as the device

    def read(self, address: int, rows: int, width: int) -> np.ndarray:
        """Return a copy of the numbers at ``address``, f32 [rows, width]."""
        size = rows * width * self._dtype.itemsize
        if self._bytes is None or self._bytes.size < size:
            self._bytes = self._device.pinned((size,), np.uint8)
        raw = self._bytes[:size].view(self._dtype).reshape(rows, width)
        self._device.download(raw, address)
        self._device.record().wait()
        return (raw.astype(np.uint32) << 16).view(np.float32) if self._is_bfloat16 else raw.astype(np.float32)


class DeferredEmission:
    """An emission that is being downloaded. It covers the first rows; the other rows did not run and have no tokens."""

    def __init__(
        self,
        tokens: np.ndarray,
        num_tokens: np.ndarray,
        path: np.ndarray,
        drafted: Sequence[int],
        forked: Sequence[int],
        arrived: Event,
    ) -> None:
        self._tokens, self._num_tokens, self._path, self._arrived = tokens, num_tokens, path, arrived
        self._forked = forked
        self.drafted = drafted
        self.pass_seconds: tuple[float, float] | None = None  # no call waits for a pass
        self.nodes: Mapping[int, Sequence[int]] = {}
        self.on_counts: Callable[[Sequence[int]], None] | None = None  # called with the counts when they are read
        self._read: Sequence[Sequence[int]] | None = None

    def read(self) -> Sequence[Sequence[int]]:
        """Wait for the copy the first time, then return its content on every call."""
        if self._read is None:
            self._arrived.wait()
            counts = self._num_tokens.tolist() + [0] * (len(self.drafted) - len(self._tokens))
            tokens: list[list[int]] = self._tokens.tolist() + [[]] * (len(self.drafted) - len(self._tokens))
            self._read = [row[:count] for row, count in zip(tokens, counts, strict=True)]
            self.nodes = {row: (self._path[row, 1 : counts[row]] - 1).tolist() for row in self._forked}
            if self.on_counts is not None:
                self.on_counts(counts)
        return self._read


class Readback:
    """A ring of pinned buffers for tokens. An emission that is unread when its buffer is needed is read then."""

    def __init__(self, device: Device, rows: int, columns: int, num_buffers: int) -> None:
        self._device = device
        self._tokens = [device.pinned((rows * columns,), np.int32) for _ in range(num_buffers)]
        self._counts = [device.pinned((rows,), np.int32) for _ in range(num_buffers)]
        self._paths = [device.pinned((rows * columns,), np.int32) for _ in range(num_buffers)]
        self._holders: list[DeferredEmission | None] = [None] * num_buffers
        self._turn = 0

    def start(
        self,
        tensors: Addresses,
        rows: int,
        emitted: int,
        shown: int,
        drafted: Sequence[int],
        forked: Sequence[int] = (),
    ) -> DeferredEmission:
        """Fetch ``tokens`` i32 [rows, emitted], of which ``shown`` columns matter, and ``num_tokens`` i32 [rows].

        ``drafted`` covers all rows, of which only the first ``rows`` ran. ``forked`` are the rows whose windows were
        trees; if there are any, their ``path`` is fetched too.
        """
        turn, self._turn = self._turn, (self._turn + 1) % len(self._holders)
        holder = self._holders[turn]
        if holder is not None:
            holder.read()
        flat, counts, path = (each[turn][: rows * emitted] for each in (self._tokens, self._counts, self._paths))
        counts = counts[:rows]
        self._device.download(flat, tensors["tokens"])
        self._device.download(counts, tensors["num_tokens"])
        if forked:
            self._device.download(path, tensors[PATH])
        shape, arrived = (rows, emitted), self._device.record()
        emission = DeferredEmission(
            flat.reshape(shape)[:, :shown], counts, path.reshape(shape), drafted, forked, arrived
        )
        self._holders[turn] = emission
        return emission
