"""Run a lowered graph row by row in ONNX Runtime, with caches that persist between calls."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from peagle.graphs.targets import CacheSpec
from peagle.plugins.graph_contract import POSITIONS, SKIPPED


class Graph:
    """One graph and the caches of one row."""

    def __init__(self, path: Path, caches: tuple[CacheSpec, ...], length: int, rows: int = 1) -> None:
        self.session = _session(path, path.stat().st_mtime_ns)
        self.names = [o.name for o in self.session.get_outputs()]
        types = {i.name: i.type for i in self.session.get_inputs()}
        self.whole = {POSITIONS: np.arange(length)} if POSITIONS in types else {}  # caches are read as far as they go
        self.knows_trees = SKIPPED in types
        self.caches: dict[str, Any] = {
            name: no_codes(shape) if "float8" in types[name] else np.zeros(shape, np.float32)
            for i, c in enumerate(caches)
            for name, shape in dict.fromkeys(
                (f"k_cache.{i}", f"v_cache.{i}"), (rows, c.heads, length, c.head_dim)
            ).items()
        }

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        of_numpy = onnxruntime.OrtValue.ortvalue_from_numpy
        chains = {SKIPPED: np.zeros_like(inputs["input_ids"])} if self.knows_trees else {}
        given = self.whole | chains | inputs | self.caches
        feeds = {n: of_numpy(x) if isinstance(x, np.ndarray) else x for n, x in given.items()}
        results = self.session.run_with_ort_values(self.names, feeds)
        values = [x if "float8" in x.data_type() else x.numpy() for x in results]
        outputs = dict(zip(self.names, values, strict=True))
        self.caches = {name: outputs.pop(f"{name}.out") for name in self.caches}
        return outputs


@lru_cache(maxsize=6)
def _session(path: Path, _: int) -> onnxruntime.InferenceSession:
    """A session has no state: graphs with caches of their own share it. A file that is written again has another."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # FP8 as it is written, unfused
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def no_codes(shape: tuple[int, ...]) -> Any:
    """Zeros in E4M3, which ONNX Runtime and NumPy do not exchange otherwise; such caches stay with the former."""
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(shape, np.uint8), 17)


def target_inputs(ids: np.ndarray, start: int, drafts: int, emitted: int) -> dict[str, np.ndarray]:
    """A greedy window for every row of ``ids`` [B,S], all columns valid."""
    rows, width = ids.shape
    i64, i32, f32 = np.int64, np.int32, np.float32
    return {
        "input_ids": ids.astype(i64), "start": np.full(rows, start, i64), "window_len": np.full(rows, width, i32),
        "draft_len": np.full(rows, drafts, i32), "forced_next": np.full(rows, -1, i64),
        "uniform": np.zeros((rows, emitted), f32), "temperature": np.zeros(rows, f32), "top_k": np.zeros(rows, i32),
        "top_p": np.ones(rows, f32), "min_p": np.zeros(rows, f32), "tolerance": np.zeros(rows, f32),
    }  # fmt: skip
