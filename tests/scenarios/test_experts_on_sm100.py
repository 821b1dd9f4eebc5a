"""A Qwen3-Coder for SM 100: TensorRT's expert layer computes in FP8, and other computation is detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import synthetic_checkpoint as synthetic

from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.precision.product_table import BuiltProduct
from peagle.compiler.tensorrt.plan_proof import require_effect
from peagle.plugins.errors import BuildError
from peagle.plugins.tensorrt.import_tensorrt import child_environment
from tests.fixtures.commands import Outcome, Run
from tests.models import Pair
from tests.tools.test_synthetic_checkpoint import HEADS, SMALL

SHORT = "20.0% of the weights that"
SAID = (
    "20.0% of the weights that int8 quantizes are computed in INT8: routed experts (80.0% of them) are stored in INT8"
)
SIZES = HEADS | SMALL["qwen3-coder-30b"]
LAYERS = 7
E4M3 = "float8e4m3fn"


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven layers of eight experts, named as published; the folder of a pair."""
    spec = synthetic.Spec(
        "qwen3-coder-30b", tmp_path_factory.mktemp("coder") / "pair", layers=LAYERS, experts=8, hidden=64, vocab=300,
        sizes=tuple(SIZES.items()), head="flat",
    )  # fmt: skip
    synthetic.write(spec)
    (spec.out / "texts.jsonl").write_text((json.dumps({"text": "while b: a, b = b, a % b; " * 12}) + "\n") * 4)
    return spec.out


