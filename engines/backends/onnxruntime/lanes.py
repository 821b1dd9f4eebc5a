"""Lanes of all slots on ONNX Runtime: rows that share their passes, or that run one by one.

The project's kernels process B rows of S columns in one pass. ONNX Runtime's attention takes only one row per call if a
window is wider than 1; each row then has its own passes and arrays.

Rows that share passes occupy the first rows of the caches without a gap, so a batch is a prefix of every array. When a
row is freed, the last active row moves into it. Rows whose prompts are being read come anywhere after the active ones,
so that no round overwrites the beginning of their caches. When such a prompt ends, its row moves to the end of the
active ones; the row that occupied this place moves behind all others. All rows share a target pass, and adjacent rows
with the same drafter share a pass of it. Windows are padded to the widest one. Their lengths tell which columns are
valid; cache entries of the others lie after the valid ones and are overwritten later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from ....plugins.graph_contract import (
    ANCESTORS,
    CANDIDATES,
    DEEPEST,
    DRAFTER_INPUTS,
    EMITTED,
    NEXT,
    POLICY,
    TARGET_INPUTS,
    WINDOW,
    written,
)
from ...draft_methods.draft_tree import DraftTree, chain_ancestors
from ...requests.params import SamplingParams
from ...running.token_choice import TokenChoice
from ..base import Chunk
from .loaded_drafter import LoadedDrafter
from .loaded_graphs import LOGITS, bind, run, run_for_logits
from .memory import Arrays, SlotArrays
from .pass_arrays import PassArrays
from .pending_columns import FREED, PendingColumns, read_pending
from .sessions import HELD, Emitted, Sessions
from .slot_row import SlotRow
from .window import NextWindow

_LENGTHS = WINDOW[1:]  # one number per row
_TARGETS = (*TARGET_INPUTS, ANCESTORS, *EMITTED, "aux_hidden")


class RowGroup:
    """Adjacent cache rows that share their target passes, with their arrays and bindings."""

    def __init__(self, sessions: Sessions, first: int, rows: int, columns: int, emitted: int, max_held: int) -> None:
        """Allocate arrays for ``rows`` rows from ``first`` on; a drafter pass includes up to ``max_held`` deferred
        columns."""
        self.first, self.max_held = first, max_held
        self.target = PassArrays(_TARGETS, rows, columns, emitted, sessions)
        self._of_drafters = first, rows, max_held + 2 * emitted, emitted
        self.policies: list[Arrays | None] = [None] * rows  # the policy that each row of the arrays holds
        self.shape = (0, 0, 0)  # of the last target pass: rows, columns, emitted
        self.arrays: Arrays = {}  # its arrays
        self.chains: set[int] = set()  # rows whose ancestors array, in this shape, is that of a chain
        self.bindings: dict[tuple[str, tuple[int, ...]], Any] = {}

    def drafting(self, drafter: LoadedDrafter) -> PassArrays:
        """Return the arrays of the drafter's passes over these rows."""
        return drafter.arrays(*self._of_drafters)


