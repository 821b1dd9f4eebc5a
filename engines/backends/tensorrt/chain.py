"""Passes of an autoregressive drafter within a round, on the device: each takes the previous draft and hidden state.

The first pass of a round covers the committed columns; the lanes run it. Everything in between is a copy on the device,
so a round with all of its passes can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....plugins.graph_contract import EMITTED, HIDDEN, NEXT, NEXT_HIDDEN, WINDOW
from ...folder.records import FURTHER, Part
from .device import Box, Device
from .loaded_graphs import Shape
from .memory import Addresses, Sizer, WindowSizes, itemsize, tensor_block

_ID, _TOKEN = itemsize("int64"), itemsize("int32")
_MADE = 2  # columns that a pass lays out: its token and the draft


class PlanChain:
    """The tensors between the passes of up to ``rows`` rows.

    ``first`` are the bindings of a round's first pass that differ from those of a parallel drafter, ``further`` those
    of the other passes.
    """

    def __init__(self, device: Device, sizer: Sizer, rows: int) -> None:
        self._device, self._sizer = device, sizer
        largest = WindowSizes(rows, 1, _MADE)
        self._inputs = tensor_block(self._device, self._sizer, (*WINDOW, *EMITTED, HIDDEN), largest)
        self._made = tensor_block(self._device, self._sizer, (*NEXT, NEXT_HIDDEN), largest)
        self.first: Addresses = {HIDDEN: self._inputs[HIDDEN], **self._made.addresses}
        self.further: Addresses = {**self._inputs.addresses, **self._made.addresses}
        ones = self._device.pinned((rows,), np.int32)
        ones[:] = 1
        for name in ("window_len", "num_tokens"):
            self._device.upload(self._inputs[name], ones)
        self._ids, self._columns, self._drafts = 0, _MADE, 0

    def lay_out(self, ids: int, start: int, rows: int, columns: int) -> None:
        """Enqueue the copy of the first pass's result to windows of ``columns`` columns.

        ``ids`` and ``start`` are the addresses of their tokens and of their positions.
        """
        self._ids, self._columns, self._drafts = ids, columns, 1
        next_drafts = Box(self._made[NEXT[0]], _MADE * _ID, rows)
        self._device.copy_box(Box(ids, columns * _ID, rows), next_drafts, _MADE * _ID, rows, 1)
        self._device.copy(start, self._made[NEXT[1]], rows * _ID)

    def feed(self, rows: int) -> None:
        """Enqueue the copy of the last draft, its position and its hidden state to the inputs of a further pass."""
        low_halves = Box(self._made[NEXT[0]] + _ID, _MADE * _ID, rows)  # of little-endian ids
        self._device.copy_box(Box(self._inputs["tokens"], _MADE * _TOKEN, rows), low_halves, _TOKEN, rows, 1)
        self._device.copy(self._inputs["start"], self._made[NEXT[1]], rows * _ID)
        size = self._sizer.bytes(HIDDEN, WindowSizes(rows, 1, _MADE))
        self._device.copy(self._inputs[HIDDEN], self._made[NEXT_HIDDEN], size)

    def take(self, rows: int) -> None:
        """Enqueue the copy of a further pass's draft to the next column of the windows."""
        self._drafts += 1
        column = Box(self._ids + self._drafts * _ID, self._columns * _ID, rows)
        self._device.copy_box(column, Box(self._made[NEXT[0]] + _ID, _MADE * _ID, rows), _ID, rows, 1)


def further_sizes(rows: int, positions: int) -> WindowSizes:
    """Return the sizes of a further pass."""
    return WindowSizes(rows, 1, _MADE, positions)


def bindings(
    kind: str, part: Part, sizer: Sizer, sizes: WindowSizes, tensors: Addresses, chain: PlanChain | None
) -> tuple[Mapping[str, Shape], Addresses]:
    """Return the shapes and addresses, without caches, of a pass: ``kind`` is its half, or ``FURTHER``."""
    shapes = sizer.shapes(part.inputs, sizes)
    if chain is None or kind not in ("drafter", FURTHER):
        return shapes, tensors
    if kind == FURTHER:  # without columns that have the target's features
        rows, _, features = shapes["aux_hidden"]
        return {**shapes, "aux_hidden": (rows, 0, features)}, {**tensors, **chain.further}
    return shapes, {**tensors, **chain.first}
