"""The ``tensorrt`` lowering produces what TensorRT's parser accepts, equivalent to the standard bodies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.request.build_plan import CHUNK
from peagle.compiler.resources.pass_tensors import pass_tensors
from peagle.compiler.resources.workload import Workload
from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.errors import BuildError
from peagle.plugins.graph_contract import SKIPPED
from peagle.plugins.ops import OPS
from tests.gpu import onnx_on_torch
from tests.graphs.checking import check
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import VOCAB
from tests.plugins.ops.accept_tree.trees import skipped_of

PARTS = ["target", "drafter"]
PLUGIN = {"target": "AcceptTree", "drafter": "PlaceholderDraft"}


def _nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == op_type]


def test_the_checker_passes_every_family(every: Traced) -> None:
    check(*(every.built(part, "tensorrt") for part in PARTS))


@pytest.mark.parametrize("part", PARTS)
def test_every_cache_has_one_update_from_interface_to_interface(every: Traced, part: str) -> None:
    model = every.lowered(part, "tensorrt").model
    updates = _nodes(model, "TensorScatter")
    caches = [value for value in model.graph.inputs if "_cache." in str(value.name)]
    assert Counter(node.inputs[0] for node in updates) == Counter(caches)
    assert {node.outputs[0].name for node in updates} == {f"{cache.name}.out" for cache in caches}
    assert all(node.outputs[0].is_graph_output() and node.attributes["axis"].as_int() == 2 for node in updates)
    assert all(cache.shape[2] == CACHE for cache in caches)


@pytest.mark.parametrize("part", PARTS)
def test_attention_has_a_mask_and_no_unsupported_node(every: Traced, part: str) -> None:
    model = every.lowered(part, "tensorrt").model
    attention = _nodes(model, "Attention")
    assert all(set(node.attributes) == {"scale"} for node in attention)  # no softcap; no is_causal beside a mask
    assert all((len(node.inputs), len(node.outputs)) == (4, 1) for node in attention)
    assert len(attention) == len(_nodes(model, "TensorScatter")) // 2


def test_estimates_count_masks_and_dense_experts_and_scores_that_are_not_fused(every: Traced) -> None:
    fused = len(_nodes(every.lowered("target", "tensorrt").model, "Attention"))
    opened, recipe = every.pair.opened(), RECIPES["fp8"].on("bf16")
    text, census = opened.family.text(opened.config), opened.skeleton.weights
    workload = Workload(census, recipe, LOWERINGS["tensorrt"])
    tensors = pass_tensors(opened.spec, text, workload, rows=1, num_speculative_tokens=4)
    assert (tensors.scores == 0) == (fused == opened.spec.num_layers)
    model = every.lowered("target", "tensorrt").model
    masks, experts = len(_nodes(model, "LessOrEqual")), [each for each in census if each.role == "experts"]
    assert tensors.masks == CHUNK * 2  # bytes per position
    assert 1 + len(tensors.windowed) == masks
    assert (tensors.experts > 0) == bool(experts)


@pytest.mark.parametrize("part", PARTS)
def test_query_heads_share_key_heads_without_copies(every: Traced, part: str) -> None:
    semantic = graph_files.load(every.folder / f"{part}.onnx")
    layers = [node for node in semantic.graph if node.op_type == "CachedAttention"]
    attention = _nodes(every.lowered(part, "tensorrt").model, "Attention")
    assert len(attention) == len(layers)
    makers = [node.inputs[0].producer() for node in attention]
    # Behind queries there may be sinks, and their heads may be rotated with those of keys.
    rotated = [maker.inputs[0].producer() if maker.op_type == "Concat" else maker for maker in makers]
    rotated = [maker.inputs[0].producer() if maker.op_type == "Split" else maker for maker in rotated]
    assert {node.op_type for node in rotated} <= {"RotaryEmbedding"}
    for node in attention:
        keys, values = (node.inputs[place].producer() for place in (1, 2))
        assert {keys.op_type, values.op_type} <= {"Concat", "Pad"}  # a key of zeros may be added for the sinks


@pytest.mark.parametrize("part", PARTS)
def test_both_caches_of_a_layer_are_cut_to_the_reach_or_its_window(every: Traced, part: str) -> None:
    model = every.lowered(part, "tensorrt").model
    windows = every.target.windows if part == "target" else every.head.windows
    caches = [value for value in (*model.graph.inputs, *model.graph.outputs) if "_cache." in str(value.name)]
    readers = {
        str(value.name).removesuffix(".out"): node.op_type
        for value in caches
        for node, _ in value.uses()
        if node.op_type != "TensorScatter"
    }
    assert readers == {
        f"{kind}_cache.{layer}": "Reshape" if window else "Slice"  # a window is gathered from entries of all rows
        for kind in "kv"
        for layer, window in enumerate(windows)
    }
    views = [node for value in caches for node, _ in value.uses() if node.op_type == "Reshape"]
    indices = {reader.inputs[1] for view in views for reader, _ in view.outputs[0].uses()}
    assert len(indices) == len({window for window in windows if window})
    assert [str(value.name) for value in model.graph.inputs if "_cache." not in str(value.name)][-1] == "positions"


@pytest.mark.parametrize("part", PARTS)
def test_layers_of_one_window_share_one_mask(every: Traced, part: str) -> None:
    semantic = onnx.load(every.folder / f"{part}.onnx", load_external_data=False)
    layers = [node for node in semantic.graph.node if node.op_type == "CachedAttention"]
    windows = [a.i for node in layers for a in node.attribute if a.name == "window"]
    assert windows == [*(every.target.windows if part == "target" else every.head.windows)]
    model = every.lowered(part, "tensorrt").model
    assert len(_nodes(model, "LessOrEqual")) == len({*windows})
    assert len({node.inputs[3] for node in _nodes(model, "Attention")}) in (0, len({*windows}))


@pytest.mark.parametrize("part", PARTS)
def test_remaining_peagle_ops_are_plugins_with_bodies(every: Traced, part: str) -> None:
    model = every.lowered(part, "tensorrt").model
    assert {node.domain for node in model.graph.all_nodes()} == {"", "peagle"}
    (node,) = (node for node in model.graph.all_nodes() if node.domain == "peagle")
    assert node.op_type == PLUGIN[part]
    assert node.attributes["plugin_namespace"].as_string() == "peagle"
    assert node.attributes["plugin_version"].as_string() == "1"
    assert len(node.inputs) == len(OPS[node.op_type].inputs)
    assert None not in node.inputs
    assert [function.name for function in model.functions.values()] == [node.op_type]
    assert (model.ir_version, model.opset_imports[""]) == (11, 24)


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "gpt-oss"])
def test_gpu_tests_run_every_op_of_their_graphs(family: str, trace_of: Any) -> None:
    """They wait for a machine: one of them would fail there only."""
    for part in PARTS:
        nodes = trace_of(family).lowered(part, "tensorrt").model.graph.all_nodes()
        assert {node.op_type for node in nodes if not node.domain} - {"Constant"} <= {*onnx_on_torch.OPS}


def test_shares_of_experts_are_not_scattered(trace_of: Any) -> None:
    for family in ("qwen3-moe", "gpt-oss"):
        model = trace_of(family).lowered("target", "tensorrt").model
        kinds = {node.op_type for node in model.graph.all_nodes()}
        assert "TopK" in kinds
        assert not kinds & {"NonZero", "ScatterElements", "Softmax"}


@pytest.mark.parametrize("part", PARTS)
def test_fused_attention_does_not_read_entries_that_the_pass_writes(every: Traced, part: str) -> None:
    model = every.lowered(part, "tensorrt").model
    written = {node.outputs[0] for node in _nodes(model, "TensorScatter")}
    read = {node.inputs[0] for kind in ("Slice", "Reshape") for node in _nodes(model, kind)} & written
    spelled = len(written) // 2 - len(_nodes(model, "Attention"))  # layers
    assert len(read) == 2 * spelled


def _graphs(traced: Traced, lowering: str) -> dict[str, Graph]:
    caches = {"target": traced.target.caches, "drafter": traced.head.caches}
    return {part: Graph(traced.built(part, lowering), caches[part], CACHE, rows=2) for part in PARTS}


def test_rows_at_unequal_positions_match_std(every: Traced, rng: np.random.Generator) -> None:
    std, ours = _graphs(every, "std"), _graphs(every, "tensorrt")
    for starts, width in (([0, 0], 12), ([12, 7], 5), ([14, 12], 2), ([16, 14], 9)):
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), 0, width - 1, width)
        window["start"] = np.array(starts, np.int64)
        expected, out = std["target"](**window), ours["target"](**window)
        assert out["tokens"].tolist() == expected["tokens"].tolist()
        np.testing.assert_allclose(out["logits"], expected.pop("logits"), atol=1e-4)
        np.testing.assert_allclose(out["aux_hidden"], expected["aux_hidden"], atol=1e-4)
        rows = {name: window[name] for name in ("input_ids", "start", "window_len", "draft_len")} | expected
        expected, out = std["drafter"](**rows), ours["drafter"](**rows)
        assert out["draft_ids"].tolist() == expected["draft_ids"].tolist()
        np.testing.assert_allclose(out["draft_logits"], expected["draft_logits"], atol=1e-4)


def test_unwritten_cache_content_changes_nothing(every: Traced, rng: np.random.Generator) -> None:
    clean, poisoned = (_graphs(every, "tensorrt")["target"] for _ in range(2))
    for cache in poisoned.caches.values():
        cache[:] = 1e6
    window = target_inputs(rng.integers(2, VOCAB, (2, 12)), 0, 3, 4)
    np.testing.assert_array_equal(clean(**window)["logits"], poisoned(**window)["logits"])


def _one_layer(attributes: dict[str, Any], sinks: bool, size: int = 8, *, told: bool = True) -> ir.Model:
    """``CachedAttention`` alone, in a window that may be a tree: 4 query heads on 2 key heads, a cache of 16."""
    shapes = {
        "q": ["B", 4, "S", size], "k": ["B", 2, "S", size], "v": ["B", 2, "S", size],
        "k_cache": ["B", 2, 16, size], "v_cache": ["B", 2, 16, size], "start": ["B"],
    }  # fmt: skip
    shapes |= {"sinks": [4]} if sinks else {}
    shapes |= {"ancestors": ["B", "S", "S"]} | ({SKIPPED: ["B", "S"]} if told else {})
    types = {"start": ir.DataType.INT64, SKIPPED: ir.DataType.INT64, "ancestors": ir.DataType.BOOL}
    inputs = [
        ir.Value(
            name=name,
            shape=ir.Shape(shape),
            type=ir.TensorType(types.get(name, ir.DataType.FLOAT)),
        )
        for name, shape in shapes.items()
    ]
    given = {str(value.name): value for value in inputs if value.name != SKIPPED}
    operands = [given.get(operand.name) for operand in OPS["CachedAttention"].inputs]
    node = ir.node("CachedAttention", operands, attributes, domain="peagle", num_outputs=3)
    for value, name, shape in zip(
        node.outputs, ("y", "k_out", "v_out"), (["B", "S", 4, size], shapes["k_cache"], shapes["v_cache"]), strict=True
    ):
        value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 24, "peagle": 1}, name="layer")
    model = ir.Model(graph, ir_version=11)
    LOWERINGS["tensorrt"].apply(model)
    return model


@given(
    width=st.integers(1, 5),
    starts=st.lists(st.integers(0, 11), min_size=2, max_size=2),
    more=st.integers(0, 5),
    window=st.sampled_from([0, 1, 3]),
    softcap=st.sampled_from([0.0, 1.5]),
    scale=st.sampled_from([0.3, 8**-0.5, 1.0, 2.0]),
    sinks=st.booleans(),
    forks=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_one_layer_matches_the_reference(
    width: int,
    starts: list[int],
    more: int,
    window: int,
    softcap: float,
    scale: float,
    sinks: bool,
    forks: bool,
    seed: int,
) -> None:
    attributes = {"scale": scale, "window": window, "softcap": softcap}
    model = _one_layer(attributes, sinks)
    assert bool(_nodes(model, "Attention")) == (not softcap)
    draw = np.random.default_rng(seed)
    sizes = {"q": (2, 4, width, 8), "k": (2, 2, width, 8), "v": (2, 2, width, 8)}
    sizes |= {"k_cache": (2, 2, 16, 8), "v_cache": (2, 2, 16, 8)}
    values: dict[str, Any] = {name: draw.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    values["start"] = np.array(starts, np.int64)
    values["sinks"] = 5 * draw.standard_normal(4).astype(np.float32) if sinks else None
    parents = [int(draw.integers(0, column)) for column in range(1, width)]
    values["skipped"] = np.array([skipped_of(parents) if forks else [0] * width] * 2)
    bits = values["skipped"][..., None] >> np.arange(width) & 1
    values["ancestors"] = np.tri(width, k=-1, dtype=bool) & (bits == 0)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    operands = [values[operand.name] for operand in OPS["CachedAttention"].inputs]
    expected = OPS["CachedAttention"].reference(*operands, **attributes)
    values["positions"] = np.arange(min(max(starts) + width + more, 16))
    fed = {each.name: values[each.name] for each in session.get_inputs()}
    for array, reference_array in zip(session.run(None, fed), expected, strict=True):
        np.testing.assert_allclose(array, reference_array, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "sinks", "fused"), [(256, False, True), (264, False, False), (248, True, True), (256, True, False)]
)
def test_heads_that_no_fused_kernel_takes_are_spelled_out(size: int, sinks: bool, fused: bool) -> None:
    model = _one_layer({"scale": 1.0, "window": 0, "softcap": 0.0}, sinks=sinks, size=size)
    assert bool(_nodes(model, "Attention")) == fused


def test_a_tree_that_only_its_ancestors_describe_is_refused() -> None:
    """As in a graph that was lowered for a CPU before."""
    with pytest.raises(BuildError, match="no input skipped"):
        _one_layer({"scale": 1.0, "window": 0, "softcap": 0.0}, sinks=False, told=False)
