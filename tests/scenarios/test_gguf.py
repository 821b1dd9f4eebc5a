"""From a GGUF file to an engine: its values, its text, and the reported storage types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.engines import Engine, SamplingParams
from peagle.graphs.drafters.torch_reference import load_target, target_pass
from peagle.graphs.fused_region_program import PROGRAM
from peagle.graphs.targets import family_for
from peagle.plugins.ops.quantized_linear.packed_weights import unpack
from tests import gguf_files
from tests.fixtures.commands import Run


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two layers, to be read only."""
    return gguf_files.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "llama", kinds=("Q8_0",)).file


ALONE = ("--draft", "none", "--max-seq-len", 64)


# Every tensor of the others is compared in tests/compiler/checkpoints/gguf.
@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[pytest.mark.slow] * (each != "llama")) for each in gguf_files.FAMILIES]
)
def test_engine_logits_match_transformers(family: str, cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", family, kinds=("Q8_0", "Q4_1", "F16"))
    ids = np.random.default_rng(0).integers(3, 250, 23).tolist()
    model = load_target(written.folder, written.config)
    logits, _ = target_pass(model, family_for(written.config).describe(written.config), ids)
    texts = set()
    for draft, k in {"none": (), "ngram": ("--num-speculative-tokens", 2)}.items():
        named = ("--model", written.file, "--draft", draft, *k, "--max-seq-len", 64, "--precision", "fp32")
        done = cli("build", *named, "--out", tmp_path / draft)
        assert done.code == 0, done.err
        engine = Engine.load(tmp_path / draft)
        np.testing.assert_allclose(engine.target_logits(ids), logits.numpy(), atol=1e-4)
        (output,) = engine.generate(["hello w"], SamplingParams(max_tokens=24, ignore_eos=True))
        texts.add(output.token_ids)
    assert [len(tokens) for tokens in texts] == [24]
    assert engine.tokenizer.encode("hello w<|user|>") == [261, 262, 1]
    _check_what_is_said(cli, done.out, tmp_path / "ngram", written.file)
    if family == "llama":
        _check_verification(cli, tmp_path / "ngram")


def _check_verification(cli: Run, engine: Path) -> None:
    done = cli("verify", engine, "--prompts", 2, "--max-tokens", 8)
    assert done.code == 0, done.err
    (parity,) = [line for line in done.out.splitlines() if line.startswith("target logits")]
    assert "passed" in parity


def _check_what_is_said(cli: Run, said: str, engine: Path, file: Path) -> None:
    manifest = json.loads((engine / "engine.json").read_text())
    stored = manifest["precision"]["stored"]
    assert stored.startswith("GGUF: ")
    assert all(kind in stored for kind in ("Q8_0", "Q4_1", "F16", "F32"))
    assert manifest["target"]["origin"]["source"] == str(file)
    assert stored in said
    assert f"peagle-compile chat {engine}" in said
    assert json.loads((engine / "build_report.json").read_text())["stored"] == stored
    assert stored in cli("inspect", engine).out
    assert (engine / "chat_template.jinja").read_text() == gguf_files.TEMPLATE
    assert manifest["eos_token_ids"] == [0]


def test_second_rounding_is_reported(cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q4_1",))
    shutil.rmtree(written.folder)
    done = cli("build", "--model", written.file, *ALONE, "--precision", "int4", "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    assert "tiny.gguf has weights that are already quantized to Q4_1: int4 quantizes them a second time" in done.err
    assert "second time" in (tmp_path / "engine" / "build_report.json").read_text()
    planned = cli("build", "--model", written.file, *ALONE, "--precision", "int4", "--dry-run")
    assert "int4 quantizes them a second time" in planned.out
    assert str(written.file) in planned.out


def _quantized_products(model: onnx.ModelProto) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The names of codes and scales, and the attributes, of every QuantizedLinear that is a step of a fused region."""
    for node in model.graph.node:
        programs = [helper.get_attribute_value(each).decode() for each in node.attribute if each.name == PROGRAM]
        for line in "".join(programs).splitlines():
            op, *rest = line.split()
            if op == "QuantizedLinear":
                _, codes, scales = (
                    node.input[int(at)] if int(at) < len(node.input) else "" for at in rest[0].split(",")
                )
                yield codes, scales, dict(each.split("=") for each in rest[3:])


def test_blocks_for_cpu_kernels_are_used_bit_for_bit(cli: Run, tmp_path: Path) -> None:
    """Rows of queries and keys in the model's order, a head that is the embedding too, and not a word of rounding."""
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q4_1",))
    asked = ("--precision", "int4", "--lm-head-precision", "int4", "--lowering", "cpu")
    done = cli("build", "--model", written.file, *ALONE, *asked, "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "engine" / "build_report.json").read_text())
    count = sum(len(each["weight"].split("+")) for each in report["precision"]["target"]["matmuls"])
    assert f"{count} of the weights use the file's own Q4_1 blocks" in report["warnings"]
    assert "second time" not in done.err
    target = Target.open(written.file)
    model = onnx.load(str(tmp_path / "engine" / "target" / "model.onnx"))
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    products = list(_quantized_products(model))
    for codes, scales, attributes in products:
        assert attributes["format"] == "q4_1"
        ours = unpack("q4_1", arrays[codes], arrays[scales], int(attributes["rows"]))
        shapes = [(name, target.skeleton.shapes[name]) for name in codes.removesuffix(".codes").split("+")]
        stored = [rows for name, shape in shapes for rows in target.read(name, shape)]
        np.testing.assert_array_equal(ours, np.concatenate(stored))
    assert len(products) == 2 * 4 + 1
    planned = cli("build", "--model", written.file, *ALONE, *asked, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert "second time" not in planned.out
    foreseen = json.loads(planned.out)
    packed = {name for codes, scales, _ in products for name in (codes, scales)}
    narrow = sum(each["bytes"] for each in foreseen["weights"] if each["precision"] in ("int4", "fp16"))
    assert narrow == pytest.approx(sum(arrays[name].nbytes for name in packed), rel=5e-3), "but for whole tiles"
    assert foreseen["work"]["rounding_seconds"] == 0


def test_larger_blocks_are_rounded_with_a_note(cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q8_0", "Q4_0"))
    asked = ("--precision", "int4", "--lowering", "cpu", "--dry-run")
    planned = cli("build", "--model", written.file, *ALONE, *asked)
    assert planned.code == 0, planned.err
    assert "are already quantized to Q8_0: int4 quantizes them a second time" in " ".join(planned.out.split())


def test_export_reports_the_stored_types(cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q4_1",))
    done = cli("export", "--model", written.file, *ALONE, "--out", tmp_path / "graphs")
    assert done.code == 0, done.err
    for out in (done.out, cli("inspect", tmp_path / "graphs").out):
        assert "GGUF: Q4_1" in out


def test_renamed_file_is_the_same_and_changed_file_is_not(tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama")
    before = Checkpoint.open(written.file).fingerprint
    other = written.file.rename(tmp_path / "other")
    assert Checkpoint.open(other).fingerprint == before
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)
    assert Checkpoint.open(other).fingerprint != before


def test_folder_with_only_a_gguf_file_suggests_it(cli: Run, tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    shutil.copy(tiny_file, tmp_path)
    done = cli("build", "--model", tmp_path, *ALONE, "--out", tmp_path / "out")
    assert (done.code, f"`--model {tmp_path / tiny_file.name}`" in done.err) == (5, True), done.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("build", "--model", "{file}", "--revision", "main"), 2, "does not apply to"),
        (("build", "demo", "--draft", "{file}"), 2, "a drafter must be a folder"),
        (("build", "--model", "{text}"), 2, "GGUF is the only supported single-file format"),
        (("build", "--model", "{gone}"), 2, "unknown --model"),
        (("quantize", "--model", "{file}"), 5, "is a GGUF file"),
    ],
)
def test_unsupported_file_use_is_reported(
    arguments: tuple[str, ...], code: int, said: str, cli: Run, tiny_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no model")
    places = {"file": tiny_file, "text": tmp_path / "text", "gone": tmp_path / "gone.gguf"}
    done = cli(*(each.format(**places) for each in arguments), "--out", tmp_path / "out")
    assert (done.code, said in done.err) == (code, True), done.err
    assert not (tmp_path / "out").exists()


def test_doctor_knows_a_file(cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", num_hidden_layers=7)  # so many that a head could tap
    done = cli("doctor", "--model", written.file, "--precision", "fp32")
    assert done.code == 0, done.err
    assert str(written.file) in done.out
