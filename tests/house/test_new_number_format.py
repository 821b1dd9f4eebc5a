"""A new number format requires one record: one defined here works from ``--precision`` to an engine's text.

Six-bit integers in blocks of 32, each with a scale; ONNX Runtime has no arithmetic for them, so they are emulated: kept
as codes in a byte each, dequantized, and multiplied in float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file

from peagle.compiler.verbs.flags.completion import recipe_names
from peagle.compiler.verify.precision_limits import limits_of
from peagle.engines import Engine, SamplingParams
from peagle.plugins.number_formats import NUMBER_FORMATS, NumberFormat, OnnxRuntimeSupport, PrecisionLimits, Scheme
from tests.fixtures.commands import Run
from tests.models import Pair

BLOCK, LARGEST = 32, 31
INT6 = NumberFormat(
    "int6",
    "int8",
    8.5,
    "6-bit integers in blocks of 32",
    PrecisionLimits(0.04, 0.1, 0.04),
    onnxruntime=OnnxRuntimeSupport(Scheme("int8", block=BLOCK, largest=LARGEST), of_drafters=True),
    rounding_seconds=2e-9,
)
WEIGHT = "model.layers.0.self_attn.o_proj.weight"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that a file in ``plugins/number_formats`` would need."""
    monkeypatch.setitem(NUMBER_FORMATS, INT6.name, INT6)


def build(cli: Run, pair: Pair, folder: Path, *flags: str) -> Path:
    done = cli(
        "build", "--model", pair.target, "--draft", pair.head, "--backend", "onnxruntime", "--precision", "int6",
        "--num-speculative-tokens", 2, "--max-seq-len", 64, *flags, "--out", folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "int6 is emulated: 0% of the weights are computed in INT6" in done.out + done.err
    return folder


def rounded_by_hand(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes of six bits, and scales, for a matrix: each block to the nearest of 63 numbers that are as far apart."""
    blocks = weight.astype(np.float32).reshape(len(weight), -1, BLOCK)
    scales = (abs(blocks).max(-1, keepdims=True) / np.float32(LARGEST)).astype(np.float32)
    return np.rint(blocks / scales), scales


@pytest.mark.usefixtures("registered")
def test_a_format_is_built_reported_and_run(tiny_pair: Pair, tmp_path: Path, cli: Run) -> None:
    engine = build(cli, tiny_pair, tmp_path / "engine", "--draft-precision", "int6")
    manifest = json.loads((engine / "engine.json").read_text())
    assert {manifest["precision"][name] for name in ("recipe", "weights", "experts", "drafter")} == {"int6"}

    report = json.loads((engine / "build_report.json").read_text())
    assert set(report["precision"]) == {"target", "drafter"}
    for half in report["precision"].values():
        assert half["stored_share"] == half["accepted_share"] == 1
        assert half["share"] == 0, "nothing is multiplied in it"
    assert 0 < max(report["precision"]["target"]["losses"].values()) < 0.03

    said = cli("inspect", engine).out
    assert "int6 is emulated" in said
    assert limits_of("int6", "fp32") == INT6.limits, "what verify holds its measures against"

    text = Engine.load(engine).generate(["def f("], SamplingParams(max_tokens=8, ignore_eos=True))[0]
    assert len(text.token_ids) == 8


@pytest.mark.usefixtures("registered")
def test_the_graph_holds_the_codes_and_scales_that_the_record_says(tiny_pair: Pair, tmp_path: Path, cli: Run) -> None:
    engine = build(cli, tiny_pair, tmp_path / "engine")
    graph = onnx.load(engine / "target" / "model.onnx").graph
    stored = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    codes, scales = rounded_by_hand(load_file(tiny_pair.target / "model.safetensors")[WEIGHT])
    np.testing.assert_array_equal(stored[WEIGHT].reshape(codes.shape), codes)
    np.testing.assert_array_equal(stored[f"{WEIGHT}_scale"].reshape(scales.shape), scales)


@pytest.mark.usefixtures("registered")
def test_every_face_of_the_command_line_knows_it(tiny_pair: Pair, cli: Run) -> None:
    assert "int6" in recipe_names()
    dry = cli("build", "--model", tiny_pair.target, "--draft", "none", "--precision", "int6", "--dry-run")
    assert dry.code == 0, dry.err
    assert "int6" in dry.out
    refused = cli("build", "--model", tiny_pair.target, "--draft", "none", "--backend", "tensorrt-rtx", "--gpu",
                  "sm_120", "--precision", "int6")  # fmt: skip
    assert refused.code == 2
    assert "TensorRT neither computes in INT6 nor emulates it" in refused.err


def test_without_its_record_it_does_not_exist(tiny_pair: Pair, cli: Run) -> None:
    done = cli("build", "--model", tiny_pair.target, "--draft", "none", "--precision", "int6")
    assert done.code == 2
    assert "unknown precision 'int6'" in done.err
