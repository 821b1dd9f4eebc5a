"""The lanes of all slots on TensorRT: their windows in one block, which passes of every K are bound to.

The windows of a round lie side by side, as wide as its K, so they are moved apart or together when K changes. The host
knows how many drafts each window has without looking: it is what launched the round that drafted. A round runs the
first rows, up to the last busy one, so that few requests cost few rows; passes over fewer rows begin at the same
addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ....plugins.graph_contract import NEXT, WINDOW
from .kept_rounds import PassKind
from .kernels import NewestToken, choose_numbers
from .loaded_graphs import Pass, Plan, round_profile
from .memory import Memory, Span, WindowSizes, itemsize, tensor_block
from .pinned import LateEmission, Readback, Staging
from .reach import Reach

_ROUND = ("forced_next", "uniform", "tokens", "num_tokens")
_ID = itemsize("int64")
_UNKNOWN = -1


def emitted_columns(num_speculative_tokens: int) -> int:
    """E of the target's pass: K + 1, in plain decoding one that nobody reads besides the one that is emitted."""
    return max(num_speculative_tokens, 1) + 1


def no_further_passes() -> EnvironmentProblem:
    """What a strategy is told that asks TensorRT for more than one pass of a drafter."""
    return EnvironmentProblem(
        "EAGLE-3 heads do not run on TensorRT",
        why="a plan of a drafter makes all drafts in one pass",
        fix="build the engine with `--backend onnxruntime`, or with a P-EAGLE head",
    )


