"""ONNX Runtime on the CPU: the embedded default.

Caches are f32 ``[slots, heads, T, head_dim]`` per layer, bound as input and output of the same run, so the graph writes
in place. The attention kernel takes one row per call when a window is wider than 1, so rows run one by one; everything
a row needs is bound once per window shape and reused every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ...folder.manifest import Manifest
from ...folder.records import Part
from ...requests.params import SamplingParams, policy_of
from ..base import Chunk, Emitted

SMALL_TARGET = 64 * 2**20  # bytes of weights as stored: a pass takes as long as they do, within a factor of two
# Kernels of one column sum in another order than all wider ones, which agree with each other to the bit. Where numbers
# are rounded afterwards such a difference decides some roundings, and text would change with the number of drafts.
_LEAST_COLUMNS = 2

Arrays = dict[str, np.ndarray]


def open_session(path: Path, threads: int) -> Any:
    """One graph on the CPU, with ``threads`` threads; 0 is one for each physical core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    # Two sessions take turns: the threads of the one that waits would spin on the cores that the other needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Types that no kernel multiplies in (FP8) are computed as the graph spells them: fusions meant for integers fail on
    # them. Weights that a node scales are folded at load, so they take as much memory as wide ones.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the binding raises its own family of exceptions
        raise EnvironmentProblem(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path}",
            why=str(error).splitlines()[0],
            fix="rebuild the engine with the installed version (`peagle-compile build`)",
        ) from error


def _default_threads(manifest: Manifest) -> int:
    """One thread while a pass is shorter than handing out its pieces; 0 lets ONNX Runtime use every physical core."""
    folder = Path(manifest.target.file).parent
    weights = sum(entry.size for name, entry in manifest.files.items() if Path(name).parent == folder)
    return 1 if weights < SMALL_TARGET else 0


def _allocate(part: Part, slots: int, length: int) -> Arrays:
    return {
        f"{kind}_cache.{layer}": np.zeros((slots, cache.heads, length, cache.head_dim), np.float32)
        for kind in "kv"
        for layer, cache in enumerate(part.caches)
    }


