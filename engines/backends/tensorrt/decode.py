"""Rounds of one K over all slots: the windows, both passes bound to them, and the CUDA graph that holds a round."""

from __future__ import annotations

from typing import Any

import numpy as np

from .contract import ITEMSIZE, NEXT, WINDOW, Sizes
from .device import Graph
from .drafting import PlainAdvance, choose_numbers
from .memory import Memory, tensor_block
from .plans import VERIFY, Pass, Plan

_ROUND = ("forced_next", "uniform", "tokens", "num_tokens")


def emitted_columns(num_speculative_tokens: int) -> int:
    """E of the target's pass: K + 1, in plain decoding one that nobody reads besides the one that is emitted."""
    return max(num_speculative_tokens, 1) + 1


class Decode:
    """``run`` enqueues a round for every slot; the host decides nothing in it and waits for nothing.

    An idle row runs with the others: its window is empty, and what its pass writes lies where no request reads.
    """

    def __init__(self, memory: Memory, target: Plan, drafter: Plan, k: int, scratch: tuple[int, int]) -> None:
        device, contract, rows = memory.device, memory.contract, memory.slots
        self._memory, self._device, self.k = memory, device, k
        self.sizes = Sizes(rows, k + 1, emitted_columns(k))
        self._window = tensor_block(device, contract, WINDOW, self.sizes)
        narrow = Sizes(rows, k + 1, k + 1)  # a next window is as wide as this one, with K = 0 too
        self._next = tensor_block(device, contract, NEXT, narrow)
        self._round = tensor_block(device, contract, _ROUND, self.sizes)
        self.tensors = {
            **memory.scratch.addresses,
            **memory.policy.addresses,
            **self._round.addresses,
            **self._window.addresses,
            **self._next.addresses,
        }
        self._idle, self._one = self._idle_windows(), self._constant(1, 1, np.int32)
        self._unforced = self._constant(-1, rows, np.int64)
        device.upload(self._round["forced_next"], self._unforced)
        self.park()
        self._target = self._bound(target, "target", scratch)
        self._drafter = self._bound(drafter, "drafter", scratch) if k else None
        self._plain = None if k else PlainAdvance(device, self.sizes)
        self._graph = self._captured()

    def run(self) -> None:
        """Enqueue one round: its tokens are in ``tokens`` and ``num_tokens`` until the next."""
        if self._graph is None:
            self._steps()
        else:
            self._graph.replay()

    def park(self) -> None:
        """Make every slot idle."""
        self._device.upload(self._window.base, self._idle)

    def retire(self, slot: int) -> None:
        """Make one slot idle."""
        for name in ("start", "window_len", "draft_len"):
            size = ITEMSIZE["i64"] if name == "start" else ITEMSIZE["i32"]
            offset = self._window.offsets[name] + slot * size
            self._device.upload(self._window.base + offset, self._idle[offset : offset + size])

    def place(self, slot: int, window: dict[str, int]) -> None:
        """Give a slot the window of one row that lies at these addresses, named as this pass names its own."""
        for name in WINDOW if self.k else ("input_ids", "start"):
            size = self._memory.contract.row_bytes(name, self.sizes)
            self._device.copy(self._window[name] + slot * size, window[name], size)
        if not self.k:  # one token and no draft, round after round
            self._device.upload(self._window["window_len"] + slot * self._one.nbytes, self._one)

    def _steps(self) -> None:
        """The round, as round.py describes it."""
        memory = self._memory
        choose_numbers(self._device, memory.numbers, memory.numbers_length, self.tensors, self.sizes)
        self._target.enqueue()
        advanced = self._window.size
        if self._drafter is not None:
            self._drafter.enqueue()
        elif self._plain is not None:
            self._plain.enqueue(self.tensors, self.sizes)
            advanced = self._window.offsets["window_len"]  # the lengths stay as they are
        self._device.copy(self._window.base, self._next.base, advanced)

    def _captured(self) -> Graph | None:
        """The round as a CUDA graph, run once before with every slot idle; None where a context cannot be captured."""
        self._steps()
        self._device.record().wait()
        passes = [each for each in (self._target, self._drafter) if each is not None]
        return self._device.capture(self._steps) if all(each.is_capturable for each in passes) else None

    def _bound(self, plan: Plan, half: str, scratch: tuple[int, int]) -> Pass:
        run = plan.context(VERIFY, *scratch)
        cache_shapes, cache_addresses = self._memory.caches[half].all_rows()
        shapes = self._memory.contract.shapes(plan.part.inputs, self.sizes)
        run.bind({**shapes, **cache_shapes}, {**self.tensors, **cache_addresses})
        return run

    def _idle_windows(self) -> np.ndarray:
        """The bytes of a window block in which no slot is busy; they stay as they are, so any copy may be pending."""
        image = self._device.pinned((self._window.size,), np.uint8)
        image[:] = 0
        at = self._window.offsets["start"]
        image[at : at + self._memory.slots * ITEMSIZE["i64"]].view(np.int64)[:] = self._memory.parking
        return image

    def _constant(self, value: int, count: int, dtype: type[np.integer[Any]]) -> np.ndarray:
        constant = self._device.pinned((count,), dtype)
        constant[:] = value
        return constant