class SessionLanes:
    """Runs a round as one pass per graph over all requests (for drafters: over all that use it), or over each request.

    Rows without a request are skipped.
    """

    def __init__(self, own_drafter: LoadedDrafter, slots: int, emitted: int, *, takes_rows: bool) -> None:
        """Allocate arrays for rounds that emit up to ``emitted`` tokens per row.

        ``own_drafter`` drafts for requests that name no other drafter. With ``takes_rows``, a pass covers all rows;
        otherwise each row has its own passes and its slot's cache row.
        """
        self._own, self._slots, self.takes_rows = own_drafter, slots, takes_rows
        self._sessions, self._caches = own_drafter.sessions, own_drafter.caches  # read for what all drafters share
        sessions = self._sessions
        columns = max(emitted, sessions.min_columns)
        self._requests: dict[int, SlotRow] = {}  # by slot
        self._unused: list[PendingColumns] = []  # of requests that have ended
        self._busy: list[SlotRow] | None = None  # active requests; None: not computed yet
        firsts, rows, held = ((0,), slots, HELD) if takes_rows else (range(slots), 1, 0)
        self._groups = [RowGroup(sessions, first, rows, columns, emitted, held) for first in firsts]
        self._drafted = [0] * slots
        self.limits: Sequence[int] = ()  # maximum number of verified drafts, by slot

    def begin(self) -> None:
        """Make every slot idle."""
        for slot in [*self._requests]:
            self._remove(slot)

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        numbers: np.ndarray,
        choice: TokenChoice | None = None,
        drafter: LoadedDrafter | None = None,
    ) -> None:
        """Assign a cache row to the slot: the one after those in use, or its own."""
        self.retire(slot)
        row, drafter = min(self._free_rows) if self.takes_rows else slot, drafter or self._own
        arrays = SlotArrays(drafter.caches, row)
        held = self._unused.pop() if self._unused else PendingColumns(self._sessions.max_held)
        self._requests[slot] = SlotRow(drafter, arrays, NextWindow(), row, held)
        arrays.admit(params, numbers, choice)

    def drafter(self, slot: int) -> LoadedDrafter:
        """Return the slot's drafter."""
        return self._requests[slot].drafter

    def arrays(self, slot: int) -> SlotArrays:
        """Return the slot's cache row and policy, for passes over it alone."""
        return self._requests[slot].arrays

    def window(self, slot: int) -> NextWindow:
        """Return the slot's window, which the end of a prompt lays out."""
        return self._requests[slot].window

    def held(self, slot: int) -> PendingColumns:
        """Return the slot's deferred columns, which the drafter has not read."""
        return self._requests[slot].held

    def has_read(self, slot: int, chunk: Chunk) -> None:
        """Record a chunk of the slot's prompt; after the last one, the slot becomes active."""
        request = self._requests[slot]
        request.known = chunk.start + len(chunk.ids)
        if chunk.is_last:
            if self.takes_rows and request.row != (row := len(self._rows())):
                self._move_to_row(request, row)
            request.is_busy, self._busy = True, None

    def has_restored(self, slot: int, length: int) -> None:
        """Record that the slot's cache rows contain ``length`` positions of its prompt."""
        self._requests[slot].known = length

    def retire(self, slot: int) -> None:
        """Exclude the slot from later rounds; the last row moves into its place, so that active rows have no gap."""
        request = self._remove(slot)
        if request is None or not self.takes_rows:
            return
        if (rows := self._rows()) and rows[-1].row > request.row and request.is_busy:
            self._move(rows[-1], request.row)

    def _remove(self, slot: int) -> SlotRow | None:
        self._busy = None
        if request := self._requests.pop(slot, None):
            request.held.clear()
            self._unused.append(request.held)
        return request

    @property
    def _free_rows(self) -> set[int]:
        return {*range(self._slots)} - {request.row for request in self._requests.values()}

    def _move_to_row(self, request: SlotRow, row: int) -> None:
        """Move a request to a row; the request that is there goes to the last free row, or changes places with it."""
        other = next((each for each in self._requests.values() if each.row == row), None)
        if other is None:
            self._move(request, row)
        elif free := self._free_rows:
            self._move(other, max(free))
            self._move(request, row)
        else:
            moved, left = request.arrays.keep(0, request.known), request.row
            self._move(other, left)
            self._place(request, row)
            request.arrays.restore(moved)

    def _move(self, request: SlotRow, row: int) -> None:
        """Move a request to another row, with its cache entries."""
        known = request.window.start if request.is_busy else request.known
        caches = request.drafter.caches
        for cache in (*caches.target.values(), *caches.drafter.values()):
            cache[row, :, :known] = cache[request.row, :, :known]  # later positions are written before they are read
        self._place(request, row)

    def _place(self, request: SlotRow, row: int) -> None:
        request.row, self._busy = row, None
        request.arrays = request.arrays.moved_to(request.drafter.caches, row)

    def windows(self) -> list[NextWindow]:
        """The windows of the active slots."""
        return [request.window for request in self._rows()]

    def verify(self, k: int) -> None:
        """Run the target over all rows. The pass is as wide as the largest number of drafts of a row, at most ``k``."""
        self._drafted = [0] * self._slots
        for slot, request in self._requests.items():
            if request.is_busy:
                window = request.window
                request.held.resume_at(window.start)
                window.cut(min(k, self.limits[slot]) if self.limits else k, request.arrays.choice)
                self._drafted[slot] = len(window.drafts)
        for group, rows in self._grouped():
            self._verify(group, rows)

    def _verify(self, group: RowGroup, rows: Sequence[SlotRow]) -> None:
        emitted = max(len(request.window.drafts) for request in rows) + 1
        columns = max(emitted, self._sessions.min_columns)
        if group.shape != (shape := (len(rows), columns, emitted)):
            group.shape, group.arrays = shape, group.target.of(*shape)
            group.chains.clear()
        arrays = group.arrays
        for at, request in enumerate(rows):
            self._lay_out(group, at, request)
        shows_logits, logits = any(request.arrays.choice for request in rows), np.empty(0)
        binding = self._target_binding(group, rows, shows_logits)
        if shows_logits:
            logits = run_for_logits(self._sessions.target, binding)
        else:
            run(self._sessions.target, binding)
        for at, request in enumerate(rows):
            tokens = arrays["tokens"][at, : arrays["num_tokens"][at]].tolist()
            if choice := request.arrays.choice:
                tokens = choice.emit(logits[at], request.window.drafts, arrays["uniform"][at], tokens)
            request.commit(tokens)

    def draft(self, k: int) -> None:
        """Run each drafter over its rows, for the columns that it has not read."""
        for group, drafter, rows in self._by_drafter():
            self._draft_all(group, drafter, rows, k, size=0)

    def draft_tree(self, k: int) -> None:
        """Run the drafter like ``draft``, but build trees of ``k`` drafts in the rows whose tokens the graph chooses.

        Rows that run one by one get chains, because their kernels do not support trees.
        """
        for group, drafter, rows in self._by_drafter():
            if self.takes_rows and self._sessions.takes_ancestors and drafter.sessions.candidates:
                self._draft_all(group, drafter, rows, min(k, DEEPEST), size=k)
            else:
                self._draft_all(group, drafter, rows, k, size=0)

    def _draft_all(self, group: RowGroup, drafter: LoadedDrafter, rows: Sequence[SlotRow], k: int, size: int) -> None:
        for request in rows:
            if request.held.count > group.max_held:
                _read_held(request)
        columns = max(request.fed_columns for request in rows)
        if all(request.fed_start + columns + k - 1 <= self._caches.length for request in rows):
            self._draft(group, drafter, rows, k, size)
        else:  # a row is so near its end that the columns of another do not fit
            for request in rows:
                self._draft(group, drafter, [request], k, size)

    def extend(self) -> None:
        """Run autoregressive drafters over the last drafts of their rows, to get the next ones."""
        for _, drafter, rows in self._by_drafter():
            if drafter.chain is None:
                continue
            drafts = [request.following.drafts[-1] for request in rows]
            positions = [request.following.start + len(request.following.drafts) - 1 for request in rows]
            next_drafts = drafter.chain.extend(rows[0].row, drafts, positions, _rows_of(drafter.caches.drafter, rows))
            for request, draft in zip(rows, next_drafts, strict=True):
                request.following.drafts = [*request.following.drafts, draft]

    def defer(self) -> None:
        """Defer the committed columns of every row to its next drafter pass.

        If they do not fit, the first deferred ones are read now.
        """
        for group, rows in self._grouped():
            features = group.arrays["aux_hidden"]
            for at, request in enumerate(rows):
                if not request.held.has_room(request.committed):
                    _read_held(request, FREED)
                window = request.window
                request.held.add((window.newest, *request.tokens[:-1]), features[at, request.columns], window.start)

    def advance(self, k: int) -> None:
        """Lay out the next window of every active row in place of the last one."""
        for request in self._rows():
            if k:
                request.window = request.following
            else:
                request.window.fill(request.tokens[-1], (), request.window.start + request.committed)

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Write the drafts into the windows of active rows, after their newest tokens."""
        for slot, request in self._requests.items():
            if request.is_busy and (proposed := drafts[slot]) is not None:
                request.window.put_drafts(proposed)

    def emission(self, pass_seconds: tuple[float, float] | None = None) -> Emitted:
        """Return the tokens that every active row emitted."""
        tokens: list[Sequence[int]] = [()] * self._slots
        for slot, request in self._requests.items():
            if request.is_busy:
                tokens[slot] = request.tokens
        nodes = {slot: request.nodes for slot, request in self._requests.items() if request.nodes is not None}
        return Emitted(tokens, self._drafted, nodes, pass_seconds)

    def _rows(self) -> list[SlotRow]:
        """The active requests in the order of their rows: 0, 1, 2, ..."""
        if self._busy is None:
            busy = (each for each in self._requests.values() if each.is_busy)
            self._busy = sorted(busy, key=lambda request: request.row)
        return self._busy

    def _grouped(self) -> Iterator[tuple[RowGroup, list[SlotRow]]]:
        """Yield the active requests by the group that shares target passes."""
        if self.takes_rows:
            yield from ((group, rows) for group in self._groups if (rows := self._rows()))
        else:
            yield from ((self._groups[request.row], [request]) for request in self._rows())

    def _by_drafter(self) -> Iterator[tuple[RowGroup, LoadedDrafter, list[SlotRow]]]:
        """Yield the active requests by the group and the drafter that share a drafter pass: adjacent rows."""
        for group, rows in self._grouped():
            for drafter, run_of_rows in groupby(rows, key=attrgetter("drafter")):
                yield group, drafter, list(run_of_rows)

    def _lay_out(self, group: RowGroup, at: int, request: SlotRow) -> None:
        """Write a request's window, policy and numbers to a row of the target's arrays."""
        window, arrays, (_, columns, emitted) = request.window, group.arrays, group.shape
        num_drafts = len(window.drafts)
        arrays["input_ids"][at, : num_drafts + 1] = window.newest, *window.drafts
        for name, length in zip(_LENGTHS, (window.start, num_drafts + 1, num_drafts), strict=True):
            arrays[name][at] = length
        policy = request.arrays.policy
        if group.policies[at] is not policy:  # arrays of all shapes share memory, so the row stays valid
            for name in POLICY:
                arrays[name][at] = policy[name][0]
            group.policies[at] = policy
        numbers = request.arrays.numbers[window.start + 1 : window.start + 1 + emitted]
        tree = window.tree
        if tree:
            numbers = numbers[np.minimum(tree.depths, len(numbers) - 1)]
        arrays["uniform"][at, : len(numbers)] = numbers
        if self._sessions.takes_ancestors and (tree or at not in group.chains):
            arrays[ANCESTORS][at] = chain_ancestors(columns)
            group.chains.add(at)
            if tree:
                arrays[ANCESTORS][at, : len(tree.tokens) + 1, : len(tree.tokens) + 1] = tree.ancestors()
                group.chains.discard(at)

    def _target_binding(self, group: RowGroup, rows: Sequence[SlotRow], shows_logits: bool) -> Any:
        key = "target", (*group.shape, shows_logits)
        if key not in group.bindings:
            arrays, caches = group.arrays, _rows_of(self._caches.target, rows)
            outputs = {name: arrays[name] for name in EMITTED}
            outputs |= {"aux_hidden": arrays["aux_hidden"]} if self._sessions.features else {}
            tree_input = (ANCESTORS,) if self._sessions.takes_ancestors else ()
            inputs = {name: arrays[name] for name in (*TARGET_INPUTS, *tree_input)} | caches
            bound = bind(self._sessions.target, inputs, outputs | {written(n): c for n, c in caches.items()})
            if shows_logits:
                bound.bind_output(LOGITS)
            group.bindings[key] = bound
        return group.bindings[key]

    def _draft(self, group: RowGroup, drafter: LoadedDrafter, rows: Sequence[SlotRow], k: int, size: int) -> None:
        """Run the drafter over adjacent rows, for trees of ``size`` drafts, or for chains if it is 0."""
        columns = max(*(request.fed_columns for request in rows), 1)
        arrays, target_arrays = group.drafting(drafter).of(len(rows), columns, k + 1), group.arrays
        arrays["tokens"][:] = -1
        for at, request in enumerate(rows):
            held, end, from_row = request.held.count, request.fed_columns, request.row - group.first
            for name, pending in (("input_ids", request.held.ids), ("aux_hidden", request.held.features)):
                if held:
                    arrays[name][at, :held] = pending[:held]
                arrays[name][at, held:end] = target_arrays[name][from_row, request.columns]
            # Accepted drafts are committed like other tokens; only the last token was not fed. A path has any length.
            for name, length in zip(_LENGTHS, (request.fed_start, end, 0), strict=True):
                arrays[name][at] = length
            arrays["num_tokens"][at], arrays["tokens"][at, 0] = 1, request.tokens[-1]
            request.held.clear()
        run(drafter.sessions.drafter, self._drafter_binding(group, drafter, rows, columns, k))
        laid_out = self._laid_out(group, drafter, len(rows), columns, k)
        for at, request in enumerate(rows):
            newest, *drafts = laid_out["next_input_ids"][at].tolist()
            request.following = NextWindow(newest, drafts, int(laid_out["next_start"][at]))
            if size > 0 and request.arrays.choice is None:
                ids, scores = (arrays[name][at].tolist() for name in CANDIDATES)
                request.following.put_tree(DraftTree.grown(ids, scores, size))

    def _laid_out(self, group: RowGroup, drafter: LoadedDrafter, rows: int, columns: int, k: int) -> Arrays:
        """Return the arrays that a drafter pass writes the next windows to."""
        arrays = group.drafting(drafter).of(rows, columns, drafter.sessions.emitted(k))
        return {name: arrays[name] for name in NEXT}

    def _drafter_binding(
        self, group: RowGroup, drafter: LoadedDrafter, rows: Sequence[SlotRow], columns: int, k: int
    ) -> Any:
        first, count = rows[0].row, len(rows)
        key = first, count, columns, k
        if key not in drafter.bindings:
            arrays = group.drafting(drafter).of(count, columns, k + 1)
            caches = _rows_of(drafter.caches.drafter, rows)
            inputs = {name: arrays[name] for name in DRAFTER_INPUTS} | caches
            outputs = self._laid_out(group, drafter, count, columns, k) | {written(n): c for n, c in caches.items()}
            outputs |= {name: arrays[name] for name in CANDIDATES if drafter.sessions.candidates}
            if chain := drafter.chain:
                inputs, outputs = inputs | chain.reads(first, count), outputs | chain.writes(first, count)
            drafter.bindings[key] = bind(drafter.sessions.drafter, inputs, outputs)
        return drafter.bindings[key]


def _read_held(request: SlotRow, max_columns: int | None = None) -> None:
    """Run the drafter over the columns that it has not read, or over the first so many."""
    drafter, following = request.drafter, request.window.newest
    caches = _rows_of(drafter.caches.drafter, [request])
    read_pending(drafter.sessions.drafter, request.held, following, caches, drafter.chain, request.row, max_columns)


def _rows_of(caches: Arrays, rows: Sequence[SlotRow]) -> Arrays:
    """Return adjacent rows of every cache."""
    return {name: cache[rows[0].row : rows[-1].row + 1] for name, cache in caches.items()}
