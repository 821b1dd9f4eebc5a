"""ONNX Runtime on the CPU: the embedded default.

Caches are f32 ``[slots, heads, T, head_dim]`` per layer, bound as input and output of the same run, so the graph writes
in place. The attention kernel takes one row per call when a window is wider than 1, so rows run one by one; everything
a row needs is bound once per window shape and reused every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...plugins.errors import EnvironmentProblem
from ..manifest import Manifest, Part
from ..sampling import Policy
from .base import Verified, Window

WINDOW = ("input_ids", "start", "window_len", "draft_len", "forced_next")
POLICY = ("uniform", "temperature", "top_k", "top_p", "min_p", "tolerance")

SMALL_TARGET = 64 * 2**20  # bytes of weights

Arrays = dict[str, np.ndarray]


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    # Two sessions take turns: the threads of the one that waits would spin on the cores that the other needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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


class _Row:
    """One slot at one window shape (S, E): its arrays and both graphs' bindings.

    The drafter reads the target's arrays where they are, and only the columns that were committed: what was rejected
    would cost it rows that nobody reads.
    """

    def __init__(self, backend: OnnxRuntimeBackend, slot: int, width: int, emitted: int) -> None:
        m = backend.manifest
        i64, i32, f32 = np.int64, np.int32, np.float32
        self.inputs: Arrays = {
            "input_ids": np.zeros((1, width), i64),
            "start": np.zeros(1, i64),
            "window_len": np.zeros(1, i32),
            "draft_len": np.zeros(1, i32),
            "forced_next": np.full(1, -1, i64),
            "uniform": np.zeros((1, emitted), f32),
            "temperature": np.zeros(1, f32),
            "top_k": np.zeros(1, i32),
            "top_p": np.ones(1, f32),
            "min_p": np.zeros(1, f32),
            "tolerance": np.zeros(1, f32),
        }
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
        caches = {n: c[slot : slot + 1] for n, c in backend.target_caches.items()}
        outputs = self.verified | {f"{n}.out": c for n, c in caches.items()}
        self.target = _binding(backend.target, self.inputs | caches, outputs)

    def verify(self, window: Window, policy: Policy, row: int) -> Arrays:
        for name in WINDOW:
            self.inputs[name][0] = getattr(window, name)[row]
        for name in POLICY:
            self.inputs[name][0] = getattr(policy, name)[row]
        self._backend.target.run_with_iobinding(self.target)
        return self.verified

    def draft(self) -> Arrays:
        self._backend.drafter.run_with_iobinding(self.drafter())
        return self.next

    def drafter(self) -> Any:
        """The binding for as many columns as the last ``verify`` committed: the window without what was rejected."""
        emitted = int(self.verified["num_tokens"][0])
        count = int(self.inputs["window_len"][0] - self.inputs["draft_len"][0]) - 1 + emitted
        self._committed["window_len"][0], self._committed["draft_len"][0] = count, emitted - 1
        if count not in self._drafters:
            caches = {n: c[self._slot : self._slot + 1] for n, c in self._backend.drafter_caches.items()}
            inputs = self._committed | self.verified | caches | {"start": self.inputs["start"]}
            inputs["input_ids"] = self.inputs["input_ids"][:, :count]
            inputs["aux_hidden"] = self.verified["aux_hidden"][:, :count]
            outputs = self.next | {f"{n}.out": c for n, c in caches.items()}
            self._drafters[count] = _binding(self._backend.drafter, inputs, outputs)
        return self._drafters[count]


class OnnxRuntimeBackend:
    """See ``Backend``. ``threads`` None chooses: one for a small target, else every physical core."""

    def __init__(self, folder: Path, manifest: Manifest, *, num_slots: int, threads: int | None) -> None:
        self.manifest, self.num_slots = manifest, num_slots
        count = threads or _default_threads(manifest)
        self.target = _session(folder / manifest.target.file, count)
        self.drafter = _session(folder / manifest.drafter.file, count)
        length = manifest.shapes.cache_length
        self.target_caches = _allocate(manifest.target, num_slots, length)
        self.drafter_caches = _allocate(manifest.drafter, num_slots, length)
        self._rows: dict[tuple[int, int, int], _Row] = {}

    def _row(self, slot: int, width: int, emitted: int) -> _Row:
        """Rows of decode shape (S == E) come back every round and are kept; a prompt's shape is used once."""
        key = (slot, width, emitted)
        row = self._rows.get(key)
        if row is None:
            row = _Row(self, slot, width, emitted)
            if width == emitted:
                self._rows[key] = row
        return row

    def verify(self, slots: range, window: Window, policy: Policy) -> Verified:
        """See ``Backend.verify``; idle rows cost nothing."""
        count, emitted = policy.uniform.shape
        tokens, num_tokens = np.full((count, emitted), -1, np.int32), np.zeros(count, np.int32)
        rows: list[_Row | None] = [None] * count
        for i, slot in enumerate(slots):
            if window.window_len[i]:
                row = rows[i] = self._row(slot, window.input_ids.shape[1], emitted)
                out = row.verify(window, policy, i)
                tokens[i], num_tokens[i] = out["tokens"][0], out["num_tokens"][0]
        return Verified(tokens, num_tokens, rows)

    def draft(self, slots: range, window: Window, verified: Verified) -> Window:
        """See ``Backend.draft``."""
        following = Window.idle(len(slots), verified.tokens.shape[1])
        following.start[:] = window.start  # an idle row stays where it is
        for i, row in enumerate(verified.features):
            if row is not None:
                for name, value in row.draft().items():
                    getattr(following, name.removeprefix("next_"))[i] = value[0]
        return following

    def target_logits(self, window: Window, policy: Policy) -> np.ndarray:
        """See ``Backend.target_logits``."""
        row = _Row(self, 0, window.input_ids.shape[1], policy.uniform.shape[1])
        row.target.bind_output("logits")
        row.verify(window, policy, 0)
        return np.asarray(row.target.get_outputs()[-1].numpy()[0])

    def draft_logits(self, window: Window, policy: Policy) -> np.ndarray:
        """See ``Backend.draft_logits``."""
        row = _Row(self, 0, window.input_ids.shape[1], policy.uniform.shape[1])
        row.verify(window, policy, 0)
        row.drafter().bind_output("draft_logits")
        row.draft()
        return np.asarray(row.drafter().get_outputs()[-1].numpy()[0])