def _binding(session: Any, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Any:
    """Bind arrays by address: a later run reads and writes these very arrays."""
    from onnxruntime import OrtValue

    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
    return binding


class _Slot:
    """One slot: its caches, and how its tokens are chosen."""

    def __init__(self, backend: OnnxRuntimeBackend, slot: int) -> None:
        self.target_caches = {n: c[slot : slot + 1] for n, c in backend.target_caches.items()}
        self.drafter_caches = {n: c[slot : slot + 1] for n, c in backend.drafter_caches.items()}
        self.policy: Arrays = policy_of(SamplingParams())
        self.numbers = np.zeros(0, np.float32)

    def admit(self, params: SamplingParams, numbers: np.ndarray) -> None:
        self.numbers = numbers
        for name, value in policy_of(params).items():
            self.policy[name][:] = value


class _Row:
    """One slot at one window shape (S, E): its window and both graphs' bindings.

    The drafter reads the target's arrays where they are, and only the columns that were committed: what was rejected
    would cost it rows that nobody reads.
    """

    def __init__(self, backend: OnnxRuntimeBackend, slot: _Slot, width: int, emitted: int) -> None:
        m = backend.manifest
        i64, i32, f32 = np.int64, np.int32, np.float32
        width = max(width, backend.least_columns)
        self.window: Arrays = {
            "input_ids": np.zeros((1, width), i64),
            "start": np.zeros(1, i64),
            "window_len": np.zeros(1, i32),
            "draft_len": np.zeros(1, i32),
        }
        self.forced_next = np.full(1, -1, i64)
        self.uniform = np.zeros((1, emitted), f32)
        self.verified: Arrays = {
            "tokens": np.zeros((1, emitted), i32),
            "num_tokens": np.zeros(1, i32),
            "aux_hidden": np.zeros((1, width, len(m.shapes.taps) * m.shapes.hidden_size), f32),
        }
        self.next: Arrays = {
            "next_input_ids": np.zeros((1, emitted), i64),
            "next_start": np.zeros(1, i64),
            "next_window_len": np.zeros(1, i32),
            "next_draft_len": np.zeros(1, i32),
        }
        self._backend, self._slot = backend, slot
        self._committed: Arrays = {"window_len": np.zeros(1, i32), "draft_len": np.zeros(1, i32)}
        self._drafters: dict[int, Any] = {}
        inputs = self.window | slot.policy | {"forced_next": self.forced_next, "uniform": self.uniform}
        outputs = self.verified | {f"{n}.out": c for n, c in slot.target_caches.items()}
        self.target = _binding(backend.target, inputs | slot.target_caches, outputs)

    @property
    def committed(self) -> int:
        """How many columns of the window are no drafts."""
        return int(self.window["window_len"][0] - self.window["draft_len"][0])

    def fill(self, ids: Sequence[int], start: int, draft_len: int, forced_next: int) -> None:
        """Lay out a window by hand."""
        self.window["input_ids"][0, : len(ids)] = ids
        for name, value in (("start", start), ("window_len", len(ids)), ("draft_len", draft_len)):
            self.window[name][0] = value
        self.forced_next[0] = forced_next

    def verify(self) -> Arrays:
        """One target pass. Column p decides position p + 1, by the number of that position."""
        first = int(self.window["start"][0]) + self.committed
        numbers = self._slot.numbers[first : first + self.uniform.shape[1]]
        self.uniform[0, : len(numbers)] = numbers
        self._backend.target.run_with_iobinding(self.target)
        return self.verified

    def draft(self) -> None:
        """One drafter pass from what ``verify`` was given and gave."""
        self._backend.drafter.run_with_iobinding(self.drafter())

    def drafter(self) -> Any:
        """The binding for as many columns as the last ``verify`` committed: the window without what was rejected."""
        emitted = int(self.verified["num_tokens"][0])
        count = self.committed - 1 + emitted
        self._committed["window_len"][0], self._committed["draft_len"][0] = count, emitted - 1
        if count not in self._drafters:
            caches = self._slot.drafter_caches
            inputs = self._committed | self.verified | caches | {"start": self.window["start"]}
            inputs["input_ids"] = self.window["input_ids"][:, :count]
            inputs["aux_hidden"] = self.verified["aux_hidden"][:, :count]
            outputs = self.next | {f"{n}.out": c for n, c in caches.items()}
            self._drafters[count] = _binding(self._backend.drafter, inputs, outputs)
        return self._drafters[count]

    def advance(self, following: _Row) -> None:
        """Give ``following``, which may be this row, the next window: the drafter's, or the one new token."""
        if self._backend.num_speculative_tokens:
            for name, value in self.next.items():
                following.window[name.removeprefix("next_")][:] = value
            following.forced_next[0] = -1
        else:
            start = int(self.window["start"][0]) + self.committed
            following.fill([int(self.verified["tokens"][0, 0])], start, draft_len=0, forced_next=-1)


class OnnxRuntimeBackend:
    """See ``Backend``. ``threads`` None chooses: one for a small target, else every physical core."""

    lag = 0

    def __init__(self, folder: Path, manifest: Manifest, *, num_slots: int, threads: int | None) -> None:
        self.manifest, self.num_slots = manifest, num_slots
        self.prefill_columns = manifest.shapes.max_seq_len
        self.num_speculative_tokens = 0
        self.least_columns = 1 if manifest.precision["weights"] == "fp32" else _LEAST_COLUMNS
        count = threads or _default_threads(manifest)
        self.target = open_session(folder / manifest.target.file, count)
        self.drafter = open_session(folder / manifest.drafter.file, count)
        length = manifest.shapes.cache_length
        self.target_caches = _allocate(manifest.target, num_slots, length)
        self.drafter_caches = _allocate(manifest.drafter, num_slots, length)
        self._slots = [_Slot(self, slot) for slot in range(num_slots)]
        self._rows: dict[tuple[int, int], _Row] = {}
        self._busy: list[_Row | None] = [None] * num_slots
        self._first: Emitted | None = None

    def begin(self, num_speculative_tokens: int) -> None:
        """See ``Backend.begin``."""
        self.num_speculative_tokens = num_speculative_tokens
        self._busy = [None] * self.num_slots

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray) -> None:
        """See ``Backend.admit``."""
        self._slots[slot].admit(params, numbers)

    def prefill(self, slot: int, chunk: Chunk) -> None:
        """See ``Backend.prefill``."""
        emitted = self.num_speculative_tokens + 1
        following = self._row(slot)
        row = following if len(chunk.ids) == emitted else _Row(self, self._slots[slot], len(chunk.ids), emitted)
        row.fill(chunk.ids, chunk.start, draft_len=0, forced_next=chunk.forced_next)
        out = row.verify()
        if self.num_speculative_tokens:
            row.draft()
        if chunk.is_last:
            self._first = Emitted(out["tokens"].copy(), out["num_tokens"].copy())
            row.advance(following)
            self._busy[slot] = following

    def first(self, slot: int) -> Emitted:
        """See ``Backend.first``."""
        if self._first is None or self._busy[slot] is None:
            raise ValueError(f"no prompt has ended in slot {slot}")
        return self._first

    def step(self) -> Emitted:
        """See ``Backend.step``; idle rows cost nothing."""
        emitted = self.num_speculative_tokens + 1
        tokens, num_tokens = np.full((self.num_slots, emitted), -1, np.int32), np.zeros(self.num_slots, np.int32)
        for slot, row in enumerate(self._busy):
            if row is not None:
                out = row.verify()
                tokens[slot], num_tokens[slot] = out["tokens"][0], out["num_tokens"][0]
                if self.num_speculative_tokens:
                    row.draft()
                row.advance(row)
        return Emitted(tokens, num_tokens)

    def retire(self, slot: int) -> None:
        """See ``Backend.retire``."""
        self._busy[slot] = None

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        """See ``Backend.target_logits``."""
        row = self._greedy_row(ids, len(ids), draft_len=len(ids) - 1)
        row.target.bind_output("logits")
        row.verify()
        return np.asarray(row.target.get_outputs()[-1].numpy()[0])

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """See ``Backend.draft_logits``."""
        row = self._greedy_row(ids, num_speculative_tokens + 1, draft_len=0)
        row.verify()
        row.drafter().bind_output("draft_logits")
        row.draft()
        return np.asarray(row.drafter().get_outputs()[-1].numpy()[0])

    def _row(self, slot: int) -> _Row:
        """The row of decode shape (S = E), which comes back every round; a prompt's shape is used once."""
        emitted = self.num_speculative_tokens + 1
        if (slot, emitted) not in self._rows:
            self._rows[slot, emitted] = _Row(self, self._slots[slot], emitted, emitted)
        return self._rows[slot, emitted]

    def _greedy_row(self, ids: Sequence[int], emitted: int, draft_len: int) -> _Row:
        self.begin(0)
        self._slots[0].admit(SamplingParams(), np.zeros(0, np.float32))
        row = _Row(self, self._slots[0], len(ids), emitted)
        row.fill(ids, 0, draft_len, forced_next=-1)
        return row