class PlanLanes:
    """Enqueues a round for all busy slots at once: a row for every slot from the first on, for ``rows`` of them.

    An idle row among them runs too: its window is empty, and what its pass writes lies where no request reads.
    ``prepare`` comes before the steps of a round that is replayed, and what it does is no part of a CUDA graph; in
    other rounds ``verify`` does it, when drafts of the host's own are in place.
    """

    def __init__(
        self, memory: Memory, plans: Mapping[str, Plan], reach: Reach, most_drafts: int, scratch: Span, places: int
    ) -> None:
        device, rows = memory.device, memory.slots
        self._memory, self._device, self._plans, self._scratch = memory, device, plans, scratch
        self._reach, self.positions = reach, reach.lengths[-1]  # of the caches that the passes of a round read
        widest = emitted_columns(most_drafts)  # of a window, too: the next one is copied whole
        largest = WindowSizes(rows, widest, widest)
        self._window = tensor_block(device, memory.sizer, WINDOW, largest)
        self._next = tensor_block(device, memory.sizer, NEXT, largest)
        self._round = tensor_block(device, memory.sizer, _ROUND, largest)
        blocks = (memory.policy, self._round, self._window, self._next)
        self.tensors = {name: address for block in blocks for name, address in block.addresses.items()}
        self.tensors |= memory.shared
        self._newest = NewestToken(device, largest)
        self._readback = Readback(device, rows, largest.emitted, places)
        self._staging = Staging(device, rows * largest.columns * _ID)
        self._idle = self._idle_windows()
        self._counts = self._constants(np.arange(largest.columns + 1), np.int32)
        self._unforced = self._constants(np.full(rows, -1), np.int64)
        device.upload(self._round["forced_next"], self._unforced)
        self.row_sizes = _row_sizes(rows)
        self._rows, self._passes = rows, dict[PassKind, Pass]()
        self._busy, self._columns, self._verified = [False] * rows, 1, 0
        self._drafts, self._uploaded = [0] * rows, [_UNKNOWN] * rows  # of every window, and what its lengths say
        self._drafted: tuple[int, ...] = (0,) * rows
        self.limits: Sequence[int] = ()  # of drafts that a round verifies, by slot
        self.begin()

    def begin(self) -> None:
        """Make every slot idle."""
        self._busy = [False] * self._memory.slots
        for slot in range(self._memory.slots):
            self._reach.place(slot, None)
        self._device.upload(self._window.base, self._idle)
        self._device.upload(self._next.base, self._idle)  # of rows that a round leaves out it is copied as it is

    def retire(self, slot: int) -> None:
        """Make one slot idle."""
        self._busy[slot] = False
        self._reach.place(slot, None)
        for name in ("start", "window_len", "draft_len"):
            size = itemsize("int64" if name == "start" else "int32")
            offset = self._window.offsets[name] + slot * size
            for block in (self._window, self._next):
                self._device.upload(block.base + offset, self._idle[offset : offset + size])

    @property
    def rows_needed(self) -> int:
        """The least of ``row_sizes`` that has every busy slot."""
        last = max((slot for slot, busy in enumerate(self._busy) if busy), default=0)
        return next(rows for rows in self.row_sizes if rows > last)

    def turn_to(self, rows: int, passes: dict[PassKind, Pass]) -> None:
        """Let the next round run the first ``rows`` slots, with ``passes``, to which it adds what it lacks."""
        self._rows, self._passes = rows, passes

    def place(self, slot: int, following: Mapping[str, int], drafts: int, start: int) -> None:
        """Make a slot busy, with the window of one row that lies at the addresses of the ``NEXT`` tensors.

        It begins at ``start``.
        """
        if not any(self._busy):
            self._columns = drafts + 1
        columns = min(self._columns, drafts + 1)
        row = self._window["input_ids"] + slot * self._columns * _ID
        self._device.copy(row, following["next_input_ids"], columns * _ID)
        self._device.copy(self._window["start"] + slot * _ID, following["next_start"], _ID)
        self._busy[slot], self._drafts[slot], self._uploaded[slot] = True, columns - 1, _UNKNOWN
        self._reach.place(slot, start)

    def prepare(self, k: int) -> None:
        """Lay the windows out for a round of ``k``, without the drafts that it does not verify."""
        self._lay_out(k + 1)
        if self.limits:
            self._drafts = [min(each) for each in zip(self._drafts, self.limits, strict=True)]
        for slot, busy in enumerate(self._busy):
            if busy and self._uploaded[slot] != self._drafts[slot]:
                drafts = self._uploaded[slot] = self._drafts[slot]
                for name, count in (("window_len", drafts + 1), ("draft_len", drafts)):
                    address = self._window[name] + slot * itemsize("int32")
                    self._device.upload(address, self._counts[count : count + 1])
        self._drafted = tuple(drafts * busy for drafts, busy in zip(self._drafts, self._busy, strict=True))
        self._verified = k
        self.positions = self._reach.of_windows(k + max(k, 1))  # those of the drafter's pass, which has more

    def verify(self, k: int) -> None:
        """Enqueue the target over the windows, after the kernel that gathers their random numbers."""
        self.prepare(k)
        memory, sizes = self._memory, WindowSizes(self._rows, k + 1, emitted_columns(k), self.positions)
        choose_numbers(self._device, memory.numbers, memory.numbers_length, self.tensors, sizes)
        self._pass("target", sizes).enqueue()

    def draft(self, k: int) -> None:
        """Enqueue the drafter over the windows; it writes the next ones itself."""
        self._pass("drafter", WindowSizes(self._rows, self._verified + 1, k + 1, self.positions)).enqueue()

    def branch(self, k: int) -> None:
        """Draft a chain: no plan is told which columns see which."""
        self.draft(k)

    def extend(self) -> None:
        """Refuse: no plan is fed a drafter's own state, and no manifest says that one is."""
        raise no_further_passes()

    def hold(self) -> None:
        """Enqueue the narrowest drafter pass at once: where to keep features no CUDA graph could know."""
        self.draft(1)

    def advance(self, k: int) -> None:
        """Enqueue the copy of the next windows over the last; with ``k`` 0, of the newest tokens alone."""
        if k:
            self._device.copy(self._window.base, self._next.base, self._window.size)
        else:
            sizes = WindowSizes(self._rows, self._verified + 1, emitted_columns(self._verified))
            self._newest.enqueue(self.tensors, sizes)
            self._device.copy(self._window.base, self._next.base, self._window.offsets["window_len"])
        self.advanced(k)

    def advanced(self, k: int) -> None:
        """Note what the windows are after ``advance(k)``, be it enqueued or part of what was replayed."""
        self._columns = k + 1
        self._drafts = [k] * self._memory.slots
        if k:
            self._uploaded = list(self._drafts)

    @property
    def drafts_laid_out(self) -> int:
        """How many drafts the windows have room for."""
        return self._columns - 1

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Upload the drafts behind the newest tokens of busy slots; ``verify`` says how many they are."""
        rows = zip(self._drafts, self._busy, drafts, strict=True)
        kept = [count if busy and each is None else 0 for count, busy, each in rows]
        counts = [count if each is None else len(each) for count, each in zip(kept, drafts, strict=True)]
        self._drafts = kept  # whatever was in the others
        self._lay_out(max(counts) + 1)
        self._drafts = counts
        with self._staging.block() as block:
            ids = block.view(np.int64).reshape(len(drafts), -1)
            for slot, busy in enumerate(self._busy):
                if busy and (proposed := drafts[slot]):
                    mine = ids[slot, : len(proposed)]
                    mine[:] = proposed
                    self._device.upload(self._window["input_ids"] + (slot * self._columns + 1) * _ID, mine)

    def emission(self) -> LateEmission:
        """Fetch what the round emits, i32 [slots, K + 1]; who reads it waits for the copy."""
        k, tensors, shape = self._verified, self.tensors, (self._rows, emitted_columns(self._verified))
        return self._readback.start(tensors["tokens"], tensors["num_tokens"], *shape, k + 1, self._drafted)

    def late_emission(self) -> LateEmission:
        """``emission`` of a round that has been launched whole; what the windows reach to follows from it."""
        emission = self.emission()
        emission.heard = self._reach.launched(self._drafted)
        return emission

    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold every pass of the round."""
        return all(run.is_capturable for run in self._passes.values())

    def _lay_out(self, columns: int) -> None:
        """Move the windows to rows of so many columns; drafts that do not fit are dropped."""
        old, self._columns = self._columns, columns
        if old == columns:
            return
        self._drafts = [min(drafts, columns - 1) for drafts in self._drafts]
        if not any(self._busy):
            return
        ids, spare = self._window["input_ids"], self._next["next_input_ids"]
        for slot, drafts in enumerate(self._drafts):
            if self._busy[slot]:
                self._device.copy(spare + slot * columns * _ID, ids + slot * old * _ID, (drafts + 1) * _ID)
        self._device.copy(ids, spare, self._memory.slots * columns * _ID)

    def _pass(self, half: str, sizes: WindowSizes) -> Pass:
        """The pass of one half that is bound to these sizes; made when the round has none."""
        key = half, sizes
        if key not in self._passes:
            memory, plan = self._memory, self._plans[half]
            run = plan.context(round_profile(plan.part, sizes.rows), *self._scratch)
            cache_shapes, cache_addresses = memory.caches[half].first_rows(sizes.rows)
            shapes = memory.sizer.shapes(plan.part.inputs, sizes)
            run.bind({**shapes, **cache_shapes}, {**self.tensors, **cache_addresses})
            self._passes[key] = run
        return self._passes[key]

    def _idle_windows(self) -> np.ndarray:
        """The bytes of a window block in which no slot is busy; they stay as they are, so any copy may be pending."""
        image = self._device.pinned((self._window.size,), np.uint8)
        image[:] = 0
        at = self._window.offsets["start"]
        image[at : at + self._memory.slots * _ID].view(np.int64)[:] = self._memory.parking
        return image

    def _constants(self, values: np.ndarray, dtype: type[np.integer[Any]]) -> np.ndarray:
        constants = self._device.pinned(values.shape, dtype)
        constants[:] = values
        return constants


def _row_sizes(slots: int) -> tuple[int, ...]:
    """How many rows a round may have: 1, 2, 4, .. and all, so that few kinds of rounds serve any number of requests."""
    return (*(1 << power for power in range(slots.bit_length()) if 1 << power < slots), slots)
