"""The ``Backend`` on ONNX Runtime, on the CPU: the embedded default."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...folder.graph_tensors import check_graph
from ...folder.manifest import Manifest
from ...requests.params import SamplingParams
from ...running.token_choice import TokenChoice
from ..base import Chunk, KeptPrompt, Steps
from .held_columns import HeldColumns
from .kernels import library_of
from .lanes import SessionLanes
from .loaded_graphs import LOGITS, candidates_of, default_threads, hidden_size, open_session, tensors_of
from .memory import CacheArrays, KeptArrays, SlotArrays, row_bytes
from .prefill import SessionPrompt
from .prompt_row import PromptRow
from .sessions import Emitted, Sessions
from .timed_lanes import TimedLanes

# ONNX Runtime's kernels of one column sum in another order than all wider ones, which agree with each other to the bit.
# Where numbers are rounded afterwards such a difference decides some roundings, and text would change with the number
# of drafts. Our own kernels have no such case, but an engine may have nodes of both.
_LEAST_COLUMNS = 2
_TRIED_COLUMNS = 24  # what weighs experts shows sums in another order in some tokens only
_KEPT_COLUMNS = 1024  # of rows that pieces of prompts were read in: each has the target's features of all its columns
_OWN_KERNELS = "cpu"  # the lowering
_WIDE = "fp32"


@dataclass(frozen=True)
class KeptRow:
    """What a slot held when its prompt had been read: rows of caches, and columns that wait for the drafter."""

    arrays: KeptArrays
    held: HeldColumns

    @property
    def num_bytes(self) -> int:
        """The memory of the copies."""
        return self.arrays.num_bytes + self.held.num_bytes


class OnnxRuntimeBackend:
    """Runs the graphs in ONNX Runtime, each pass to its end before the call returns.

    ``threads`` None chooses: one for every 4 MiB of weights, physical cores at most.
    """

    lag = 0

    def __init__(self, folder: Path, manifest: Manifest, *, num_slots: int, threads: int | None) -> None:
        self.manifest, self.num_slots = manifest, num_slots
        self.prefill_columns = manifest.shapes.max_seq_len
        count, library = threads or default_threads(manifest), library_of(folder, manifest)
        drafter = _checked_session(folder, manifest, "drafter", count, library) if manifest.drafter else None
        self._sessions = Sessions(
            _checked_session(folder, manifest, "target", count, library),
            drafter,
            features=len(manifest.shapes.taps) * manifest.shapes.hidden_size,
            hidden=hidden_size(drafter),
            least_columns=1,
            is_told=manifest.target.verifies_trees,
            candidates=candidates_of(drafter),
        )
        self._caches = CacheArrays(manifest, num_slots)
        self.kept_bytes = row_bytes(manifest) // manifest.shapes.cache_length
        self._most_emitted = manifest.speculation.max_num_speculative_tokens + 1
        # Kernels of ours take rows of several columns at once, and a row's result depends on no other.
        self._takes_rows = library is not None and manifest.backend.lowering == _OWN_KERNELS
        self._lanes = self._idle_lanes()
        self._first: Emitted | None = None
        self._is_warm = False
        self._prompt_rows: OrderedDict[tuple[int, int, int], PromptRow] = OrderedDict()  # the last used one at the end
        if _rounds(manifest) and (library is None or not self._columns_are_their_own()):
            self._sessions = replace(self._sessions, least_columns=_LEAST_COLUMNS)
            self._lanes = self._idle_lanes()

    @property
    def least_columns(self) -> int:
        """The least columns that the target is ever run over."""
        return self._sessions.least_columns

    def begin(self) -> None:
        """Make every slot idle; its arrays stay as they are."""
        self._lanes.begin()

    def warm(self, steps: Steps, k: int) -> None:
        """Have memory for drafts, once, where some will be made; a shape is bound when it is first seen."""
        del steps
        if k and not self._is_warm:
            self._is_warm = True
            self._caches.touch_drafter()

    @property
    def shows_logits(self) -> bool:
        """Whether the target gives its logits."""
        return LOGITS in tensors_of(self._sessions.target)[1]

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray, choice: TokenChoice | None = None) -> None:
        """Keep what chooses the slot's tokens."""
        self._lanes.admit(slot, params, numbers, choice)

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        """Run the steps over one row that is as wide as the piece, on the slot's own caches."""
        row = self._prompt_row(self._lanes.arrays(slot), chunk)
        row.held = self._lanes.held(slot)
        lanes = SessionPrompt(row, chunk, self._lanes.window(slot))
        steps(lanes, k)
        self._first = lanes.emission() if chunk.is_last else None
        self._lanes.has_read(slot, chunk)

    def keep(self, slot: int, length: int) -> KeptRow:
        """Copy the slot's rows of the caches up to ``length``, and what of that the drafter has yet to read."""
        held = HeldColumns(length)
        held.take(self._lanes.held(slot), length)
        return KeptRow(self._lanes.arrays(slot).keep(length), held)

    def restore(self, slot: int, kept: KeptPrompt, length: int) -> None:
        """Write them to the rows of another."""
        if not isinstance(kept, KeptRow):
            raise TypeError(f"{type(kept).__name__} was kept by another backend")
        self._lanes.arrays(slot).restore(kept.arrays, length)
        self._lanes.held(slot).take(kept.held, length)
        self._lanes.has_restored(slot, length)

    def first(self, slot: int) -> Emitted:
        """Return what the last piece emitted; it is there already."""
        if self._first is None:
            raise ValueError(f"no prompt has ended in slot {slot}")
        return self._first

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> Emitted:
        """Run the steps over every busy row, and return the tokens they left."""
        del replay  # there is nothing to gain
        self._lanes.limits = limits
        timed = TimedLanes(self._lanes)
        steps(timed, k)
        return replace(self._lanes.emission(), pass_seconds=(timed.verify_seconds, timed.draft_seconds))

    def retire(self, slot: int) -> None:
        """Leave the slot out of later rounds."""
        self._lanes.retire(slot)

    def target_logits(self, ids: Sequence[int], widths: Sequence[int] = ()) -> np.ndarray:
        """Return f32 [len,V] of one pass over all of ``ids``, or of one for each window, which are that wide."""
        logits: list[np.ndarray] = []
        first = 0
        for width in widths or (len(ids),):
            row = self._greedy_row(ids[first : first + width], emitted=width, draft_len=width - 1, start=first)
            binding = row.target(width, width)
            binding.bind_output(LOGITS)  # for this run alone
            row.verify(width, width)
            logits.append(np.asarray(binding.get_outputs()[-1].numpy()[0]))
            first += width
        return np.concatenate(logits)

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """Return f32 [K,Vd] of the drafts after one target pass over all of ``ids``."""
        row, k = self._greedy_row(ids, self._most_emitted, draft_len=0), num_speculative_tokens
        row.verify(len(ids), k + 1)
        return row.draft_logits(k)

    def _idle_lanes(self) -> SessionLanes:
        return SessionLanes(
            self._sessions, self._caches, self.num_slots, self._most_emitted, takes_rows=self._takes_rows
        )

    def _prompt_row(self, arrays: SlotArrays, chunk: Chunk) -> PromptRow:
        """A row for the piece: one that read a piece of this width into the same row of the caches is bound already."""
        width, rows = len(chunk.ids), self._prompt_rows
        key = arrays.row, width, width if chunk.logprobs else 0
        if key not in rows:
            while rows and width + sum(columns for _, columns, _ in rows) > _KEPT_COLUMNS:
                rows.popitem(last=False)
            rows[key] = self._row(SlotArrays(self._caches, arrays.row), width, emitted=key[-1])
        rows.move_to_end(key)
        rows[key].choose_as(arrays)
        return rows[key]

    def _row(self, arrays: SlotArrays, columns: int, emitted: int = 0) -> PromptRow:
        return PromptRow(self._sessions, arrays, columns, max(emitted, self._most_emitted))

    def _columns_are_their_own(self) -> bool:
        """Whether one column has the bits that it has beside others: asked of the graph, on this machine.

        Sums in another order show in nearly every number.
        """
        shapes = self.manifest.shapes
        ids = [i % shapes.vocab_size for i in range(1, min(_TRIED_COLUMNS, shapes.max_seq_len) + 1)]
        together, alone = self.target_logits(ids), self.target_logits(ids, [1] * len(ids))
        return np.array_equal(together.view(np.uint32), alone.view(np.uint32))

    def _greedy_row(self, ids: Sequence[int], emitted: int, draft_len: int, start: int = 0) -> PromptRow:
        """Slot 0 over all of ``ids``, which stand at ``start``, with nothing running."""
        self.begin()
        row = self._row(SlotArrays(self._caches, 0), len(ids), emitted)
        row.window.fill(ids, start, draft_len)
        return row


def _rounds(manifest: Manifest) -> bool:
    """Whether numbers are rounded on the way, so that a difference in a last digit may grow."""
    return any(manifest.precision.get(name) != _WIDE for name in ("weights", "kv_cache"))


def _checked_session(folder: Path, manifest: Manifest, half: str, threads: int, library: Path | None) -> Any:
    """The session of one half, whose tensors are those that memory will be bound for."""
    part = manifest.parts[half]
    path = folder / part.file
    session = open_session(path, threads, library)
    check_graph(path, half, part, manifest.shapes, "float32", *tensors_of(session))
    return session
