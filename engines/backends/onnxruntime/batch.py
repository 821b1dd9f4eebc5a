"""The lanes of all slots in one pass: B rows of S columns, for kernels that take them.

Requests lie in the first rows of the caches, without a gap, so that a batch of them is the beginning of every array: a
row that is given back gets what the last one holds. One whose prompt is being read lies behind those that run, and no
round touches its row: it would write over its beginning. Windows are filled up to the widest; their lengths say what
counts, and what the other columns leave in the caches lies behind that, and is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....plugins.graph_contract import (
    ANCESTORS,
    CANDIDATES,
    DRAFTER_INPUTS,
    EMITTED,
    NEXT,
    POLICY,
    TARGET_INPUTS,
    WINDOW,
    written,
)
from ...requests.params import SamplingParams
from ...running.token_choice import TokenChoice
from ..base import Chunk
from ..draft_tree import DraftTree, chain_ancestors
from .batch_row import BatchRow
from .held_columns import HeldColumns, read_held
from .lanes import HELD, Emitted, Sessions
from .loaded_graphs import LOGITS, bind, run, run_for_logits
from .memory import Arrays, CacheArrays, RowWindow, SlotArrays
from .pass_arrays import PassArrays

_LENGTHS = WINDOW[1:]  # a number for every row
_TARGETS = (*TARGET_INPUTS, ANCESTORS, *EMITTED, "aux_hidden")
_DRAFTERS = (*DRAFTER_INPUTS, *NEXT, *CANDIDATES)
_DEEPEST = 6  # of a tree: the positions that a drafter is asked for


class BatchLanes:
    """Runs a round as one pass of each graph over all requests; rows that no request has are not run."""

    def __init__(self, sessions: Sessions, caches: CacheArrays, slots: int, emitted: int) -> None:
        """Make the arrays of rounds that emit up to ``emitted`` tokens a row."""
        self._sessions, self._caches, self._slots = sessions, caches, slots
        self._columns = max(emitted, sessions.least_columns)
        self._requests: dict[int, BatchRow] = {}  # by slot
        self._busy: list[BatchRow] | None = None  # those that take part in rounds; None: to be looked up
        self._policies: list[SlotArrays | None] = [None] * slots  # whose policy each row of the arrays has
        self._target = PassArrays(_TARGETS, slots, self._columns, emitted, sessions)
        self._drafter = PassArrays(_DRAFTERS, slots, HELD + 2 * emitted, emitted, sessions)
        self._shape = (0, 0, 0)  # of the last target pass: rows, columns, emitted
        self._emitted, self._drafted = 1, [0] * slots
        self._bindings: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.limits: Sequence[int] = ()  # of drafts that a round verifies, by slot
        self._chain = sessions.chain(slots)

    def begin(self) -> None:
        """Make every slot idle."""
        self._requests.clear()
        self._busy = None

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray, choice: TokenChoice | None = None) -> None:
        """Give the slot the row behind those that are taken."""
        self.retire(slot)
        row = len(self._requests)
        held = HeldColumns(self._sessions.most_held)
        self._requests[slot] = BatchRow(SlotArrays(self._caches, row), RowWindow(self._columns), row, held)
        self._requests[slot].arrays.admit(params, numbers, choice)

    def arrays(self, slot: int) -> SlotArrays:
        """The slot's row of the caches, and its policy; for passes over it alone."""
        return self._requests[slot].arrays

    def window(self, slot: int) -> RowWindow:
        """The slot's window, which the end of a prompt lays out."""
        return self._requests[slot].window

    def held(self, slot: int) -> HeldColumns:
        """The slot's columns that the drafter has yet to read."""
        return self._requests[slot].held

    def has_read(self, slot: int, chunk: Chunk) -> None:
        """Note a piece of the slot's prompt; after the last it takes part in rounds."""
        request = self._requests[slot]
        request.known, request.is_busy, self._busy = chunk.start + len(chunk.ids), chunk.is_last, None

    def has_restored(self, slot: int, length: int) -> None:
        """Note that the slot's rows hold so many positions of its prompt."""
        self._requests[slot].known = length

    def retire(self, slot: int) -> None:
        """Leave the slot out of later rounds; what the last rows hold moves up, so that those that run have no gap."""
        gone = self._requests.pop(slot, None)
        if gone is None:
            return
        self._busy, free = None, gone.row
        for other in (*self._rows()[-1:], *(each for each in self._requests.values() if not each.is_busy)):
            if other.row > free:
                free = self._move(other, free)

    def _move(self, request: BatchRow, row: int) -> int:
        """Move a request to another row, and return the one that it leaves."""
        known = int(request.window.start[0]) if request.is_busy else request.known
        for cache in (*self._caches.target.values(), *self._caches.drafter.values()):
            cache[row, :, :known] = cache[request.row, :, :known]  # what lies behind is written before it is read
        left, request.row, self._busy = request.row, row, None
        request.arrays = request.arrays.moved_to(self._caches, row)
        return left

    def windows(self) -> list[RowWindow]:
        """The windows of the slots that take part in rounds."""
        return [request.window for request in self._rows()]

    def verify(self, k: int) -> None:
        """Run the target over all rows at once, as wide as the most drafts of one, which are cut to ``k``."""
        self._drafted = [0] * self._slots
        for slot, request in self._requests.items():
            choice = request.arrays.choice if request.is_busy else None
            request.held.go_on_at(int(request.window.start[0]))
            request.window.cut(min(k, self.limits[slot]) if self.limits else k, choice)
            self._drafted[slot] = int(request.window.draft_len[0]) if request.is_busy else 0
        rows, emitted = self._rows(), max(self._drafted) + 1
        self._emitted = max(k + 1, emitted)
        if not rows:
            return
        columns = max(emitted, self._sessions.least_columns)
        self._shape = (len(rows), columns, emitted)
        arrays = self._target.of(len(rows), columns, emitted)
        for at, request in enumerate(rows):
            self._lay_out(arrays, at, request, columns, emitted)
        shows_logits, logits = any(request.arrays.choice for request in rows), np.empty(0)
        binding = self._target_binding(rows, arrays, shows_logits)
        if shows_logits:
            logits = run_for_logits(self._sessions.target, binding)
        else:
            run(self._sessions.target, binding)
        for at, request in enumerate(rows):
            request.tokens = arrays["tokens"][at, : arrays["num_tokens"][at]].tolist()
            if choice := request.arrays.choice:
                drafts = request.window.drafts()
                request.tokens = choice.emit(logits[at], drafts, arrays["uniform"][at], request.tokens)
            request.close_up()

    def draft(self, k: int) -> None:
        """Run the drafter over all rows at once, for what it has not seen of them."""
        self._draft_all(k, size=0)

    def branch(self, k: int) -> None:
        """Do the same, for trees of ``k`` drafts in the rows whose tokens the graph chooses."""
        if self._sessions.is_told and self._sessions.candidates:
            self._draft_all(min(k, _DEEPEST), size=k)
        else:
            self.draft(k)

    def _draft_all(self, k: int, size: int) -> None:
        rows = self._rows()
        for request in rows:
            if request.held.count > HELD:
                self._read_held(request)
        columns = max((request.fed_columns for request in rows), default=0)
        if all(request.fed_start + columns + k - 1 <= self._caches.length for request in rows):
            self._draft(rows, k, size)
        else:  # one is so near its end that the columns of another do not fit behind it
            for request in rows:
                self._draft([request], k, size)

    def _read_held(self, request: BatchRow) -> None:
        following, caches = int(request.window.input_ids[0, 0]), _rows_of(self._caches.drafter, [request])
        read_held(self._sessions.drafter, request.held, following, caches, self._chain, request.row)

    def extend(self) -> None:
        """Run an autoregressive drafter over the last drafts of all rows at once, for those after them."""
        rows = self._rows()
        if self._chain is None or not rows:
            return
        drafts = [request.following[0][-1] for request in rows]
        positions = [request.following[1] + len(request.following[0]) - 2 for request in rows]
        made = self._chain.extend(rows[0].row, drafts, positions, _rows_of(self._caches.drafter, rows))
        for request, draft in zip(rows, made, strict=True):
            request.following = [*request.following[0], draft], request.following[1]

    def hold(self) -> None:
        """Keep what every row committed for its next drafter pass; one is made when no more can be kept."""
        arrays = self._target.of(*self._shape)
        ids, features = arrays["input_ids"], arrays["aux_hidden"]
        for at, request in enumerate(self._rows()):
            count = request.committed
            if not request.held.has_room(count):
                self._read_held(request)
            start, columns = int(request.window.start[0]), slice(count) if request.path is None else request.columns
            request.held.add(ids[at, columns], features[at, columns], start)

    def advance(self, k: int) -> None:
        """Lay out the next window of every busy row in place of the last."""
        for request in self._rows():
            if k and request.tree:
                request.window.fill_tree(request.following[0][0], request.tree, request.following[1])
            elif k:
                request.window.fill(*request.following, draft_len=len(request.following[0]) - 1)
            else:
                start = int(request.window.start[0]) + request.committed
                request.window.fill(request.tokens[-1:], start, draft_len=0)

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Write the drafts into the windows of busy rows, behind their newest tokens."""
        for slot, request in self._requests.items():
            if request.is_busy and (mine := drafts[slot]) is not None:
                request.window.put_drafts(mine)

    def emission(self) -> Emitted:
        """Collect what every busy row emitted, i32 [slots, K + 1]; idle slots are -1."""
        tokens = np.full((self._slots, self._emitted), -1, np.int32)
        num_tokens = np.zeros(self._slots, np.int32)
        for slot, request in self._requests.items():
            if request.is_busy:
                num_tokens[slot] = len(request.tokens)
                tokens[slot, : len(request.tokens)] = request.tokens
        nodes = {slot: request.nodes for slot, request in self._requests.items() if request.nodes is not None}
        return Emitted(tokens, num_tokens, tuple(self._drafted), nodes)

    def _rows(self) -> list[BatchRow]:
        """The requests that take part in rounds, in the order of their rows: 0, 1, 2, ..."""
        if self._busy is None:
            busy = (each for each in self._requests.values() if each.is_busy)
            self._busy = sorted(busy, key=lambda request: request.row)
        return self._busy

    def _lay_out(self, arrays: Arrays, at: int, request: BatchRow, columns: int, emitted: int) -> None:
        """Write a request's window, policy and numbers to a row of the target's arrays."""
        window = request.window
        arrays["input_ids"][at] = window.input_ids[0, :columns]
        for name in _LENGTHS:
            arrays[name][at] = getattr(window, name)[0]
        if self._policies[at] is not request.arrays:  # arrays of any shape are the same memory, so it stays
            for name in POLICY:
                arrays[name][at] = request.arrays.policy[name][0]
            self._policies[at] = request.arrays
        first = int(window.start[0]) + window.committed
        numbers = request.arrays.numbers[first : first + emitted]
        tree = window.tree
        if tree:
            numbers = numbers[np.minimum(tree.depths, len(numbers) - 1)]
        arrays["uniform"][at, : len(numbers)] = numbers
        if self._sessions.is_told:
            arrays[ANCESTORS][at] = chain_ancestors(columns)
            if tree:
                arrays[ANCESTORS][at, : len(tree.tokens) + 1, : len(tree.tokens) + 1] = tree.ancestors()

    def _target_binding(self, rows: Sequence[BatchRow], arrays: Arrays, shows_logits: bool) -> Any:
        key = "target", (*self._shape, shows_logits)
        if key not in self._bindings:
            caches = _rows_of(self._caches.target, rows)
            outputs = {name: arrays[name] for name in EMITTED}
            outputs |= {"aux_hidden": arrays["aux_hidden"]} if self._sessions.features else {}
            told = (ANCESTORS,) if self._sessions.is_told else ()
            inputs = {name: arrays[name] for name in (*TARGET_INPUTS, *told)} | caches
            bound = bind(self._sessions.target, inputs, outputs | {written(n): c for n, c in caches.items()})
            if shows_logits:
                bound.bind_output(LOGITS)
            self._bindings[key] = bound
        return self._bindings[key]

    def _draft(self, rows: Sequence[BatchRow], k: int, size: int) -> None:
        """Run the drafter over neighbouring rows, for trees of ``size`` drafts or, if that is 0, chains."""
        columns = max(*(request.fed_columns for request in rows), 1)
        arrays, made = self._drafter.of(len(rows), columns, k + 1), self._target.of(*self._shape)
        arrays["tokens"][:] = -1
        for at, request in enumerate(rows):
            held, end, from_row = request.held.count, request.fed_columns, request.row
            for name, kept in (("input_ids", request.held.ids), ("aux_hidden", request.held.features)):
                if held:
                    arrays[name][at, :held] = kept[:held]
                arrays[name][at, held:end] = made[name][from_row, request.columns]
            # What was accepted is committed like the rest: the last token alone was not fed. A path may be any length.
            for name, length in zip(_LENGTHS, (request.fed_start, end, 0), strict=True):
                arrays[name][at] = length
            arrays["num_tokens"][at], arrays["tokens"][at, 0] = 1, request.tokens[-1]
            request.held.clear()
        run(self._sessions.drafter, self._drafter_binding(rows, columns, k, arrays))
        laid_out = self._laid_out(rows, columns, k)
        for at, request in enumerate(rows):
            request.following = laid_out["next_input_ids"][at].tolist(), int(laid_out["next_start"][at])
            is_tree = size > 0 and request.arrays.choice is None
            ids, scores = (arrays[name][at].tolist() if is_tree else [] for name in CANDIDATES)
            request.tree = DraftTree.grown(ids, scores, size) if is_tree else None

    def _laid_out(self, rows: Sequence[BatchRow], columns: int, k: int) -> Arrays:
        """The arrays that a drafter pass writes the next windows to."""
        arrays = self._drafter.of(len(rows), columns, self._sessions.emitted(k))
        return {name: arrays[name] for name in NEXT}

    def _drafter_binding(self, rows: Sequence[BatchRow], columns: int, k: int, arrays: Arrays) -> Any:
        key = "drafter", (rows[0].row, len(rows), columns, k)
        if key not in self._bindings:
            caches = _rows_of(self._caches.drafter, rows)
            inputs = {name: arrays[name] for name in DRAFTER_INPUTS} | caches
            outputs = self._laid_out(rows, columns, k) | {written(n): c for n, c in caches.items()}
            outputs |= {name: arrays[name] for name in CANDIDATES if self._sessions.candidates}
            if self._chain:
                place = rows[0].row, len(rows)
                inputs, outputs = inputs | self._chain.reads(*place), outputs | self._chain.writes(*place)
            self._bindings[key] = bind(self._sessions.drafter, inputs, outputs)
        return self._bindings[key]


def _rows_of(caches: Arrays, rows: Sequence[BatchRow]) -> Arrays:
    """Neighbouring rows of every cache."""
    return {name: cache[rows[0].row : rows[-1].row + 1] for name, cache in caches.items()}
