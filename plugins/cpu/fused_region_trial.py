"""The self-test of ``FusedRegion``: a gated MLP on two threads, run whenever the kernels are compiled or loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.quantized_linear.packed_weights import pack_codes, pack_scales
from ..ops.quantized_linear.reference import quantized_linear
from .one_node_model import one_node_model

_WIDTH, _INNER, _TOLERANCE = 64, 96, 1e-4
_PROGRAM = f"""\
RMSNormalization 0,1 > 6 epsilon=#3727c5ac
QuantizedLinear 6,2,3 > 7 format=int8 rows={2 * _INNER}
Split 7 > 8,9 sizes={_INNER},{_INNER}
Sigmoid 8 > 10
Mul 8,10 > 11
Mul 11,9 > 12
QuantizedLinear 12,4,5 > 13 format=int8 rows={_WIDTH}
Add 0,13 > 14
outputs 14,9"""


def check_fused_region(onnxruntime: Any, options: Any) -> None:
    """Raise ``ValueError`` if results differ from NumPy's, or if a row's result depends on the other rows."""
    rng = np.random.default_rng(0)
    x, norm = rng.normal(size=(1, 5, _WIDTH)).astype(np.float32), rng.normal(size=_WIDTH).astype(np.float32)
    weights = [
        array
        for rows, columns in ((2 * _INNER, _WIDTH), (_WIDTH, _INNER))
        for array in (
            pack_codes("int8", rng.integers(-128, 128, (rows, columns), dtype=np.int8)),
            pack_scales("int8", rng.random((rows, 1), np.float32) / columns),
        )
    ]
    inputs: dict[str, Any] = {"x": "float32", "norm": norm} | {
        f"weight_{at}": array for at, array in enumerate(weights)
    }
    model = one_node_model(
        "FusedRegion", inputs, {"y": "float32", "up": "float32"}, {"program": _PROGRAM, "inputs": len(inputs)}
    )
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    y, up = session.run(None, {"x": x})
    for row in range(x.shape[1]):
        if not np.array_equal(session.run(None, {"x": x[:, row : row + 1]})[0], y[:, row : row + 1]):
            raise ValueError("FusedRegion: the result of a row depends on the other rows")
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(1e-5)) * norm
    gate, other = np.split(quantized_linear(normed, *weights[:2], format="int8", rows=2 * _INNER)[0], 2, axis=-1)
    inner = (gate / (1 + np.exp(-gate)) * other).astype(np.float32)
    expected = x + quantized_linear(inner, *weights[2:], format="int8", rows=_WIDTH)[0]
    # A value near the middle between two codes may round to either.
    step = np.abs(expected - x).max() / 100
    if not np.allclose(up, other, _TOLERANCE, step) or not np.allclose(y, expected, _TOLERANCE, step):
        raise ValueError("FusedRegion: the results differ from those of its steps")
