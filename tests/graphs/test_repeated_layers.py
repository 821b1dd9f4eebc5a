"""A graph from the trace of a few layers equals a trace of all layers, node for node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files
from peagle.graphs.node_tape import Nodes
from peagle.graphs.repeated_layers import layers_to_trace, placeholder_weight, repeat_layers
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_all_layers
from peagle.plugins.graph_contract import cache_names, written
from tests.graphs.checking import contents
from tests.graphs.traced import Traced
from tests.models import CONFIGS

pytestmark = pytest.mark.begins_first

QUICK = "qwen3-moe"  # two kinds of layers, one of them once between the others; drawn graphs below have other orders


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in CONFIGS]
)
def test_graph_of_a_family_is_that_of_a_full_trace(family: str, trace_of: Callable[[str], Traced]) -> None:
    traced = trace_of(family)
    full = trace_all_layers(Skeleton(traced.pair.config), traced.target)
    assert contents(graph_files.load(traced.folder / "target.onnx")) == contents(ir.from_proto(ir.to_proto(full)))


def _weight(name: str, size: int) -> ir.Value:
    shape = ir.Shape([size])
    tensor = placeholder_weight(name, ir.DataType.FLOAT, shape)
    return ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)


def _traced(kinds: Sequence[str], taps: Sequence[int]) -> ir.Model:
    """A graph as a trace leaves it: what layers of one kind have in common is computed in the first one."""
    op, vector = Nodes(), {"shape": ir.Shape([2]), "type": ir.TensorType(ir.DataType.FLOAT)}
    x = ir.Value(name="input_ids", **vector)
    caches = {name: ir.Value(name=name, **vector) for name in cache_names(len(kinds))}
    layers = [_weight(f"model.layers.{i}.w.weight", 2) for i in range(len(kinds))]
    buffers = [_weight(f"model.layers.{i}.scale", 2) for i in range(len(kinds))]
    norm = _weight("model.norm.weight", 2)
    once, streams, new, result = {}, [], {}, op.Identity(x)
    for i, kind in enumerate(kinds):
        streams.append(result)
        if kind not in once:
            once[kind] = op.Neg(x) if kind == "full" else op.Abs(x)
        product = op.Add(op.Mul(op.Mul(result, layers[i]), buffers[i]), once[kind])
        for name in (f"k_cache.{i}", f"v_cache.{i}"):
            new[name] = op.Max(caches[name], product)
        result = op.Add(result, op.Sub(new[f"k_cache.{i}"], new[f"v_cache.{i}"]))
    outputs = [op.Mul(result, norm)]
    outputs[0].name = "logits"
    if taps:
        joined = streams[taps[0]] if len(taps) == 1 else op.Concat(*(streams[i] for i in taps), axis=-1)
        outputs.insert(0, joined)
    nodes: Any = op.nodes
    for node in nodes:
        for value in node.outputs:
            value.shape, value.type = vector["shape"], vector["type"]
    if taps:
        joined.name, joined.shape = "aux_hidden", ir.Shape([2 * len(taps)])
    for name, value in new.items():
        value.name = written(name)
    outputs += [new[name] for name in caches]
    graph = ir.Graph(
        [x, *caches.values()], outputs, nodes=nodes, initializers=[*layers, norm, *buffers], opset_imports={"": 24}
    )
    return ir.Model(graph, ir_version=11)


@settings(max_examples=40)
@given(st.data(), st.lists(st.sampled_from(["full", "sliding"]), min_size=2, max_size=9))
def test_repeated_layers_are_those_of_a_full_trace(data: st.DataObject, kinds: list[str]) -> None:
    taps = sorted(data.draw(st.sets(st.integers(0, len(kinds) - 1), max_size=3)))
    layers = layers_to_trace(kinds)
    full, repeated = _traced(kinds, taps), _traced([kinds[i] for i in layers], range(len(layers)))
    repeat_layers(repeated, layers, kinds, taps)
    assert contents(repeated) == contents(full)
    assert contents(ir.from_proto(ir.to_proto(repeated))) == contents(full)  # every name is of one value


def test_few_layers_are_traced() -> None:
    assert layers_to_trace(["layer"] * 30) == [0, 1, 29]
    assert layers_to_trace(["sliding", "full"] * 24) == [0, 1, 2, 3, 47]
    assert layers_to_trace(["sparse", "sparse", "dense", "sparse"]) == [0, 1, 2, 3]
    assert layers_to_trace(["layer"]) == [0]
