"""Lanes of all slots on TensorRT: their windows in one block that the passes of every K are bound to.

The windows of a round are contiguous and as wide as its K, so they are moved when K changes. The host knows how many
drafts each window has and whether they are trees, because it launched the round that made them; it does not know the
trees. A round runs the first rows up to the last active one, so that few requests cost few rows. Passes over fewer rows
use the same addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....plugins.graph_contract import CANDIDATES, NEXT, NEXT_SKIPPED, PATH, SKIPPED, WINDOW
from ...folder.records import FURTHER
from ...policy.drafts_per_round import spaced_counts
from ...running.token_choice import TokenChoice
from ..profiling import ranged
from .chain import bindings, further_sizes
from .host_choice import HostChoice
from .kept_rounds import TARGET, PassKind
from .kernels import NewestToken, choose_numbers, close_up, grow_trees
from .loaded_drafter import PlanDrafter
from .loaded_graphs import Pass, Plan, further_profile, round_profile
from .memory import Addresses, EntryStack, Memory, Span, WindowSizes, itemsize, tensor_block
from .pinned import DeferredEmission, Readback, Staging, WideReader
from .reach import Reach

_ROUND = ("forced_next", "uniform", "tokens", "num_tokens", PATH)
# Both in one order: what a round always replaces comes before the lengths.
_WINDOW, _NEXT = ((ids, skipped, *rest) for (ids, *rest), skipped in ((WINDOW, SKIPPED), (NEXT, NEXT_SKIPPED)))
_ID = itemsize("int64")
_UNKNOWN = -1

Drafters = tuple[PlanDrafter, ...]


def emitted_columns(num_speculative_tokens: int) -> int:
    """Return E of the target's pass: K + 1, or in plain decoding 2, one of which is unused."""
    return max(num_speculative_tokens, 1) + 1


