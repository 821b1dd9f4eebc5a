"""Quantized inputs next to a cache write: q is quantized separately unless the projections are joined."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS, lower
from peagle.graphs.quantization import QuantizedWeight, Rounding, quantize, quantize_caches
from tests.graphs.traced import CACHE, Traced

KINDS = "qkv"


def _roundings(traced: Traced, lowering: str, *, quantized_cache: bool, q_by_row: bool = False) -> list[list[ir.Node]]:
    """By layer: the QuantizeLinear that the codes of the inputs of q, k and v come from.

    With ``q_by_row``, q has other scales than k and v: it cannot be joined with them.
    """
    model = graph_files.load(traced.folder / "target.onnx")
    layers = len(traced.target.caches)
    names = [[f"model.layers.{i}.self_attn.{kind}_proj.weight" for kind in KINDS] for i in range(layers)]
    rows = {name: int(value.shape[0]) for name, value in model.graph.initializers.items() if value.shape}
    weights = {
        name: QuantizedWeight(
            "float8_e4m3fn",
            (rows[name],) if q_by_row and not place else (),
            input=Rounding("float8_e4m3fn", 0.02 + 0.01 * place),
        )
        for each in names
        for place, name in enumerate(each)
        if name in model.graph.initializers
    }
    quantize(model, weights)
    if quantized_cache:
        quantize_caches(model, {f"{kind}_cache.{i}": 0.02 for kind in "kv" for i in range(layers)})
    lowered = lower(model, LOWERINGS[lowering], cache_length=CACHE).model
    return [[_rounding(lowered, name) for name in each if name in weights] for each in names]


def _rounding(model: ir.Model, weight: str) -> ir.Node:
    (stored,) = [value for name, value in model.graph.initializers.items() if weight in name.split("+")]
    (scaled,) = [user for user, _ in stored.uses()]
    (turned,) = [user for user, _ in scaled.outputs[0].uses()]
    (product,) = [user for user, _ in turned.outputs[0].uses()]
    restores = product.inputs[0].producer()
    rounds = restores.inputs[0].producer()
    assert (restores.op_type, rounds.op_type) == ("DequantizeLinear", "QuantizeLinear")
    return rounds


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss", "gemma-4"])
def test_q_is_rounded_separately_across_a_plugin(family: str, trace_of: Callable[[str], Traced]) -> None:
    for q, *others in _roundings(trace_of(family), "tensorrt", quantized_cache=True, q_by_row=True):
        assert len(set(others)) == 1
        assert q not in others
        (scale, mine), (other, theirs) = [(each.inputs[1], each.inputs[0]) for each in (q, others[0])]
        assert mine is theirs
        assert scale is not other, "TensorRT would make one node of the two"
        assert scale.const_value.numpy() == other.const_value.numpy()


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss", "gemma-4"])
def test_one_matmul_before_a_plugin_has_one_rounding(family: str, trace_of: Callable[[str], Traced]) -> None:
    for nodes in _roundings(trace_of(family), "tensorrt", quantized_cache=True):
        assert len(set(nodes)) == 1


@pytest.mark.parametrize("lowering", ["tensorrt", "std"])
def test_q_k_and_v_share_one_rounding_without_a_plugin(lowering: str, trace_of: Callable[[str], Traced]) -> None:
    for nodes in _roundings(trace_of("qwen3"), lowering, quantized_cache=False):
        assert len(set(nodes)) == 1
