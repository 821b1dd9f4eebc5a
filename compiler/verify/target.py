"""A target's graph alone: one pass over a text gives its logits and the streams at its taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...engines.backends.onnxruntime.backend import open_session
from ...engines.folder.manifest import Cache
from ...engines.requests.params import SamplingParams, policy_of
from .perplexity import Array


@dataclass(frozen=True)
class Passed:
    """``logits`` f32 [len, V]; ``streams`` f32 [len, A, H], what enters each tap layer."""

    logits: Array
    streams: Array


class Target:
    """The graph ``model`` in ONNX Runtime; a text has at most ``length`` tokens."""

    def __init__(self, model: Path, caches: Sequence[Cache], length: int, hidden_size: int) -> None:
        self._hidden_size = hidden_size
        self._session = open_session(model, 0)
        self._caches = {
            f"{kind}_cache.{layer}": np.zeros((1, cache.heads, length, cache.head_dim), np.float32)
            for kind in "kv"
            for layer, cache in enumerate(caches)
        }

    def run(self, ids: Sequence[int]) -> Passed:
        """The whole text at once."""
        from onnxruntime import OrtValue

        count, (i64, i32, f32) = len(ids), (np.int64, np.int32, np.float32)
        inputs: dict[str, Any] = {
            "input_ids": np.array([ids], i64),
            "start": np.zeros(1, i64),
            "window_len": np.array([count], i32),
            "draft_len": np.array([count - 1], i32),  # so that every column's logits are given
            "forced_next": np.full(1, -1, i64),
            "uniform": np.zeros((1, count), f32),
        }
        binding = self._session.io_binding()
        for name, array in (inputs | policy_of(SamplingParams())).items():
            binding.bind_cpu_input(name, array)
        for name, array in self._caches.items():
            value = OrtValue.ortvalue_from_numpy(array)  # in place: the kernel wants one buffer for both
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(f"{name}.out", value)
        for name in ("logits", "aux_hidden"):
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        logits, streams = (value.numpy()[0] for value in binding.get_outputs()[-2:])
        return Passed(logits, streams.reshape(count, -1, self._hidden_size))

    def logits(self, ids: Sequence[int]) -> Array:
        """f32 [len, V]."""
        return self.run(ids).logits

    def streams(self, ids: Sequence[int]) -> Array:
        """f32 [len, A, H]."""
        return self.run(ids).streams
