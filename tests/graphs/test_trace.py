"""Graphs traced in types other than float32: the same model, in the requested type."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from peagle.graphs import trace
from peagle.graphs.drafters import torch_reference
from peagle.plugins import graph_contract
from tests.graphs.bfloat16 import computed_in_float32
from tests.graphs.checking import check
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced, semantic
from tests.models import CONFIGS, VOCAB

# Float32 in graphs of every type.
WIDE = {"uniform", "temperature", "top_p", "min_p", "tolerance", "candidate_scores"}

TracedIn = Callable[[str, trace.Dtype], Traced]


@pytest.fixture(scope="module")
def traced_in(trace_of: Callable[[str], Traced], tmp_path_factory: pytest.TempPathFactory) -> TracedIn:
    """The pair of a family in another type; only Qwen3 has its drafter traced again."""

    @cache
    def make(family: str, dtype: trace.Dtype) -> Traced:
        full = trace_of(family)
        folder = tmp_path_factory.mktemp(f"{family}-{dtype}")
        for part in ("target", "drafter") if family == "qwen3" else ("target",):
            shutil.copy(semantic(full.pair, part, dtype), folder / f"{part}.onnx")
        return replace(full, folder=folder)

    return make


def _graph(traced: Traced, part: str, lowering: str, dtype: type[np.floating]) -> Graph:
    caches = traced.target.caches if part == "target" else traced.head.caches
    graph = Graph(traced.built(part, lowering), caches, CACHE, rows=2)
    graph.caches = {name: cache.astype(dtype) for name, cache in graph.caches.items()}
    return graph


def _distances(vectors: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Of every vector of logits, relative to its length."""
    return np.linalg.norm(vectors.astype(np.float32) - expected, axis=-1) / np.linalg.norm(expected, axis=-1)


WINDOWS = (([0, 0], 12), ([12, 7], 5), ([14, 12], 9))


@pytest.mark.parametrize(
    ("family", "lowering"),
    [
        ("qwen3", "std"),
        ("qwen3", "tensorrt"),
        pytest.param("gpt-oss", "std", marks=pytest.mark.slow),
        ("gpt-oss", "tensorrt"),
    ],
)
def test_a_float16_target_is_close_to_the_float32_one(
    family: str, lowering: str, trace_of: Callable[[str], Traced], traced_in: TracedIn, rng: np.random.Generator
) -> None:
    wide = _graph(trace_of(family), "target", "std", np.float32)
    half = _graph(traced_in(family, "float16"), "target", lowering, np.float16)
    distances, same = [], []
    for starts, width in WINDOWS:
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), 0, width - 1, width)
        window["start"] = np.array(starts, np.int64)
        expected, out = wide(**window), half(**window)
        assert (out["logits"].dtype, out["aux_hidden"].dtype) == (np.float16, np.float16)
        distances += _distances(out["logits"], expected["logits"]).ravel().tolist()
        same += (out["logits"].argmax(-1) == expected["logits"].argmax(-1)).ravel().tolist()
    assert np.median(distances) < 5e-3
    assert np.mean(np.array(distances) < 2e-2) >= (1 if family == "qwen3" else 0.9)  # a near tie may change an expert
    assert np.mean(same) >= 0.9


