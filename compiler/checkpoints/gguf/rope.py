"""Convert the rotary embedding of a GGUF file to ``config.json`` entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....graphs.config_values import ROPE_THETA, is_positive
from ....graphs.targets.gguf_naming import GgufNaming
from ....plugins.problems import Problems, shown
from .header import GgufHeader
from .weights import GgufTensor

FREQUENCIES = "rope_freqs.weight"
_LOW, _HIGH, _TRAINED = 1.0, 4.0, 8192  # the same in every Llama since 3.1
_KINDS = ("none", "linear")


def rope_entries(header: GgufHeader, naming: GgufNaming, head_dim: Any, problems: Problems) -> dict[str, Any]:
    """Return the rotary-embedding entries except ``rope_theta``. Unsupported settings are reported as problems."""
    key = f"{naming.architecture}.rope."
    rotated_dim = header.metadata.get(f"{key}dimension_count", head_dim)
    if rotated_dim != head_dim:
        problems.add(
            f"{problems.subject} rotates only {shown(repr(rotated_dim))} of {head_dim} dimensions of a head",
            why="rotary embedding must cover the whole head",
            fix="use the safetensors checkpoint of the model",
        )
    kind = header.metadata.get(f"{key}scaling.type", "linear")  # absent: as in llama.cpp
    if kind not in _KINDS:
        problems.add(
            f"{problems.subject} uses RoPE scaling {shown(repr(kind))}; GGUF files support only {' and '.join(_KINDS)}",
            fix="use the safetensors checkpoint of the model",
        )
    # ``scale_linear`` is the key of old files.
    factor = header.metadata.get(f"{key}scaling.factor", header.metadata.get(f"{key}scale_linear", 1.0))
    is_scaled = kind == "linear" and factor not in (0, 1)
    if FREQUENCIES in header.tensors:
        if is_scaled:
            problems.add(
                f"{problems.subject} has linear RoPE scaling and RoPE frequency divisors ({FREQUENCIES})",
                why="only one of them is supported",
                fix="use the safetensors checkpoint of the model",
            )
        return _llama3(header, naming, head_dim, problems)
    return {"rope_scaling": {"rope_type": "linear", "factor": factor}} if is_scaled else {}


def _llama3(header: GgufHeader, naming: GgufNaming, head_dim: Any, problems: Problems) -> dict[str, Any]:
    """Return the scaling of Llama 3.1 and later, which a file stores as one divisor per frequency."""
    entry = header.tensors[FREQUENCIES]
    theta = header.metadata.get(f"{naming.architecture}.rope.freq_base", ROPE_THETA)
    if entry.dtype == "F32" and type(head_dim) is int and entry.shape == (head_dim // 2,) and is_positive(theta):
        stored = GgufTensor(FREQUENCIES, entry).rows(0, entry.shape[0])
        factor = round(float(stored[-1]), 4)
        if is_positive(factor) and np.allclose(stored, _divisors(head_dim, theta, factor), rtol=1e-4):
            return {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": _LOW,
                    "high_freq_factor": _HIGH,
                    "original_max_position_embeddings": _TRAINED,
                }
            }
    problems.add(
        f"{problems.subject} has custom RoPE frequency divisors ({FREQUENCIES})",
        why=f"only the divisors of Llama 3 are supported: low_freq_factor {_LOW:g}, high_freq_factor {_HIGH:g}, "
        f"original context of {_TRAINED} positions",
        fix="use the safetensors checkpoint of the model",
    )
    return {}


def _divisors(head_dim: int, theta: float, factor: float) -> np.ndarray[Any, Any]:
    """Return Llama 3's frequency divisors, f64 [head_dim / 2]: 1 for short waves, ``factor`` for long ones."""
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (_TRAINED / waves - _LOW) / (_HIGH - _LOW)
    between = 1 / ((1 - smooth) / factor + smooth)
    divisors: np.ndarray[Any, Any] = np.where(
        waves < _TRAINED / _HIGH, 1.0, np.where(waves > _TRAINED / _LOW, factor, between)
    )
    return divisors
