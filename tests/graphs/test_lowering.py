"""The changes that each lowering makes to a semantic graph, and what it leaves unchanged."""

from __future__ import annotations

import json
from collections import Counter

import onnx
import onnx_ir as ir
import pytest

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS, lower, lowering_named
from peagle.graphs.lowering.lowering_result import Lowered
from peagle.graphs.lowering.shared_passes import ROPE_METADATA
from peagle.plugins.errors import BuildError, UsageError
from tests.graphs.traced import CACHE, Traced
from tests.models import LAYERS


def _count(lowered: Lowered) -> Counter[str]:
    return Counter(node.op_type for node in lowered.model.graph)


def test_a_semantic_graph_has_one_node_per_meaning(qwen3: Traced) -> None:
    model = onnx.load(qwen3.folder / "target.onnx", load_external_data=False)
    count = Counter(node.op_type for node in model.graph.node)
    assert count["CachedAttention"] == LAYERS
    assert count["AcceptPrefix"] == 1
    assert count["RotaryEmbedding"] == 2 * LAYERS
    assert count["RMSNormalization"] == 4 * LAYERS + 1
    assert {i.version for i in model.opset_import if i.domain == ""} == {24}
    assert model.ir_version == 11
    dims = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    assert dims == {"B", "S", "E", "T"}


def test_std_uses_standard_ops_and_our_bodies_only(traced: Traced) -> None:
    for part in ("target", "drafter"):
        model = traced.lowered(part, "std").model
        assert {n.domain for n in model.graph.all_nodes()} <= {"", "peagle"}
        bodies = {(f.domain, f.name) for f in model.functions.values()}
        assert {("peagle", n.op_type) for n in model.graph if n.domain == "peagle"} == bodies
        assert all(n.domain == "" for f in model.functions.values() for n in f.all_nodes())


def test_ort_fuses_every_layer(traced: Traced) -> None:
    count = _count(traced.lowered("target", "ort"))
    assert count["GroupQueryAttention"] == LAYERS
    assert count["SkipSimplifiedLayerNormalization"] == 2 * LAYERS
    assert count["FusedMatMul"] == 4 * LAYERS + 1  # q+k+v, o, gate+up, down; and the head
    assert not count.keys() & {"CachedAttention", "MatMul", "RotaryEmbedding", "TensorScatter"}


@pytest.mark.parametrize("lowering", ["std", "ort", "tensorrt"])
def test_the_interface_is_the_graph_contract(traced: Traced, lowering: str) -> None:
    target, drafter = (traced.lowered(part, lowering).model.graph for part in ("target", "drafter"))
    caches = [f"{kind}_cache.{i}" for kind in "kv" for i in range(LAYERS)]
    assert [v.name for v in target.inputs] == [
        "input_ids", "start", "window_len", "draft_len", "forced_next",
        "uniform", "temperature", "top_k", "top_p", "min_p", "tolerance",
        *(["skipped", "positions"] if lowering == "tensorrt" else []), *caches,
    ]  # fmt: skip
    assert [v.name for v in target.outputs][:4] == ["tokens", "num_tokens", "aux_hidden", "logits"]
    assert [v.name for v in drafter.outputs][:5] == [
        "draft_ids", "next_input_ids", "next_start", "next_window_len", "next_draft_len",
    ]  # fmt: skip
    cache = next(v for v in target.inputs if v.name == "k_cache.0")
    assert str(cache.shape) == f"[B,2,{CACHE},16]"
    dtypes = {v.name: v.dtype for v in (*target.inputs, *target.outputs)}
    assert dtypes["tokens"] == dtypes["num_tokens"] == dtypes["window_len"] == ir.DataType.INT32
    assert dtypes["start"] == dtypes["input_ids"] == ir.DataType.INT64


@pytest.mark.parametrize("lowering", ["std", "ort", "tensorrt"])
def test_weights_are_planned_once_each(traced: Traced, lowering: str) -> None:
    planned = [part for weight in traced.lowered("target", lowering).weights for part in weight.parts]
    assert len(planned) == len(set(planned))
    linears = {f"model.layers.{i}.self_attn.{n}_proj.weight" for i in range(LAYERS) for n in "qkvo"}
    assert linears <= set(planned)


def test_a_tied_head_is_stored_once(qwen3: Traced, llama: Traced) -> None:
    for traced, copies in ((qwen3, 1), (llama, 2)):
        table = 96 * 48
        sizes = [w.bytes for w in traced.lowered("target", "ort").weights]
        assert sizes.count(table * 4) == copies


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_standard_graphs_pass_the_checker(qwen3: Traced, part: str) -> None:
    onnx.checker.check_model(str(qwen3.built(part, "std")))


def test_a_rotary_table_covers_the_cache(qwen3: Traced) -> None:
    graph = qwen3.lowered("target", "ort").model.graph
    tables = [v for n, v in graph.initializers.items() if "rotary_emb" in n]
    assert [list(t.shape) for t in tables] == [[CACHE, 8], [CACHE, 8]]


@pytest.mark.parametrize(("field", "value"), [("scaling", float("nan")), ("inv_freq", [float("inf")] * 8)])
def test_a_rotary_table_without_numbers_is_refused(qwen3: Traced, field: str, value: object) -> None:
    model = graph_files.load(qwen3.folder / "target.onnx")
    ropes = json.loads(model.metadata_props[ROPE_METADATA])
    model.metadata_props[ROPE_METADATA] = json.dumps({name: rope | {field: value} for name, rope in ropes.items()})
    with pytest.raises(BuildError, match="values from position 0 on") as caught:
        lower(model, LOWERINGS["ort"], cache_length=CACHE)
    assert "rope_theta" in caught.value.why


def test_lowering_is_found_by_name_with_its_properties() -> None:
    assert [lowering_named(name).name for name in LOWERINGS] == list(LOWERINGS)
    assert {name for name, lowering in LOWERINGS.items() if lowering.is_tensorrt} == {"tensorrt", "tensorrt-sm100"}
    assert {lowering.cache_multiple for lowering in LOWERINGS.values() if lowering.is_tensorrt} == {64}
    assert [name for name, lowering in LOWERINGS.items() if lowering.has_kernels] == ["ort", "cpu"]
    assert [name for name, lowering in LOWERINGS.items() if lowering.packs] == ["cpu"]
    assert [name for name, lowering in LOWERINGS.items() if lowering.has_expert_layer] == ["tensorrt-sm100"]
    with pytest.raises(UsageError, match="unknown lowering 'triton'") as caught:
        lowering_named("triton")
    assert all(name in caught.value.why for name in LOWERINGS)