def pair(coder: Path, out: Path, precision: str = "fp8") -> list[object]:
    return [
        coder / "target", "--draft", coder / "head", "--precision", precision, "--calib-data", coder / "texts.jsonl",
        "--max-seq-len", 64, "--out", out,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def exported(coder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The export for SM 100 in FP8, and what its report says of the target's precision."""
    from peagle.compiler.pipeline.export import export
    from peagle.compiler.request.verb_options import EXPORT

    out = tmp_path_factory.mktemp("exported") / "out"
    request = EXPORT.request(
        model=str(coder / "target"), draft=str(coder / "head"), **{"for": "tensorrt-sm100"}, precision="fp8",
        calib_data=str(coder / "texts.jsonl"), max_seq_len=64, out=str(out),
    )  # fmt: skip
    return out, export(request).report["precision"]["target"]


def test_all_experts_are_multiplied_in_fp8(exported: tuple[Path, dict[str, Any]]) -> None:
    _, record = exported
    assert record["share"] >= 0.95
    assert record["shortfall"] == ""
    experts = [row for row in record["matmuls"] if row["role"] == "experts"]
    assert len(experts) == 3 * LAYERS
    assert {(row["op"], row["stored"], row["computed"]) for row in experts} == {("TRT_MoE", E4M3, E4M3)}


# The layer cannot be built for any GPU of TensorRT-RTX. Parsed it can be, which checks types and shapes.
_PARSE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from peagle.compiler.tensorrt.callbacks import Log, logger
from peagle.compiler.tensorrt.parse_network import parse
from peagle.compiler.tensorrt.plan_products import of_network
from peagle.compiler.tensorrt.preflight import survey
from peagle.plugins.tensorrt.import_tensorrt import load
from peagle.plugins.tensorrt.register import register

trt = load("tensorrt-rtx")
register(trt)
log = Log()
to = logger(trt, log)
answers = []
for path in sys.argv[1:]:
    parsed = parse(trt, trt.Builder(to), to, log, survey(Path(path), ("sm_100",), ()))
    network = parsed.network
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    makers = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
    products = of_network(trt, network)
    moe = []
    for layer in layers:
        if layer.type.name == "MOE":
            chain = []
            for place in (3, 4, 5):
                back = makers[layer.get_input(place).name]
                codes = back.get_input(0)
                chain.append([back.type.name, codes.dtype.name, makers[codes.name].type.name])
            moe.append({"quantized": layer.quantization_to_type.name, "weights": chain})
    answers.append({"moe": moe, "products": [asdict(product) for product in products]})
print(json.dumps(answers))
"""


def _experts(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "TRT_MoE"]


def _unquantized(model: onnx.ModelProto) -> None:
    """The layer is not told to round what enters its second product."""
    for node in _experts(model):
        kept = [each for each in node.attribute if not each.name.startswith("quantization")]
        del node.attribute[:], node.input[6:]
        node.attribute.extend(kept)


def _turned(model: onnx.ModelProto) -> None:
    """Weights are turned, twice, between DequantizeLinear and the layer."""
    for at, node in enumerate(_experts(model)):
        for place in (3, 4, 5):
            for name in (f"there.{at}.{place}", f"back.{at}.{place}"):
                turn = onnx.helper.make_node("Transpose", [node.input[place]], [name], perm=[0, 2, 1])
                model.graph.node.insert(list(model.graph.node).index(node), turn)
                node.input[place] = name


def _wide_input(model: onnx.ModelProto) -> None:
    """What enters the layer is not rounded."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in _experts(model):
        codes = makers[makers[node.input[0]].input[0]]
        node.input[0] = codes.input[0]


FORCED: dict[str, Callable[[onnx.ModelProto], None]] = {
    "second product": _unquantized, "weights": _turned, "input": _wide_input,
}  # fmt: skip


def test_tensorrt_parses_codes_into_the_layer_and_dequantized_experts_fail(
    exported: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    folder, record = exported
    paths = [folder / "target" / "model.onnx"]
    for name, force in FORCED.items():
        model = onnx.load(paths[0], load_external_data=False)
        force(model)
        paths.append(paths[0].with_name(f"{name}.onnx"))
        onnx.save(model, paths[-1])
    whole, *forced = parsed(paths, tmp_path)
    assert whole["moe"] == [{"quantized": "FP8", "weights": [["DEQUANTIZE", "FP8", "CONSTANT"]] * 3}] * LAYERS
    products = [BuiltProduct(**product) for product in whole["products"]]
    named = {row["weight"]: row["numbers"] for row in record["matmuls"] if row["narrow"]}
    in_fp8 = sum(named.get(p.weight, 0) for p in products if (p.stored, p.computed) == (E4M3, E4M3))
    assert in_fp8 >= 0.95 * record["numbers"]
    assert require_effect("target", record, products) == []
    for answer in forced:
        with pytest.raises(BuildError, match=r"\d% of the weights that --precision fp8 quantizes are FP8") as caught:
            require_effect("target", record, [BuiltProduct(**product) for product in answer["products"]])
        assert "experts" in caught.value.why
        assert "computes in bfloat16" in caught.value.why


def test_experts_that_share_a_scale_are_multiplied_in_fp8_too(coder: Path, cli: Run, tmp_path: Path) -> None:
    """The way out if TensorRT does not accept a scale for each expert."""
    pytest.importorskip("tensorrt_rtx")
    out = tmp_path / "out"
    done = cli("export", *pair(coder, out), "--for", "tensorrt-sm100", "--experts", "layer-one-scale", "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)["precision"]["target"]
    path = out / "target" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    makers = {name: node for node in model.graph.node for name in node.output}
    scales = {makers[node.input[place]].input[1] for node in _experts(model) for place in (3, 4, 5)}
    shapes = {tuple(each.dims) for each in model.graph.initializer if each.name in scales}
    assert (len(scales), shapes) == (2 * LAYERS, {()})
    (whole,) = parsed([path], tmp_path)
    assert whole["moe"] == [{"quantized": "FP8", "weights": [["DEQUANTIZE", "FP8", "CONSTANT"]] * 3}] * LAYERS
    assert require_effect("target", record, [BuiltProduct(**product) for product in whole["products"]]) == []


def parsed(paths: list[Path], library: Path) -> list[dict[str, Any]]:
    """What TensorRT's parser makes of graphs."""
    process = subprocess.run(
        [sys.executable, "-c", _PARSE, *map(str, paths)],
        env=os.environ | child_environment(library / "library"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    answers: list[dict[str, Any]] = json.loads(process.stdout.splitlines()[-1])
    return answers


def _wide_linears(model: onnx.ModelProto) -> None:
    """What enters linears, and dense experts, is not rounded."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        back = makers.get(node.input[0]) if node.op_type == "MatMul" else None
        if back is not None and back.op_type in ("DequantizeLinear", "TRT_MXFP8DequantizeLinear"):
            node.input[0] = makers[back.input[0]].input[0]


@pytest.mark.parametrize(
    ("precision", "flags", "kind", "of_experts"),
    [
        ("int8", ("--experts", "dense"), "int8", "int8"),
        pytest.param("mxfp8", ("--allow-wide", "experts"), E4M3, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_int8_and_mxfp8_are_proved_by_both_factors_of_the_parsed_network_too(
    precision: str, flags: tuple[str, ...], kind: str, of_experts: str, coder: Path, cli: Run, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    arguments = pair(coder, tmp_path / "out", precision)
    if precision == "mxfp8":  # its scales are found at run time
        at = arguments.index("--calib-data")
        del arguments[at : at + 2]
    done = cli("export", *arguments, "--for", "tensorrt-sm100", *flags, "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)["precision"]["target"]
    path = tmp_path / "out" / "target" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    _wide_linears(model)
    onnx.save(model, path.with_name("wide.onnx"))
    whole, forced = parsed([path, path.with_name("wide.onnx")], tmp_path)
    roles = {row["weight"]: row["role"] for row in record["matmuls"] if row["narrow"]}
    products = [BuiltProduct(**product) for product in whole["products"]]
    found = {(roles[p.weight], p.stored, p.computed) for p in products if p.weight in roles}
    assert found == {("attention", kind, kind), ("experts", kind, of_experts)}
    assert require_effect("target", record, products) == []
    with pytest.raises(BuildError, match=r"\d% of the weights") as caught:
        require_effect("target", record, [BuiltProduct(**product) for product in forced["products"]])
    assert "computes in bfloat16" in caught.value.why


@pytest.mark.slow
def test_dense_experts_on_request_still_use_fp8(coder: Path, cli: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli("export", *pair(coder, out), "--for", "tensorrt-sm100", "--experts", "dense", "--json")
    assert done.code == 0, done.err
    record = json.loads(done.out)["precision"]["target"]
    assert record["share"] == 1
    assert not _experts(onnx.load(out / "target" / "model.onnx", load_external_data=False))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--for", "tensorrt", "--experts", "layer"), "only TensorRT 11 and newer"),
     (("--for", "ort", "--experts", "dense"), "does not work with ONNX Runtime"),
     (("--for", "tensorrt-sm100", "--experts", "sparse"), "the valid values are layer, layer-one-scale, dense")],
)  # fmt: skip
def test_unknown_expert_form_is_rejected(
    arguments: tuple[str, ...], told: str, coder: Path, cli: Run, tmp_path: Path
) -> None:
    done = cli("export", *pair(coder, tmp_path / "out"), *arguments)
    assert done.code == 2
    assert told in done.err


@pytest.mark.slow
def test_incompatible_experts_become_dense_with_a_note(
    pair_of: Callable[[str], Pair], cli: Run, tmp_path: Path
) -> None:
    gpt_oss = pair_of("gpt-oss")
    arguments = (
        "export",
        gpt_oss.target,
        "--draft",
        gpt_oss.head,
        "--for",
        "tensorrt-sm100",
        "--max-seq-len",
        64,
        "--json",
    )
    done = cli(*arguments, "--out", tmp_path / "dense")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert any("routed experts are dense" in warning for warning in report["warnings"])
    assert "--experts layer" in done.err
    assert not _experts(onnx.load(tmp_path / "dense" / "target" / "model.onnx", load_external_data=False))
    assert json.loads((tmp_path / "dense" / "export.json").read_text())["for"] == "tensorrt"
    done = cli(*arguments, "--out", tmp_path / "layer", "--experts", "layer")
    assert done.code == 0, done.err
    assert not any("dense" in warning for warning in json.loads(done.out)["warnings"])
    assert _experts(onnx.load(tmp_path / "layer" / "target" / "model.onnx", load_external_data=False))


def check_refused(done: Outcome, out: Path) -> None:
    assert done.code == 5
    assert f"{SHORT} --precision int8 quantizes would be computed in INT8" in done.err
    assert "routed experts (80.0% of them)" in done.err
    assert "model.layers.0.mlp.experts.gate_up_proj" in done.err
    assert "--experts dense" in done.err
    assert "--allow-wide experts" in done.err
    assert not out.exists()


def test_int8_export_is_rejected_with_the_true_share_unless_permitted(
    coder: Path, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["export", *pair(coder, out, "int8"), "--for", "tensorrt-sm100"]
    with monkeypatch.context() as patched:
        patched.setattr(
            "peagle.compiler.pipeline.shared_steps.calibrated", lambda *_, **__: pytest.fail("it calibrated first")
        )
        check_refused(cli(*arguments), out)
    done = cli(*arguments, "--allow-wide", "experts")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split(maxsplit=1) == [
        "multiplied",
        f"{SAID} but computed in bf16, as --allow-wide experts permits",
    ]
    assert next(line for line in done.err.splitlines() if line.startswith("warning")).startswith(f"warning: {SAID}")
    for name in ("export.json", "export_report.json"):
        first, text = next(iter(json.loads((out / name).read_text()).items()))
        assert first == "multiplied"
        assert text.startswith(SAID)
    record = json.loads((out / "export_report.json").read_text())["precision"]["target"]
    assert record["share"] == pytest.approx(0.2, abs=5e-4)
    kinds = {row["role"]: (row["stored"], row["computed"]) for row in record["matmuls"] if row["narrow"]}
    assert kinds == {"attention": ("int8", "int8"), "experts": ("int8", "bfloat16")}


def test_a_build_on_a_b200_is_refused_too(
    coder: Path, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine((LocalGpu("NVIDIA B200", 100),), {"tensorrt": "11.4.0"})
    monkeypatch.setattr("peagle.compiler.request.build_platform.inspect_machine", lambda: machine)
    check_refused(cli("build", *pair(coder, tmp_path / "out", "int8")), tmp_path / "out")


def test_unknown_permission_group_is_rejected(coder: Path, cli: Run, tmp_path: Path) -> None:
    done = cli("export", *pair(coder, tmp_path / "out"), "--allow-wide", "attention")
    assert done.code == 2
    assert "the supported weights are experts" in done.err