class PlanLanes:
    """Enqueues a round for the first ``rows`` slots, including all active ones.

    Idle rows among them run too: their windows are empty, and their passes write where no request reads. ``prepare``
    runs before the steps of a replayed round and is not part of a CUDA graph. In other rounds ``verify`` does its work,
    when the host's own drafts are in place. ``choices`` are those of slots whose tokens the host chooses; their rounds
    wait for it, so they cannot be captured.

    Every drafter of a round runs over all of its rows, and writes only to caches of its own. If there are several, each
    writes the next windows to a place of its own as well, and ``advance`` takes from there those of its slots.
    """

    def __init__(
        self,
        memory: Memory,
        target: Plan,
        own_drafter: PlanDrafter | None,
        reach: Reach,
        max_drafts: int,
        scratch: Span,
        num_buffers: int,
        reader: WideReader,
    ) -> None:
        device, rows = memory.device, memory.slots
        self._memory, self._device, self._target, self._scratch = memory, device, target, scratch
        self._reach, self.positions = reach, reach.lengths[-1]  # cache positions that the passes of a round read
        widest = emitted_columns(max_drafts)  # also of a window: the next one is copied whole
        largest = WindowSizes(rows, widest, widest)
        self._window = tensor_block(device, memory.sizer, _WINDOW, largest)
        self._next = tensor_block(device, memory.sizer, _NEXT, largest)
        self._round = tensor_block(device, memory.sizer, _ROUND, largest)
        blocks = (memory.policy, self._round, self._window, self._next)
        self.tensors = {name: address for block in blocks for name, address in block.addresses.items()}
        self.tensors |= memory.shared
        self._newest = NewestToken(device, largest)
        self._verifies_trees = target.part.makes_paths
        self._zeros_size = memory.sizer.bytes(NEXT_SKIPPED, largest)
        self._zeros = device.allocate(self._zeros_size)  # of a chain, no column skips another
        self._own: Drafters = (own_drafter,) if own_drafter else ()
        self._drafters: list[PlanDrafter | None] = [None] * rows  # of the slots that draft
        self._running: Drafters = ()  # in this round
        self._readback = Readback(device, rows, largest.emitted, num_buffers)
        self._staging = Staging(device, rows * largest.columns * _ID)
        self._idle = self._idle_windows()
        self._counts = self._constants(np.arange(largest.columns + 1), np.int32)
        self._unforced = self._constants(np.full(rows, -1), np.int64)
        device.upload(self._round["forced_next"], self._unforced)
        self.choices: list[TokenChoice | None] = [None] * rows
        self._host = HostChoice(memory, widest, reader)
        self._widths = spaced_counts(max_drafts)
        self.row_sizes = _row_sizes(rows)
        self._rows, self._passes, self._waits = rows, dict[PassKind, Pass](), False
        self._busy, self._columns, self._verified = [False] * rows, 1, 0
        self._drafts, self._uploaded = [0] * rows, [_UNKNOWN] * rows  # actual and uploaded draft counts of the windows
        self._forks = [False] * rows  # whether the windows may be trees
        self._drafted: tuple[int, ...] = (0,) * rows
        self._forked: tuple[int, ...] = ()  # slots whose verified windows may be trees
        self.grown: Drafters = ()  # drafters whose next windows are trees
        self.limits: Sequence[int] = ()  # maximum number of verified drafts, by slot
        self.begin()

    def begin(self) -> None:
        """Make every slot idle."""
        self._busy = [False] * self._memory.slots
        self.choices = [None] * self._memory.slots
        self._drafters, self._running, self.grown = [None] * self._memory.slots, (), ()
        for slot in range(self._memory.slots):
            self._reach.place(slot, None)
        self._device.upload(self._window.base, self._idle)
        self._device.upload(self._next.base, self._idle)  # rows that a round skips are copied unchanged

    def retire(self, slot: int) -> None:
        """Make one slot idle."""
        self._busy[slot], self.choices[slot], self._drafters[slot] = False, None, None
        self._running = self.grown = ()  # which refer to drafters
        self._reach.place(slot, None)
        for name in ("start", "window_len", "draft_len"):
            size = itemsize("int64" if name == "start" else "int32")
            offset = self._window.offsets[name] + slot * size
            for block in (self._window, self._next):
                self._device.upload(block.base + offset, self._idle[offset : offset + size])

    @property
    def rows_needed(self) -> int:
        """The smallest of ``row_sizes`` that includes every active slot."""
        last = max((slot for slot, busy in enumerate(self._busy) if busy), default=0)
        return next(rows for rows in self.row_sizes if rows > last)

    def assign(self, slot: int, drafter: PlanDrafter | None) -> None:
        """Assign a drafter to a slot; with None, the slot does not draft."""
        self._drafters[slot] = drafter

    def drafter(self, slot: int) -> PlanDrafter | None:
        """Return the drafter that reads the slot's prompt and text: the engine's own for a slot that does not draft."""
        return self._drafters[slot] or next(iter(self._own), None)

    @property
    def drafters_needed(self) -> Drafters:
        """The drafters of the active slots, each once; the engine's own if none of them drafts."""
        found = (each for each, busy in zip(self._drafters, self._busy, strict=True) if busy and each)
        return tuple(dict.fromkeys(found)) or self._own

    def turn_to(self, rows: int, drafters: Drafters, passes: dict[PassKind, Pass], *, waits: bool) -> None:
        """Run the first ``rows`` slots in the next round, with ``passes``, to which missing passes are added.

        If the round ``waits`` for the host, each of its passes is captured instead of the round.
        """
        self._rows, self._running, self._passes, self._waits = rows, drafters, passes, waits

    def place(self, slot: int, following: Mapping[str, int], drafts: int, start: int) -> None:
        """Make a slot active, with the one-row window at the addresses of the ``NEXT`` tensors.

        The window begins at ``start``.
        """
        if not any(self._busy):
            self._columns = drafts + 1
        columns = min(self._columns, drafts + 1)
        row = self._window["input_ids"] + slot * self._columns * _ID
        self._device.copy(row, following["next_input_ids"], columns * _ID)
        self._device.copy(self._window["start"] + slot * _ID, following["next_start"], _ID)
        self._straighten(slot)
        self._busy[slot], self._drafts[slot], self._uploaded[slot] = True, columns - 1, _UNKNOWN
        self._reach.place(slot, start)

    @ranged("copy windows")
    def prepare(self, k: int) -> None:
        """Lay out the windows for a round of ``k``, dropping the drafts that it does not verify."""
        self._cut(k)
        self._prepare(k)

    def _cut(self, k: int) -> None:
        self._lay_out(k + 1)
        if self.limits:
            self._drafts = [min(each) for each in zip(self._drafts, self.limits, strict=True)]

    def _prepare(self, k: int) -> None:
        """Upload the counts of windows that are laid out for ``k`` drafts."""
        for slot, busy in enumerate(self._busy):
            if busy and self._uploaded[slot] != self._drafts[slot]:
                drafts = self._uploaded[slot] = self._drafts[slot]
                for name, count in (("window_len", drafts + 1), ("draft_len", drafts)):
                    address = self._window[name] + slot * itemsize("int32")
                    self._device.upload(address, self._counts[count : count + 1])
        self._drafted = tuple(drafts * busy for drafts, busy in zip(self._drafts, self._busy, strict=True))
        forking = enumerate(zip(self._forks, self._busy, strict=True))
        self._forked = tuple(slot for slot, (forks, busy) in forking if forks and busy)
        self._verified = k
        self.positions = self._reach.of_windows(k + max(k, 1))  # of the drafter's pass, which is wider

    @ranged("verify and accept")
    def verify(self, k: int) -> None:
        """Enqueue the kernel that gathers the random numbers, then the target over the windows.

        Waits for it if the host chooses the tokens of a row.
        """
        self._cut(k)
        self._prepare(self._guided(k))
        memory, sizes = self._memory, self._sizes
        choose_numbers(self._device, memory.numbers, memory.numbers_length, self.tensors, sizes)
        self._enqueue("target", sizes)
        for slot, choice in self._chosen():
            self._host.replace(slot, choice, self.tensors, sizes, self._drafts[slot])
        # A row that drafts on the host may still have a tree of a drafter that left; its rounds are not captured.
        has_trees = (self._waits and self._forked) or any(self._grows(each) for each in self._running)
        if self._verified and has_trees:
            self._close_up(sizes)

    def _grows(self, drafter: PlanDrafter) -> bool:
        """Return True if windows that this drafter lays out, and those of its slots in any round, may be trees."""
        return self._verifies_trees and drafter.plan.part.names_candidates

    def _close_up(self, sizes: WindowSizes) -> None:
        """Move keys, values and features of the accepted paths to where those of a chain would be."""
        for entries in self._memory.caches.entries():
            close_up(self._device, entries, self.tensors["start"], self.tensors, sizes)
        if "aux_hidden" in self._target.part.outputs:
            size = self._memory.sizer.bytes("aux_hidden", WindowSizes(1, 1, sizes.emitted))
            features = EntryStack(self.tensors["aux_hidden"], 1, sizes.rows, 1, sizes.columns, size)
            close_up(self._device, features, self._zeros, self.tensors, sizes)

    @ranged("draft")
    def draft(self, k: int) -> None:
        """Enqueue the drafter over the windows; it writes the next windows itself.

        A parallel drafter makes as many drafts as the windows had, ``k`` or what grammars forced beyond that.
        """
        self.grown = ()
        for each in self._running:
            self._draft(each, k)

    @ranged("draft")
    def draft_tree(self, k: int) -> None:
        """Draft, and replace the chains by trees; in rounds in which the host chooses tokens, chains stay."""
        self.grown = () if self._chosen() else tuple(each for each in self._running if self._grows(each))
        for each in self._running:
            self._draft(each, k)

    def _draft(self, drafter: PlanDrafter, k: int) -> None:
        self._enqueue("drafter", self._sizes, drafter)
        following = self._following(drafter)
        if drafter in self.grown:
            num_candidates = drafter.sizer.shape(CANDIDATES[0], self._sizes)[-1]
            grow_trees(self._device, following, drafter.outputs, num_candidates, self._sizes)
        else:
            self._device.copy(following[NEXT_SKIPPED], self._zeros, self._zeros_size)
        if drafter.chain is not None:
            drafter.chain.lay_out(following[NEXT[0]], following[NEXT[1]], self._rows, k + 1)

    @ranged("draft")
    def extend(self) -> None:
        """Enqueue a further pass of an autoregressive drafter, over its last draft."""
        for each in self._running:
            if each.chain is not None:
                each.chain.feed(self._rows)
                self._enqueue(FURTHER, further_sizes(self._rows, self.positions), each)
                each.chain.take(self._rows)

    def defer(self) -> None:
        """Enqueue the narrowest drafter pass at once: a CUDA graph cannot know where to defer features to."""
        self.draft(1)

    @ranged("copy windows")
    def advance(self, k: int) -> None:
        """Enqueue the copy of the next windows over the current ones; with ``k`` 0, of the newest tokens only."""
        if not k:
            self._newest.enqueue(self.tensors, self._sizes)
            self._device.copy(self._next[NEXT_SKIPPED], self._zeros, self._zeros_size)
            self.grown = ()
        num_drafts = self._verified if k and self._is_parallel else k
        if k and len(self._running) > 1:
            self._gather(num_drafts + 1)
        # The lengths come from the host, unless a pass has written all of the window.
        is_whole = k > 0 and self._is_whole
        size = self._window.size if is_whole else self._window.offsets["window_len"]
        self._device.copy(self._window.base, self._next.base, size)
        self.advanced(num_drafts, self.grown)

    def advanced(self, k: int, grown: Drafters) -> None:
        """Record the state of the windows after ``advance(k)``, whether enqueued or replayed.

        The drafts of the drafters ``grown`` are trees.
        """
        self._forks = [bool(grown) and (each or self._running[0]) in grown for each in self._drafters]
        self._columns = k + 1
        self._drafts = [k] * self._memory.slots
        if k and self._is_whole:
            self._uploaded = list(self._drafts)

    @property
    def num_draft_columns(self) -> int:
        """Number of drafts that the windows can hold."""
        return self._columns - 1

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Upload the drafts of active slots, after their newest tokens; ``verify`` uploads the counts."""
        rows = zip(self._drafts, self._busy, drafts, strict=True)
        draft_counts = [count if busy and each is None else 0 for count, busy, each in rows]
        counts = [count if each is None else len(each) for count, each in zip(draft_counts, drafts, strict=True)]
        self._drafts = draft_counts  # drops the drafts of other slots
        self._lay_out(max(counts) + 1)
        self._drafts = counts
        with self._staging.block() as block:
            ids = block.view(np.int64).reshape(len(drafts), -1)
            for slot, busy in enumerate(self._busy):
                if busy and (proposed := drafts[slot]):
                    own_ids = ids[slot, : len(proposed)]
                    own_ids[:] = proposed
                    self._straighten(slot)
                    self._device.upload(self._window["input_ids"] + (slot * self._columns + 1) * _ID, own_ids)

    def emission(self) -> DeferredEmission:
        """Fetch the emission of the round, i32 [slots, K + 1]; reading it waits for the copy."""
        k, shape = self._verified, (self._rows, emitted_columns(self._verified))
        return self._readback.start(self.tensors, *shape, k + 1, self._drafted, self._forked)

    def deferred_emission(self) -> DeferredEmission:
        """Return ``emission`` of a fully launched round, and update the cache length that its windows need."""
        emission = self.emission()
        emission.on_counts = self._reach.launched(self._drafted)
        return emission

    def is_capturable(self) -> bool:
        """Return True if a CUDA graph can capture every pass of the round."""
        return all(run.is_capturable for run in self._passes.values())

    @property
    def _is_parallel(self) -> bool:
        return all(each.chain is None for each in self._running)

    @property
    def _is_whole(self) -> bool:
        """Return True if one pass writes all of the next windows."""
        return self._is_parallel and len(self._running) <= 1

    def _following(self, drafter: PlanDrafter) -> Addresses:
        """Return where a drafter writes the next windows."""
        return self._next.addresses if len(self._running) == 1 else drafter.following

    def _gather(self, columns: int) -> None:
        """Take the next window of each active slot, of ``columns`` columns, from its drafter."""
        row = columns * _ID
        parts = ((NEXT[0], row), (NEXT_SKIPPED, row), (NEXT[1], _ID))
        for slot, drafter in enumerate(self._drafters[: self._rows]):
            if self._busy[slot]:
                following = (drafter or self._running[0]).following
                for name, size in parts:
                    self._device.copy(self._next[name] + slot * size, following[name] + slot * size, size)

    @property
    def _sizes(self) -> WindowSizes:
        """Sizes of the windows that this round verifies."""
        return WindowSizes(self._rows, self._verified + 1, emitted_columns(self._verified), self.positions)

    def _chosen(self) -> list[tuple[int, TokenChoice]]:
        """Return the active slots whose tokens the host chooses."""
        return [(slot, each) for slot, each in enumerate(self.choices) if each is not None and self._busy[slot]]

    def _guided(self, k: int) -> int:
        """Let grammars replace the drafts of their rows, and return how many drafts the windows then have room for.

        Forced drafts may be more than ``k``; the windows then get one of a few widths, because each needs contexts.
        """
        proposals: list[list[int] | None] = [None] * self._memory.slots
        for slot, choice in self._chosen():
            if choice.grammar is not None:
                ids = self._window["input_ids"] + (slot * self._columns + 1) * _ID
                own_drafts = self._host.drafts(ids, self._drafts[slot])
                proposals[slot] = [*choice.drafts(own_drafts, min(k, self.limits[slot]) if self.limits else k)]
        if any(each is not None for each in proposals):
            self.propose(proposals)
            longest = max(self._drafts)
            k = k if longest <= k else next(width for width in self._widths if width >= longest)
            self._lay_out(k + 1)
        return k

    def _lay_out(self, columns: int) -> None:
        """Move the windows to rows of ``columns`` columns; drafts that do not fit are dropped."""
        old, self._columns = self._columns, columns
        if old == columns:
            return
        self._drafts = [min(drafts, columns - 1) for drafts in self._drafts]
        if not any(self._busy):
            return
        for name, spare_name in zip(_WINDOW[:2], _NEXT[:2], strict=True):
            window, spare = self._window[name], self._next[spare_name]
            for slot, drafts in enumerate(self._drafts):
                if self._busy[slot]:
                    self._device.copy(spare + slot * columns * _ID, window + slot * old * _ID, (drafts + 1) * _ID)
            self._device.copy(window, spare, self._memory.slots * columns * _ID)

    def _straighten(self, slot: int) -> None:
        """Make the window of a slot a chain."""
        row = self._window[SKIPPED] + slot * self._columns * _ID
        self._device.copy(row, self._zeros, self._columns * _ID)
        self._forks[slot] = False

    def _enqueue(self, kind: str, sizes: WindowSizes, drafter: PlanDrafter | None = None) -> None:
        run = self._pass(kind, sizes, drafter)
        if self._waits:
            run.replay()
        else:
            run.enqueue()

    def _pass(self, kind: str, sizes: WindowSizes, drafter: PlanDrafter | None) -> Pass:
        """Return the pass of a half, or ``FURTHER``, for these sizes; create it if the round has none."""
        key = kind, TARGET if drafter is None else drafter.number, sizes
        if key not in self._passes:
            profile_for = further_profile if kind == FURTHER else round_profile
            if drafter is None:
                plan, caches, scratch = self._target, self._memory.caches, self._scratch
                shapes = self._memory.sizer.shapes(plan.part.inputs, sizes)
                tensors: Addresses = self.tensors
            else:
                plan, caches, scratch = drafter.plan, drafter.caches, drafter.scratch
                base = {**self.tensors, **drafter.outputs, **self._following(drafter)}
                shapes, tensors = bindings(kind, plan.part, drafter.sizer, sizes, base, drafter.chain)
            run = plan.context(profile_for(plan.part, sizes.rows), *scratch)
            cache_shapes, cache_addresses = caches.first_rows(sizes.rows)
            run.bind({**shapes, **cache_shapes}, {**tensors, **cache_addresses})
            self._passes[key] = run
        return self._passes[key]

    def _idle_windows(self) -> np.ndarray:
        """Return the bytes of a window block in which every slot is idle. They never change, so copies of them can
        be pending."""
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
    """Return the row counts that a round can have: 1, 2, 4, ..., all. Few kinds of rounds thus serve any number of
    requests."""
    return (*(1 << power for power in range(slots.bit_length()) if 1 << power < slots), slots)
