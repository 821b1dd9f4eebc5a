"""``Backend`` on ONNX Runtime for CPUs: the embedded default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...folder.graph_tensors import check_graph
from ...folder.manifest import Manifest
from ...requests.params import SamplingParams
from ...running.request import Drafter
from ...running.token_choice import TokenChoice
from ..base import Chunk, KeptEntries, RunBetween, Steps
from ..profiling import IN_PREFILL, IN_ROUND, EngineProfile, Profiler, phase
from .kernels import library_of
from .lanes import SessionLanes
from .loaded_drafter import LoadedDrafter
from .loaded_graphs import LOGITS, candidates_of, default_threads, hidden_size, open_session, tensors_of
from .memory import CacheArrays, KeptArrays, SlotArrays, row_bytes
from .pending_columns import PendingColumns
from .prefill import SessionPrompt
from .profiled_session import ProfiledSession
from .prompt_row import PromptRow
from .sessions import Emitted, Sessions
from .timed_lanes import TimedLanes
from .weights import Weights

# For one column, ONNX Runtime's kernels sum in another order than for several, whose results are bit-identical for any
# number. Where results are rounded afterwards, this can change some roundings, and the text would depend on the number
# of drafts. The project's own kernels do not have this problem, but an engine can use nodes of both.
_MIN_COLUMNS = 2
_TRIAL_COLUMNS = 24  # in mixture-of-experts graphs, only some tokens show a different summation order
_REUSED_COLUMNS = 1024  # columns of reused prompt rows; each row has the target's features of all its columns
_WIDE = "fp32"


@dataclass(frozen=True)
class KeptRow:
    """Saved positions: entries of the caches, and columns that the drafter has not read yet."""

    arrays: KeptArrays
    held: PendingColumns

    @property
    def num_bytes(self) -> int:
        """The size of the copies in bytes."""
        return self.arrays.num_bytes + self.held.num_bytes

    @property
    def is_read(self) -> bool:
        """Return True if the drafter had read all positions."""
        return not self.held.count


class OnnxRuntimeBackend:
    """Runs the graphs in ONNX Runtime; every call returns after its pass has ended.

    If ``threads`` is None, there is one per 4 MiB of weights, up to the number of physical cores.
    """

    lag = 0
    prepares_rounds = False

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        num_slots: int,
        threads: int | None,
        profiler: Profiler | None = None,
    ) -> None:
        self._profiler = profiler
        self.manifest, self.num_slots, self._folder = manifest, num_slots, folder
        self.prefill_columns = self.scored_columns = manifest.shapes.max_seq_len
        count, library = threads or default_threads(manifest), library_of(folder, manifest)
        self._opens = count, library, Weights()
        drafter = _checked_session(folder, manifest, "drafter", *self._opens, profiler) if manifest.drafter else None
        self._sessions = Sessions(
            _checked_session(folder, manifest, "target", *self._opens, profiler),
            drafter,
            features=len(manifest.shapes.taps) * manifest.shapes.hidden_size,
            hidden=hidden_size(drafter),
            min_columns=1,
            takes_ancestors=manifest.target.verifies_trees,
            candidates=candidates_of(drafter),
        )
        self._caches = CacheArrays(manifest, num_slots)
        self.kept_bytes = row_bytes(manifest) // manifest.shapes.cache_length
        self._max_emitted = manifest.max_drafts + 1
        self._supports_rows = supports_rows(manifest, library)
        self.keeps_exactly = self._supports_rows
        self._lanes = self._idle_lanes()
        self._first: Emitted | None = None
        self._is_warm = False
        if _rounds(manifest) and (library is None or not self._columns_are_their_own()):
            self._sessions = replace(self._sessions, min_columns=_MIN_COLUMNS)
            self._lanes = self._idle_lanes()

    @property
    def min_columns(self) -> int:
        """The minimum number of columns that the target is run over."""
        return self._sessions.min_columns

    def begin(self) -> None:
        """Make every slot idle; its arrays stay unchanged."""
        self._lanes.begin()

    def warm(self, steps: Steps, k: int, drafter: Drafter | None = None) -> None:
        """Allocate memory for drafts once, if drafts will be made; shapes are bound on first use."""
        del steps, drafter  # a drafter that was loaded later has its memory
        if k and not self._is_warm:
            self._is_warm = True
            self._caches.touch_drafter()

    def load_drafter(self, manifest: Manifest, between: RunBetween) -> LoadedDrafter:
        """Open the session of another drafter and allocate its caches, while passes of others run."""
        del between
        part = manifest.drafter
        if part is None:
            raise ValueError("the manifest has no drafter")
        session = _checked_session(self._folder, manifest, "drafter", *self._opens)
        sessions = replace(
            self._sessions, drafter=session, hidden=hidden_size(session), candidates=candidates_of(session)
        )
        caches = self._caches.with_drafter(part, self.num_slots)
        caches.touch_drafter()
        return LoadedDrafter(sessions, caches, self.num_slots, part.origin.revision)

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        numbers: np.ndarray,
        choice: TokenChoice | None = None,
        drafter: Drafter | None = None,
        *,
        drafts: bool = True,
    ) -> None:
        """Store the sampling policy, numbers, choice and drafter of the slot."""
        del drafts  # a row that does not draft is cheap
        if drafter is not None and not isinstance(drafter, LoadedDrafter):
            raise TypeError(f"cannot draft with a {type(drafter).__name__}: it comes from another backend")
        self._lanes.admit(slot, params, numbers, choice, drafter)

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        """Run the steps over one row as wide as the chunk, on the slot's own caches."""
        row = self._prompt_row(self._lanes.drafter(slot), self._lanes.arrays(slot), chunk)
        row.held = self._lanes.held(slot)
        lanes = SessionPrompt(row, chunk, self._lanes.window(slot))
        with phase(self._profiler, IN_PREFILL):
            steps(lanes, k)
        row.forget_choice()
        self._first = lanes.emission() if chunk.is_last else None
        self._lanes.has_read(slot, chunk)

    def keep(self, slot: int, start: int, end: int) -> KeptRow:
        """Copy positions of the slot's caches, and the columns of these that the drafter has not read."""
        return KeptRow(self._lanes.arrays(slot).keep(start, end), self._lanes.held(slot).between(start, end))

    def restore(self, slot: int, kept: Sequence[KeptEntries]) -> None:
        """Copy saved positions into the slot's caches."""
        held = self._lanes.held(slot)
        for each in kept:
            if not isinstance(each, KeptRow):
                raise TypeError(f"cannot restore a {type(each).__name__}: it comes from another backend")
            self._lanes.arrays(slot).restore(each.arrays)
            held.append(each.held)
            self._lanes.has_restored(slot, each.arrays.end)

    def first(self, slot: int) -> Emitted:
        """Return the emission of the last chunk, which is already available."""
        if self._first is None:
            raise ValueError(f"slot {slot} has no finished prompt")
        return self._first

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> Emitted:
        """Run the steps over every active row and return the emitted tokens."""
        del replay  # without benefit here
        self._lanes.limits = limits
        timed = TimedLanes(self._lanes)
        with phase(self._profiler, IN_ROUND):
            steps(timed, k)
        return self._lanes.emission((timed.verify_seconds, timed.draft_seconds))

    def retire(self, slot: int) -> None:
        """Exclude the slot from later rounds."""
        self._lanes.retire(slot)

    def end_profile(self) -> EngineProfile:
        """Read the times that ONNX Runtime recorded for each node."""
        if self._profiler is None:
            return Profiler().profile()
        for session in (self._sessions.target, self._sessions.drafter):
            if isinstance(session, ProfiledSession):
                session.end()
        profile, self._profiler = self._profiler.profile(), None
        return profile

    def target_logits(self, ids: Sequence[int], widths: Sequence[int] = ()) -> np.ndarray:
        """Return f32 [len,V] of one pass over all of ``ids``, or of consecutive windows of the given ``widths``."""
        logits: list[np.ndarray] = []
        first = 0
        for width in widths or (len(ids),):
            row = self._greedy_row(ids[first : first + width], emitted=width, draft_len=width - 1, start=first)
            binding = row.target(width, width)
            binding.bind_output(LOGITS)  # only for this run
            row.verify(width, width)
            logits.append(np.asarray(binding.get_outputs()[-1].numpy()[0]))
            first += width
        return np.concatenate(logits)

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """Return f32 [K,Vd] of the drafts after one target pass over all of ``ids``."""
        row, k = self._greedy_row(ids, self._max_emitted, draft_len=0), num_speculative_tokens
        row.verify(len(ids), k + 1)
        return row.draft_logits(k)

    def _idle_lanes(self) -> SessionLanes:
        self._own = LoadedDrafter(self._sessions, self._caches, self.num_slots)
        return SessionLanes(self._own, self.num_slots, self._max_emitted, takes_rows=self._supports_rows)

    def _prompt_row(self, drafter: LoadedDrafter, arrays: SlotArrays, chunk: Chunk) -> PromptRow:
        """Return a row for the chunk. A row that has read a chunk of this width into the same cache row is already
        bound."""
        width, rows = len(chunk.ids), drafter.prompt_rows
        key = arrays.row, width, width if chunk.logprobs else 0
        if key not in rows:
            while rows and width + sum(columns for _, columns, _ in rows) > _REUSED_COLUMNS:
                rows.popitem(last=False)
            rows[key] = self._row(drafter, SlotArrays(drafter.caches, arrays.row), width, emitted=key[-1])
        rows.move_to_end(key)
        rows[key].choose_as(arrays)
        return rows[key]

    def _row(self, drafter: LoadedDrafter, arrays: SlotArrays, columns: int, emitted: int = 0) -> PromptRow:
        return PromptRow(drafter.sessions, arrays, columns, max(emitted, self._max_emitted))

    def _columns_are_their_own(self) -> bool:
        """Test on this machine whether one column gives the same bits as it gives next to others.

        A different summation order changes nearly every number.
        """
        shapes = self.manifest.shapes
        ids = [i % shapes.vocab_size for i in range(1, min(_TRIAL_COLUMNS, shapes.max_seq_len) + 1)]
        together, alone = self.target_logits(ids), self.target_logits(ids, [1] * len(ids))
        return np.array_equal(together.view(np.uint32), alone.view(np.uint32))

    def _greedy_row(self, ids: Sequence[int], emitted: int, draft_len: int, start: int = 0) -> PromptRow:
        """Run slot 0 greedily over all of ``ids``, which begin at ``start``, while nothing else runs."""
        self.begin()
        row = self._row(self._own, SlotArrays(self._caches, 0), len(ids), emitted)
        row.window.fill(ids, start, draft_len)
        return row


def supports_rows(manifest: Manifest, library: Path | None) -> bool:
    """Return True if one pass can run several rows: the result of a row then depends on no other row.

    This requires the project's kernels and graphs that leave all of a pass to them, which are those that verify trees.
    """
    return library is not None and manifest.target.verifies_trees


def _rounds(manifest: Manifest) -> bool:
    """Return True if intermediate results are rounded, so that a difference in the last digit can grow."""
    return any(manifest.precision.get(name) != _WIDE for name in ("weights", "kv_cache"))


def _checked_session(
    folder: Path,
    manifest: Manifest,
    component: str,
    threads: int,
    library: Path | None,
    weights: Weights,
    profiler: Profiler | None = None,
) -> Any:
    """Return the session of one half after checking that its tensors match the memory that will be bound."""
    part = manifest.parts[component]
    path = folder / part.file
    open_with = partial(open_session, path, threads, library, weights=weights)
    session = ProfiledSession(open_with, component, profiler) if profiler else open_with()
    check_graph(path, component, part, manifest.shapes, "float32", *tensors_of(session))
    return session
