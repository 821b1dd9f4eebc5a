"""Attention sinks as keys: the comparisons of ``test_tensorrt.py``, in TensorRT's compute types."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from peagle.graphs.lowering.tensorrt.sink_keys import ADDED, sink_queries
from peagle.graphs.node_tape import Nodes


@pytest.mark.parametrize("scale", [0.125, 0.3])
def test_queries_carry_sinks_twice_as_exactly_as_their_type(scale: float, rng: np.random.Generator) -> None:
    """A scale that is not a power of two rounds a sink; the next dimension holds the remainder."""
    half = ir.TensorType(ir.DataType.FLOAT16)
    q, sinks = (
        ir.Value(name=name, type=half, shape=ir.Shape(dims)) for name, dims in (("q", [1, 4, 3, 8]), ("s", [4]))
    )
    op = Nodes()
    wider = sink_queries(op, q, sinks, scale)
    wider.name, wider.type, wider.shape = "y", half, ir.Shape([1, 4, 3, 8 + ADDED])
    graph = ir.Graph([q, sinks], [wider], nodes=op.nodes, opset_imports={"": 24}, name="queries")
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=11)).SerializeToString())
    values = {"q": rng.standard_normal((1, 4, 3, 8)), "s": 5 * rng.standard_normal(4)}
    values = {name: value.astype(np.float16) for name, value in values.items()}
    (out,) = session.run(None, values)
    np.testing.assert_array_equal(out[..., :8], values["q"])
    carried = out[0, :, :, 8:].astype(np.float64).sum(axis=-1) * scale
    np.testing.assert_allclose(carried, np.repeat(values["s"].astype(np.float64)[:, None], 3, axis=1), rtol=1e-6)
