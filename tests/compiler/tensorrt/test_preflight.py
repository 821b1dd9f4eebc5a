"""Checks before TensorRT parses a graph, and the facts that they return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from peagle.compiler.tensorrt.preflight import survey
from peagle.plugins.errors import BuildError
from tests.compiler.tensorrt.small import F16, F32, node, profiles, set_attribute, written

Spoil = Callable[[onnx.ModelProto], None]


def test_a_good_graph_is_counted(tmp_path: Path) -> None:
    found = survey(written(tmp_path), ("sm_120",), profiles())
    quantized = dict.fromkeys(("QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"), 0)
    assert found.layers == {"PLUGIN_V3": 1, "KV_CACHE_UPDATE": 1, "ATTENTION_INPUT": 1, "MOE": 0, **quantized}
    assert found.plugins == {"AcceptPrefix": 1}
    assert found.others == ("Attention", "MatMul", "TensorScatter")
    assert found.graph.weight_bytes == 16 * 32 * 2
    assert not found.aliases


def _rename(name: str, op_type: str, domain: str = "") -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        found = node(made, name)
        found.op_type, found.domain = op_type, domain

    return spoil


def _dims(name: str, dims: list[int | str], dtype: int = F16) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
            if value.name == name:
                value.CopyFrom(helper.make_tensor_value_info(name, dtype, dims))

    return spoil


def _empty_input(name: str, index: int) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        node(made, name).input[index] = ""

    return spoil


def _no_output(name: str) -> Spoil:
    def spoil(made: onnx.ModelProto) -> None:
        kept = [value for value in made.graph.output if value.name != name]
        del made.graph.output[:]
        made.graph.output.extend(kept)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (set_attribute("accept", "plugin_namespace", None), "plugin_namespace must be 'peagle', not None"),
        (set_attribute("accept", "plugin_version", "2"), "plugin_version must be '1', not '2'"),
        (set_attribute("accept", "speed", 3), "unknown attribute 'speed'"),
        (_rename("accept", "CachedAttention", "peagle"), "has no TensorRT plugin"),
        (_rename("accept", "AcceptSuffix", "peagle"), "peagle has no op of this name"),
        (_dims("logits", ["B", "E"]), "logits must have rank 3"),
        (_dims("uniform", ["B", "E"], F16), "uniform must be float32, not float16"),
        (
            _dims("tokens", ["B", "E"], TensorProto.INT64),
            "output tokens is declared as int64, but the plugin produces int32",
        ),
        (_dims("tokens", ["B"], TensorProto.INT32), "declared with rank 1"),
        (_empty_input("accept", 5), "inputs 5 are missing"),
        (
            _rename("head", "GroupQueryAttention", "com.microsoft"),
            "does not support this operator, and the graph has no body",
        ),
        (_rename("head", "NonZero"), "does not support this operator"),
        (_rename("head", "TRT_MoE"), "expert layer on sm_120, only on sm_100"),
        (set_attribute("attention", "softcap", 30.0), "does not support a soft cap"),
        (set_attribute("attention", "is_causal", 1), "is_causal"),
        (_dims("q", ["B", 2, "S", 512]), "heads of size 512"),
        (set_attribute("update", "mode", "circular"), "linear"),
        (_dims("k_cache.0", ["B", 1, "T", 16]), "cache length must be fixed, not 'T'"),
        (_dims("k_cache.0", ["B", 1, 16, 16], TensorProto.FLOAT8E4M3FN), "the cache is float8e4m3fn"),
        (_no_output("k_cache.0.out"), "not an output of the graph"),
        (_dims("mask", ["B", 1, "S", "N"]), "no profile defines its size 'N'"),
    ],
)
def test_graph_that_tensorrt_mishandles_is_rejected(spoil: Spoil, word: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        survey(written(tmp_path, spoil), ("sm_120",), profiles())
    assert word in caught.value.why
    assert caught.value.fix


def test_a_float32_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="model") as caught:
        survey(written(tmp_path, dtype=F32), ("sm_120",), profiles())
    assert "no attention kernel for float32" in caught.value.why
    assert caught.value.fix == "build, or export again with `--for tensorrt`, in fp16 or bf16"


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
    def spoil(made: onnx.ModelProto) -> None:
        set_attribute("attention", "softcap", 30.0)(made)
        set_attribute("accept", "plugin_namespace", None)(made)

    with pytest.raises(BuildError) as caught:
        survey(written(tmp_path, spoil), ("sm_120",), profiles())
    assert "soft cap" in caught.value.why
    assert "plugin_namespace" in caught.value.why


def test_profile_wider_than_the_cache_is_rejected(tmp_path: Path) -> None:
    """TensorRT only warns where that is the most of a profile; where it is the usual size, memory is corrupted."""
    graph = written(tmp_path)
    survey(graph, ("sm_120",), profiles(columns=16))
    with pytest.raises(BuildError) as caught:
        survey(graph, ("sm_120",), profiles(columns=17))
    assert "profile 'prefill' writes up to 17 rows at once into a cache of 16" in caught.value.why


def test_expert_layer_is_accepted_on_supported_gpus(tmp_path: Path) -> None:
    found = survey(written(tmp_path, _rename("head", "TRT_MoE")), ("sm_100",), profiles())
    assert found.layers["MOE"] == 1


def test_the_body_of_an_expert_layer_is_for_onnx_runtime_alone(tmp_path: Path) -> None:
    def spoil(made: onnx.ModelProto) -> None:
        text = '<domain: "trt", opset_import: ["" : 24]> TRT_MoE (x, w) => (y) { n = NonZero (x)\n y = MatMul (x, w) }'
        made.functions.append(onnx.parser.parse_function(text))
        made.opset_import.append(helper.make_opsetid("trt", 1))
        _rename("head", "TRT_MoE", "trt")(made)

    found = survey(written(tmp_path, spoil), ("sm_100",), profiles())
    assert "TRT_MoE" in found.others
    assert "NonZero" not in found.others


def test_the_bodies_of_other_domains_are_looked_into(tmp_path: Path) -> None:
    def spoil(made: onnx.ModelProto) -> None:
        body = "f (x, w) => (y) { n = NonZero (x)\n y = MatMul (x, w) }"
        function = onnx.parser.parse_function(f'<domain: "other", opset_import: ["" : 24]> {body}')
        made.functions.append(function)
        made.opset_import.append(helper.make_opsetid("other", 1))
        _rename("head", "f", "other")(made)

    with pytest.raises(BuildError) as caught:
        survey(written(tmp_path, spoil), ("sm_120",), profiles())
    assert "NonZero '' in other::f: TensorRT does not support this operator" in caught.value.why


def _truncated(path: Path) -> None:
    data = path.with_name("model.onnx.data")
    data.write_bytes(data.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (_truncated, "is too short"),
        (lambda path: path.with_name("model.onnx.data").unlink(), "is missing"),
        (lambda path: path.write_bytes(b"no protobuf at all"), "cannot be read as ONNX"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "model.onnx"),
        (lambda path: path.write_bytes(b""), "has no graph"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_a_damaged_file_is_refused(damage: Callable[[Path], None], word: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    damage(path)
    with pytest.raises(BuildError) as caught:
        survey(path, ("sm_120",), profiles())
    assert word in caught.value.what
