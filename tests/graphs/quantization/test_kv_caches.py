"""Quantized caches: the graph equals rounding of keys and values in torch, in half the memory or less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from transformers.models.qwen3 import modeling_qwen3

from peagle.graphs import graph_files
from peagle.graphs.drafters import torch_reference
from peagle.graphs.lowering import LOWERINGS, Lowered, lower
from peagle.graphs.quantization import lower_cache_precision, quantize_caches, round_caches
from peagle.graphs.stream_weights import attach
from peagle.plugins.errors import BuildError
from tests.graphs.checking import check
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import VOCAB

SCALE = {"k": 0.011, "v": 0.017}
FP8 = ir.DataType.FLOAT8E4M3FN


def _scales(traced: Traced) -> dict[str, float]:
    """Another one for every cache."""
    layers = range(len(traced.target.caches))
    return {f"{kind}_cache.{layer}": SCALE[kind] * (1 + layer / 8) for kind in "kv" for layer in layers}


def _lowered(traced: Traced, lowering: str) -> Lowered:
    model = graph_files.load(traced.folder / "target.onnx")
    quantize_caches(model, _scales(traced))
    return lower(model, LOWERINGS[lowering], cache_length=CACHE)


def _built(traced: Traced, lowering: str, lowered: Lowered | None = None) -> Path:
    """The graph with weights; ``lowered`` is the one without, if it is there and not needed any more."""
    path = traced.folder / f"{lowering}-fp8-caches" / "model.onnx"
    if not path.exists():
        path.parent.mkdir()
        attach(lowered or _lowered(traced, lowering), traced.pair.target_weights(), path)
    return path


@contextmanager
def _rounding(scales: dict[str, float]) -> Iterator[None]:
    """Attention of transformers over keys and values that were rounded to codes and back."""
    plain = modeling_qwen3.eager_attention_forward

    def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
        codes = (x / np.float32(scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes.to(torch.float32) * np.float32(scale)

    def attend(module: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
        layer = module.layer_idx
        k, v = (rounded(x, scales[f"{kind}_cache.{layer}"]) for kind, x in (("k", k), ("v", v)))
        return plain(module, q, k, v, *args, **kwargs)

    modeling_qwen3.eager_attention_forward = attend
    try:
        yield
    finally:
        modeling_qwen3.eager_attention_forward = plain


@pytest.mark.parametrize("lowering", ["std", "tensorrt"])
def test_quantized_cache_graph_matches_rounding_in_torch(
    qwen3: Traced, lowering: str, rng: np.random.Generator
) -> None:
    """To 1e-4, but where the seventh digit of a key decides to which code it is rounded; in two steps."""
    prompts, first, width = 24, 5, 3
    caches = qwen3.target.caches
    graph = Graph(_built(qwen3, lowering), caches, CACHE, rows=prompts)
    wide = Graph(qwen3.built("target", "std"), caches, CACHE, rows=prompts)
    ids = rng.integers(2, VOCAB, (prompts, first + width))
    model = qwen3.reference()
    with _rounding(_scales(qwen3)):
        passes = [torch_reference.target_pass(model, qwen3.target, row.tolist()) for row in ids]
    for each in (graph, wide):
        each(**target_inputs(ids[:, :first], 0, 0, 1))
    window = target_inputs(ids[:, first:], first, width - 1, width)
    out, unrounded = graph(**window), wide(**window)
    for place, name in enumerate(("logits", "aux_hidden")):
        expected = np.stack([values[place].numpy()[first:] for values in passes])
        apart = np.abs(out[name] - expected).max(axis=(1, 2))
        moved = np.abs(unrounded[name] - expected).max(axis=(1, 2))
        assert np.mean(apart < 1e-4) > 0.8, apart
        assert apart.max() < moved.max()
        assert moved.min() > 1e-3  # or else this says nothing


def test_lowerings_agree(trace_of: Callable[[str], Traced], rng: np.random.Generator) -> None:
    """Also with sinks, windows and rows at unequal positions."""
    traced = trace_of("gpt-oss")
    std, ours = (Graph(_built(traced, low), traced.target.caches, CACHE, rows=2) for low in ("std", "tensorrt"))
    for starts, width in (([0, 0], 12), ([12, 7], 5), ([14, 12], 2)):
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), 0, width - 1, width)
        window["start"] = np.array(starts, np.int64)
        expected, out = std(**window), ours(**window)
        np.testing.assert_allclose(out["logits"], expected["logits"], atol=1e-3)


def test_the_interface_is_fp8_and_the_plugin_writes_it(every: Traced) -> None:
    lowered = _lowered(every, "tensorrt")
    model, layers = lowered.model, len(every.target.caches)
    caches = [v for v in (*model.graph.inputs, *model.graph.outputs) if "_cache." in str(v.name)]
    assert len(caches) == 4 * layers
    assert {value.dtype for value in caches} == {FP8}
    nodes = list(model.graph.all_nodes())
    writes = [node for node in nodes if node.op_type == "CacheWriteFp8"]
    assert len(writes) == layers
    assert not [node for node in nodes if node.op_type in ("TensorScatter", "CachedAttention")]
    scales = _scales(every)
    for node in writes:
        assert node.attributes["plugin_namespace"].as_string() == "peagle"
        for cache, out, scale in zip(node.inputs[:2], node.outputs, node.inputs[5:], strict=True):
            assert out.name == f"{cache.name}.out"
            assert out.is_graph_output()
            number = scale.producer().attributes["value"].as_tensor().numpy()
            assert number.dtype == np.float32
            assert float(number) == np.float32(scales[str(cache.name)])
            read = [user for user, _ in out.uses()]
            assert [user.op_type for user in read] == ["DequantizeLinear"]
    functions = [function.name for function in model.functions.values()]
    assert functions.count("CacheWriteFp8") == 1
    check(_built(every, "tensorrt", lowered))


@pytest.mark.parametrize(("dtype", "more"), [("float16", 0), ("int8", 2)])
def test_narrower_caches_have_their_type_from_one_end_to_the_other(qwen3: Traced, dtype: str, more: int) -> None:
    """The number of rows of a cache is readable for any type."""
    model = graph_files.load(qwen3.folder / "target.onnx")
    before = {value.name: value.shape[-1] for value in model.graph.inputs if "_cache." in str(value.name)}
    (first, *_) = (value for value in model.graph.inputs if value.name in before)
    model.graph.append(ir.node("Shape", [first], {"start": 0, "end": 1}))
    lower_cache_precision(model, dtype)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if "_cache." in str(value.name):
            width = before[str(value.name).removesuffix(".out")] + more
            assert (value.dtype, value.shape[-1]) == (ir.DataType[dtype.upper()], width)
    for node in model.graph:
        if node.op_type == "CachedAttention":
            assert node.attributes.get_int("saturates", 0) == (dtype == "float16")


@pytest.mark.parametrize("attributes", [None, {"start": 0, "end": 4}, {}])
def test_cache_with_other_readers_stays_unquantized(qwen3: Traced, attributes: dict[str, int] | None) -> None:
    model = graph_files.load(qwen3.folder / "target.onnx")
    cache = next(value for value in model.graph.inputs if value.name == "v_cache.0")
    model.graph.append(ir.node("Identity", [cache]) if attributes is None else ir.node("Shape", [cache], attributes))
    with pytest.raises(BuildError, match=r"v_cache\.0 cannot be quantized") as caught:
        lower_cache_precision(model, "int8")
    assert caught.value.fix == "use --kv-cache-dtype fp32"


def test_cache_contents_are_codes(qwen3: Traced, rng: np.random.Generator) -> None:
    """A number that was written is a code times the scale: reading the cache from the wide graph and rounding it."""
    wide = Graph(qwen3.built("target", "std"), qwen3.target.caches, CACHE)
    model = graph_files.load(_built(qwen3, "std"))
    for value in model.graph.outputs:
        if str(value.name).endswith("_cache.0.out"):  # the first layer's input is not rounded by any before
            cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, name=f"{value.name}.cast")
            cast.outputs[0].name = f"{value.name}.wide"
            cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), value.shape
            model.graph.append(cast)
    model.graph.outputs.extend(n.outputs[0] for n in tuple(model.graph) if str(n.name).endswith(".cast"))
    path = _built(qwen3, "std").with_name("shown.onnx")
    ir.save(model, path)
    window = target_inputs(rng.integers(2, VOCAB, (1, 9)), 0, 0, 1)
    out = Graph(path, qwen3.target.caches, CACHE)(**window)
    wide(**window)
    for kind in "kv":
        scale = np.float32(_scales(qwen3)[f"{kind}_cache.0"])
        exact = (wide.caches[f"{kind}_cache.0"] / scale).clip(-448, 448)
        codes = exact.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        numbers = out[f"{kind}_cache.0.out.wide"]
        assert np.mean(numbers == codes) > 0.999
        assert np.abs(numbers - exact).max() <= np.abs(exact).max() / 16


@pytest.mark.parametrize("lowering", ["std", "ort", "tensorrt"])
def test_dequantized_cache_gives_the_same_results(
    qwen3: Traced, lowering: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    """In two steps; the codes' graph is the oracle. Another order of sums may round a key to another code."""
    prompts, first, width = 24, 5, 3
    model = graph_files.load(qwen3.folder / "target.onnx")
    round_caches(model, _scales(qwen3))
    attach(lower(model, LOWERINGS[lowering], cache_length=CACHE), qwen3.pair.target_weights(), tmp_path / "model.onnx")
    caches = qwen3.target.caches
    ids = rng.integers(2, VOCAB, (prompts, first + width))
    paths = (tmp_path / "model.onnx", _built(qwen3, "std"), qwen3.built("target", "std"))
    rounded, *others = (Graph(path, caches, CACHE) for path in paths)
    apart, moved = [], []
    for row in ids[:, None]:  # one at a time: the kernel of ``ort`` takes no more. What is left there is overwritten
        for each in (rounded, *others):
            each(**target_inputs(row[:, :first], 0, 0, 1))
        window = target_inputs(row[:, first:], first, width - 1, width)
        logits, expected, plain = (each(**window)["logits"] for each in (rounded, *others))
        apart.append(np.abs(logits - expected).max())
        moved.append(np.abs(plain - expected).max())
        codes = rounded.caches["k_cache.0"] / np.float32(_scales(qwen3)["k_cache.0"])
        np.testing.assert_allclose(codes, codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), rtol=1e-6)
        assert codes.any()
    assert np.mean(np.array(apart) < 1e-4) > 0.8, apart
    assert np.mean(moved) > 1e-3  # or else this says nothing


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda scales: scales.pop("k_cache.0"), "missing: k_cache.0; not in the graph: none"),
        (lambda scales: scales.update({"k_cache.77": 1.0}), "missing: none; not in the graph: k_cache.77"),
        (
            lambda scales: scales.update({f"v_cache.{layer}": 1.0 for layer in range(70, 75)}),
            "not in the graph: v_cache.70, v_cache.71, v_cache.72, v_cache.73 and more",
        ),
    ],
)
def test_scales_of_another_model_are_rejected(qwen3: Traced, spoil: Callable[[Any], Any], words: str) -> None:
    scales = _scales(qwen3)
    spoil(scales)
    for rewrite in (quantize_caches, round_caches):
        with pytest.raises(BuildError) as caught:
            rewrite(graph_files.load(qwen3.folder / "target.onnx"), scales)
        assert words in str(caught.value)


def test_cache_with_other_readers_is_rejected(qwen3: Traced) -> None:
    model = graph_files.load(qwen3.folder / "target.onnx")
    (cache,) = (value for value in model.graph.inputs if value.name == "k_cache.0")
    model.graph.append(ir.node("Identity", [cache]))
    with pytest.raises(BuildError, match=r"k_cache\.0 cannot be quantized"):
        quantize_caches(model, _scales(qwen3))