# Llama's layers are Qwen3's but for the norms of queries and keys, and rotary tables are float32 in every trace. The
# attention of Qwen3 with experts is Qwen3's, and its router has a test of its own.
SLOW = ("llama", "qwen3-moe", "gemma-4-moe")


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CONFIGS]
)
def test_a_bfloat16_target_is_as_exact_as_transformers(
    family: str, trace_of: Callable[[str], Traced], traced_in: TracedIn, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Both are rounded after every step; neither may be further from float32 than the other."""
    traced, width = traced_in(family, "bfloat16"), 40
    path = computed_in_float32(traced.built("target", "std"), tmp_path / "model.onnx")
    ids = rng.integers(2, VOCAB, (2, width))
    found = Graph(path, traced.target.caches, CACHE, rows=2)(**target_inputs(ids, 0, width - 1, width))["logits"]
    model = torch_reference.load_target(traced.pair.target, traced.pair.config)
    with torch.no_grad():
        exact = model(torch.tensor(ids), use_cache=False).logits
        theirs = model.to(torch.bfloat16)(torch.tensor(ids), use_cache=False).logits
    expected = exact.numpy()
    ours, other = _distances(found, expected), _distances(theirs.float().numpy(), expected)
    assert 0 < np.median(ours) < 1.3 * np.median(other)
    assert np.mean(ours) < 1.5 * np.mean(other)  # a near tie may change an expert


def test_a_bfloat16_router_chooses_as_transformers(
    trace_of: Callable[[str], Traced], traced_in: TracedIn, tmp_path: Path, rng: np.random.Generator
) -> None:
    """Probabilities that were rounded before the choice would tie, and give other experts and other weights."""
    traced, width = traced_in("qwen3-moe", "bfloat16"), 40
    graph = ir.load(traced.folder / "target.onnx").graph
    routers = [node for node in graph if node.op_type == "Softmax"]
    layers = [node for node in graph if node.op_type == "SparseExperts"]
    assert len(routers) == len(layers) > 1
    logits = [_before_casts(node.inputs[0]) for node in routers]
    names = [name for node, value in zip(layers, logits, strict=True)
             for name in (value.name, node.inputs[1].name, node.inputs[2].name)]  # fmt: skip
    path = computed_in_float32(traced.built("target", "std"), tmp_path / "model.onnx", names)
    out = Graph(path, traced.target.caches, CACHE, rows=2)(
        **target_inputs(rng.integers(2, VOCAB, (2, width)), 0, width - 1, width)
    )
    config = traced.pair.config
    for at in range(0, len(names), 3):
        given, experts, scores = (out[name] for name in names[at : at + 3])
        chances, chosen = torch.tensor(given).softmax(-1).topk(config["num_experts_per_tok"])
        expected = (chances / chances.sum(-1, keepdim=True)).bfloat16().float().numpy()
        np.testing.assert_array_equal(experts, chosen)
        np.testing.assert_allclose(scores, expected, rtol=2**-8)
        assert np.mean(scores == expected) > 0.98


def _before_casts(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type == "Cast":
        value = node.inputs[0]
    return value


@pytest.mark.parametrize("lowering", ["std", "tensorrt"])
def test_a_float16_drafter_is_close_to_the_float32_one(
    lowering: str, qwen3: Traced, traced_in: TracedIn, rng: np.random.Generator
) -> None:
    wide = _graph(qwen3, "drafter", "std", np.float32)
    half = _graph(traced_in("qwen3", "float16"), "drafter", lowering, np.float16)
    for starts, width in WINDOWS:
        features = rng.standard_normal((2, width, 3 * qwen3.target.hidden_size)).astype(np.float32)
        rows = {
            "input_ids": rng.integers(2, VOCAB, (2, width)), "start": np.array(starts, np.int64),
            "window_len": np.full(2, width, np.int32), "draft_len": np.zeros(2, np.int32),
            "tokens": np.array([[5, -1, -1, -1]] * 2, np.int32), "num_tokens": np.ones(2, np.int32),
        }  # fmt: skip
        expected = wide(**rows, aux_hidden=features)["draft_logits"]
        logits = half(**rows, aux_hidden=features.astype(np.float16))["draft_logits"]
        assert logits.dtype == np.float16
        assert _distances(logits, expected).max() < 2e-2
        assert np.mean(logits.argmax(-1) == expected.argmax(-1)) >= 0.9


CASES = [("qwen3", "float16", "target"), ("qwen3", "float16", "drafter"), ("gpt-oss", "float16", "target"),
         ("gemma-4", "bfloat16", "target")]  # fmt: skip


@pytest.mark.parametrize("lowering", ["std", "tensorrt"])
@pytest.mark.parametrize(("family", "dtype", "part"), CASES)
def test_the_interface_and_every_weight_are_of_the_type(
    family: str, dtype: trace.Dtype, part: str, lowering: str, traced_in: TracedIn
) -> None:
    traced = traced_in(family, dtype)
    lowered = traced.lowered(part, lowering)
    interface = {str(v.name): v.dtype for v in (*lowered.model.graph.inputs, *lowered.model.graph.outputs)}
    floats = {name: kind for name, kind in interface.items() if kind.is_floating_point()}
    assert {name for name, kind in floats.items() if kind == ir.DataType.FLOAT} == WIDE & interface.keys()
    assert {kind for name, kind in floats.items() if name not in WIDE} == {ir.DataType[dtype.upper()]}
    assert {"aux_hidden", "k_cache.0", "v_cache.0.out"} <= floats.keys()
    assert {weight.dtype for weight in lowered.weights} == {dtype}
    check(traced.built(part, lowering))


@pytest.mark.parametrize(("family", "dtype"), [("gpt-oss", "float16"), ("gemma-4", "bfloat16")])
def test_a_rotary_table_is_rounded_once(
    family: str, dtype: trace.Dtype, trace_of: Callable[[str], Traced], traced_in: TracedIn
) -> None:
    wide, half = (
        {
            name: value.const_value.numpy()
            for name, value in traced.lowered("target", "std").model.graph.initializers.items()
            if "rotary" in name
        }
        for traced in (trace_of(family), traced_in(family, dtype))
    )
    assert wide.keys() == half.keys() != set()
    for name, table in half.items():
        assert table.dtype.name == dtype
        np.testing.assert_array_equal(table, wide[name].astype(table.dtype))


def test_traced_graphs_have_the_tensors_of_the_contract(llama: Traced) -> None:
    sizes = {
        str(len(llama.target.taps) * llama.target.hidden_size): "F",
        str(VOCAB): "V",
        str(llama.head.draft_vocab_size): "Vd",
    }
    halves = {
        "target": (graph_contract.TARGET_INPUTS, graph_contract.TARGET_OUTPUTS, llama.target.caches),
        "drafter": (graph_contract.DRAFTER_INPUTS, graph_contract.DRAFTER_OUTPUTS, llama.head.caches),
    }
    assert len(sizes) == 3
    for half, (inputs, outputs, caches) in halves.items():
        graph = ir.load(llama.folder / f"{half}.onnx").graph
        names = graph_contract.cache_names(len(caches))
        assert [v.name for v in graph.inputs] == [*inputs, *names]
        assert [v.name for v in graph.outputs] == [*outputs, *map(graph_contract.written, names)]
        for value in (*graph.inputs, *graph.outputs):
            if value.name not in graph_contract.TENSORS:
                continue
            tensor = graph_contract.TENSORS[value.name]
            dtype = value.dtype.numpy().name
            assert dtype == ("float32" if tensor.dtype == graph_contract.WIDE else tensor.dtype)
            dims = [str(dim).replace(" ", "") for dim in value.shape]
            assert len(dims) == len(tensor.dims)
            for dim, symbol in zip(dims, tensor.dims, strict=True):
                assert dim == symbol or (dim.isdigit() and sizes[dim] == symbol), (value.name, dims)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_product_of_a_weight_is_a_matmul(trace_of: Callable[[str], Traced], family: str) -> None:
    nodes = ir.load(trace_of(family).folder / "target.onnx").graph
    assert not [node.name for node in nodes if node.op_type == "Gemm"]
