"""Runs of nodes are fused into one equivalent node; unsupported nodes stay outside, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from peagle.graphs.lowering import std
from peagle.graphs.lowering.cpu.fused_regions import join
from tests.plugins.cpu.sessions import session
from tests.plugins.ops.packed_cases import matrix

# Two linears and what is between them; `tap` is returned as well, CumSum is no step.
GRAPH = """<ir_version: 11, opset_import: ["": 24, "peagle": 1, "com.microsoft": 1]>
g (float[B,S,64] x, float[B,S,64] z) => (float[B,S,64] y, float[B,S,64] tap)
<float[64] norm> {
  tap = Add(x, z)
  h = RMSNormalization<axis = -1, epsilon = 0.00001>(tap, norm)
  both = peagle.QuantizedLinear<format = "q8_0", rows = 128>(h, codes, scales)
  gate, up = Split<axis = -1>(both, sizes)
  share = Sigmoid(gate)
  silu = Mul(gate, share)
  inner = Mul(silu, up)
  MIDDLE
  out = peagle.QuantizedLinear<format = "q8_0", rows = 128>(next, codes, scales)
  first, second = Split<axis = -1>(out, sizes)
  more = Tanh(first)
  y = Mul(more, second)
}"""


def model(middle: str) -> ir.Model:
    proto = onnx.parser.parse_model(GRAPH.replace("MIDDLE", middle))
    rng = np.random.default_rng(0)
    codes, scales = matrix(rng, "q8_0", 128, 64)
    constants = {"codes": codes, "scales": scales, "sizes": np.array([64, 64]), "norm": np.ones(64, np.float32)}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    made = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    std.apply(made)
    return made


def run(made: ir.Model, library: Path | None) -> list[Any]:
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(2, 1, 3, 64)).astype(np.float32)
    results: list[Any] = session(library, ir.to_proto(made).SerializeToString()).run(None, {"x": x, "z": z})
    return results


def kinds(made: ir.Model) -> list[str]:
    return [node.op_type for node in made.graph]


def test_fused_region_is_one_node_with_the_same_results(cpu_library: Path) -> None:
    made = model("next = Identity(inner)")
    bodies, nodes = run(made, None), run(made, cpu_library)
    joined = join(made)
    assert kinds(made) == ["FusedRegion"]
    assert (joined.nodes, joined.outside) == (12, {})
    for ours, theirs in zip(run(made, None), bodies, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(run(made, cpu_library), nodes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


FORKING = """<ir_version: 11, opset_import: ["": 24, "peagle": 1]>
g (float[B,2,S,16] x, float[B,2,S,16] v, float[B,2,T,16] k_cache, float[B,2,T,16] v_cache, int64[B] start,
   bool[B,S,S] ancestors) => (float[B,S,2,16] y, float[B,2,T,16] k_out, float[B,2,T,16] v_out) {
  q = Tanh(x)
  k = Sigmoid(x)
  heads, k_out, v_out = peagle.CachedAttention<scale = 0.25>(q, k, v, k_cache, v_cache, start, "", ancestors)
  y = Tanh(heads)
}"""


def test_ancestors_are_an_input_of_a_fused_region(cpu_library: Path) -> None:
    """The first row is a tree that ends where its cache does, the second a chain."""
    made = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(FORKING)))
    std.apply(made)
    rng = np.random.default_rng(2)
    fed = {name: rng.normal(size=(2, 2, 4, 16)).astype(np.float32) for name in ("x", "v")}
    fed |= {name: rng.normal(size=(2, 2, 30, 16)).astype(np.float32) for name in ("k_cache", "v_cache")}
    chain = np.tri(4, k=-1, dtype=bool)
    tree = chain & ~np.eye(4, k=-2, dtype=bool)
    fed |= {"start": np.array([26, 5]), "ancestors": np.stack([tree, chain])}

    def results(library: Path | None, threads: int = 1) -> list[Any]:
        return list(session(library, ir.to_proto(made).SerializeToString(), threads).run(None, fed))

    nodes, bodies = results(cpu_library), results(None)
    assert join(made).outside == {}
    assert kinds(made) == ["FusedRegion"]
    for ours, theirs in ((results(cpu_library, threads=2), nodes), (results(None), bodies), (nodes, bodies)):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_unsupported_node_ends_a_region_and_is_named(cpu_library: Path) -> None:
    made = model("axis = Constant<value = int64 {1}>()\n next = CumSum(inner, axis)")
    nodes = run(made, cpu_library)
    joined = join(made)
    assert sorted(kinds(made)) == ["Constant", "CumSum", "FusedRegion", "FusedRegion"]
    assert joined.outside["CumSum"] == "there is no step for this op"
    for ours, theirs in zip(run(made, cpu_library), nodes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("middle", "kind", "why"),
    [
        ("next = Gelu(inner)", "Gelu", "only the tanh approximation"),
        ("next = Transpose<perm = [0, 2, 1]>(inner)", "Transpose", "moves the last dimension"),
        ("a, b = Split<axis = -1, num_outputs = 2>(inner)\n next = Concat<axis = -1>(b, a)", "Split", "not constants"),
        ("a = Cast<to = 10>(inner)\n b = Add(a, a)\n next = Cast<to = 1>(b)", "Add", "not float32"),
        ("next = RMSNormalization<axis = 1>(inner, inner)", "RMSNormalization", "the norm is not over the last"),
    ],
)
def test_unsupported_node_states_the_reason(middle: str, kind: str, why: str) -> None:
    assert why in join(model(middle)).outside[kind]


def test_short_sequences_are_not_fused() -> None:
    alone = ir.from_proto(onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["": 24]> g (float[B,S,8] x) => (float[B,S,8] y) { a = Tanh(x)  y = Mul(a, x) }'
    ))  # fmt: skip
    assert join(alone).outside == {"Tanh": "too few consecutive steps", "Mul": "too few consecutive steps"}
    assert kinds(alone) == ["Tanh", "Mul"]
