"""A GGUF file with blocks of many types becomes an engine that contains these blocks, by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD
from peagle.engines import Engine, SamplingParams
from peagle.graphs.drafters.torch_reference import load_target, target_pass
from peagle.graphs.fused_region_program import PROGRAM
from peagle.graphs.targets import family_for
from peagle.plugins.ops.quantized_linear.packed_weights import FORMATS, unpack
from tests import gguf_files
from tests.fixtures.commands import Run
from tests.models import head_tensors

# Every type that the kernels read, and one that is stored otherwise.
KINDS = (*(form.upper() for form in FORMATS if form != "int8"), "F16")
SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 3}
ALONE = ("--draft", "none", "--max-seq-len", 64)
_BLOCK = 32


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> gguf_files.Written:
    """A file whose embedding is not its head."""
    return gguf_files.write(tmp_path_factory.mktemp("mixed") / "mixed.gguf", "llama", kinds=KINDS, **SIZES)


@pytest.fixture(scope="module")
def engine(written: gguf_files.Written) -> Path:
    """Its engine, in the default precision but for the caches, with drafts from its own text."""
    request = BUILD.request(
        model=str(written.file), draft="ngram", num_speculative_tokens=3, max_seq_len=64, backend="onnxruntime",
        kv_cache_dtype="fp32", out=written.file.with_name("engine"),
    )  # fmt: skip
    return build(request).path


def _rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """The input of a product as the kernels round it: to int8, in blocks of 32."""
    blocks = inputs[0].reshape(*inputs[0].shape[:-1], -1, _BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    codes = torch.where(scale > 0, torch.round(blocks / scale.clamp_min(1e-38)), 0)
    return ((codes * scale).reshape(inputs[0].shape),)


def test_logits_are_those_of_transformers_with_the_numbers_of_the_file(
    written: gguf_files.Written, engine: Path
) -> None:
    """With inputs rounded alike, to six digits. Seldom does one of them lie on the border of two codes, and rounding
    of the last digit then decides: that row, and those after it in its text, are a little different."""
    texts = [np.random.default_rng(seed).integers(3, 250, 23).tolist() for seed in range(4)]
    model = load_target(written.folder, written.config)
    kinds = {name: tensor.entry.dtype for name, tensor in Target.open(written.file).checkpoint.tensors.items()}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and kinds[f"{name}.weight"] != "F16":
            module.register_forward_pre_hook(_rounded)
    spec, loaded = family_for(written.config).describe(written.config), Engine.load(engine)
    theirs = [target_pass(model, spec, ids)[0].numpy() for ids in texts]
    errors = [
        abs(loaded.target_logits(ids) - logits).max(-1) / abs(logits).max()
        for ids, logits in zip(texts, theirs, strict=True)
    ]
    assert np.median(errors) <= 1e-5
    assert np.mean(np.array(errors) <= 1e-3) >= 0.6
    assert np.max(errors) <= 5e-2


def test_drafts_change_no_token(engine: Path) -> None:
    loaded = Engine.load(engine)
    for params in (
        SamplingParams(max_tokens=24, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=1, seed=3),
    ):
        texts = [loaded.generate(["hello w"], params, num_speculative_tokens=k)[0].token_ids for k in (0, 3)]
        assert texts[0] == texts[1]


def _packed(model: onnx.ModelProto) -> dict[str, tuple[str, str, int]]:
    """The format, the scales and the rows of every packed matrix of a graph, by the name of its codes."""
    found = {}
    for node in model.graph.node:
        programs = [helper.get_attribute_value(each).decode() for each in node.attribute if each.name == PROGRAM]
        for line in "".join(programs).splitlines():
            op, *rest = line.split()
            if op in ("QuantizedLinear", "QuantizedEmbedding"):
                names = [node.input[int(at)] if int(at) < len(node.input) else "" for at in rest[0].split(",")]
                said = dict(each.split("=") for each in rest[3:])
                found[names[1]] = said["format"], names[2], int(said["rows"])
        if node.op_type in ("QuantizedLinear", "QuantizedEmbedding"):
            of_node = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            found[node.input[1]] = of_node["format"].decode(), node.input[2], of_node["rows"]
    return found


def test_every_matrix_has_the_blocks_of_the_file(written: gguf_files.Written, engine: Path) -> None:
    """Bit for bit, the embedding too; what the file stores in sixteen bits is no codes."""
    target = Target.open(written.file)
    model = onnx.load(str(engine / "target" / "model.onnx"))
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    seen = []
    for codes, (form, scales, rows) in _packed(model).items():
        names = codes.split("+")
        ours = unpack(form, arrays[codes], arrays[scales], rows)
        stored = [part for name in names for part in target.read(name, target.skeleton.shapes[name])]
        np.testing.assert_array_equal(ours, np.concatenate(stored))
        assert {target.checkpoint.tensors[name].entry.dtype for name in names} == {form.upper()}
        seen += names
    kinds = {name: tensor.entry.dtype for name, tensor in target.checkpoint.tensors.items() if len(tensor.shape) > 1}
    assert {*seen} == {name for name, kind in kinds.items() if kind != "F16"}
    assert "model.embed_tokens.weight" in seen
    assert "lm_head.weight" in seen


def test_reports_name_the_blocks(written: gguf_files.Written, engine: Path, cli: Run) -> None:
    manifest = json.loads((engine / "engine.json").read_text())
    assert {manifest["precision"][name] for name in ("recipe", "weights", "experts", "lm_head", "embedding")} == {
        "stored"
    }
    assert json.loads((engine / "resolved_config.yaml").read_text())["precision"] == "stored"
    report = json.loads((engine / "build_report.json").read_text())
    proof = report["precision"]["target"]
    assert proof["share"] == proof["stored_share"] == 1
    assert proof["losses"] == {}
    assert {row.get("blocks", "fp32") for row in proof["matmuls"]} == {
        "fp32" if kind == "F16" else kind.lower() for kind in KINDS
    }
    assert not [each for each in report["warnings"] if "block" in each or "quantized" in each]
    said = cli("inspect", engine).out
    assert "q8_0 computed in int8" in said
    assert "stored" in said


def test_a_dry_run_knows_the_bytes_of_every_type(written: gguf_files.Written, engine: Path, cli: Run) -> None:
    done = cli("build", "--model", written.file, *ALONE, "--dry-run", "--json")
    assert done.code == 0, done.err
    foreseen = json.loads(done.out)
    assert foreseen["precision"] == "stored"
    assert foreseen["work"]["rounding_seconds"] == 0
    assert foreseen["work"]["calibration"] is None
    model = onnx.load(str(engine / "target" / "model.onnx"))
    sizes = {each.name: numpy_helper.to_array(each).nbytes for each in model.graph.initializer}
    packed: dict[str, int] = {}
    for codes, (form, scales, _) in _packed(model).items():
        packed[form] = packed.get(form, 0) + sizes[codes] + sizes[scales]
    by_type: dict[str, int] = {}
    for line in foreseen["weights"]:
        by_type[line["precision"]] = by_type.get(line["precision"], 0) + line["bytes"]
    assert {kind: size for kind, size in by_type.items() if kind in packed} == packed


def test_fp32_on_request(written: gguf_files.Written, cli: Run, tmp_path: Path) -> None:
    done = cli("build", "--model", written.file, *ALONE, "--precision", "fp32", "--out", tmp_path / "wide")
    assert done.code == 0, done.err
    model = onnx.load(str(tmp_path / "wide" / "target" / "model.onnx"), load_external_data=False)
    assert not _packed(model)


def test_excluded_modules_are_dequantized(written: gguf_files.Written, cli: Run, tmp_path: Path) -> None:
    done = cli("build", "--model", written.file, *ALONE, "--exclude", "layers.0.*", "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    assert "second time" not in done.err
    names = _packed(onnx.load(str(tmp_path / "engine" / "target" / "model.onnx"), load_external_data=False))
    assert not [name for name in names if ".layers.0." in name]
    assert [name for name in names if ".layers.1." in name]


def test_a_tied_head_and_embedding_are_stored_once(cli: Run, tmp_path: Path) -> None:
    tied = gguf_files.write(tmp_path / "tied.gguf", "llama", kinds=("Q8_0", "Q4_0"), tie_word_embeddings=True, **SIZES)
    done = cli("build", "--model", tied.file, *ALONE, "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    model = onnx.load(str(tmp_path / "engine" / "target" / "model.onnx"), load_external_data=False)
    tables = [name for name in _packed(model) if "lm_head" in name or "embed" in name]
    assert len(tables) == 1


def _head(folder: Path) -> Path:
    """A random P-EAGLE head for the file, without an embedding of its own."""
    sizes, vocab = SIZES | {"num_hidden_layers": 2}, gguf_files.SIZES["vocab_size"]
    tensors = head_tensors(torch.Generator().manual_seed(3), vocab, sizes=sizes)
    del tensors["embed_tokens.weight"]
    config = sizes | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": vocab, "ptd_token_id": 1,
        "draft_vocab_size": vocab, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_speculative_tokens": 4,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_head_looks_tokens_up_in_the_blocks_of_its_target(
    written: gguf_files.Written, cli: Run, tmp_path: Path
) -> None:
    """Its own matrices are rounded to int8, and its drafts change no token."""
    named = ("--model", written.file, "--draft", _head(tmp_path / "head"), "--num-speculative-tokens", 3)
    done = cli("build", *named, "--max-seq-len", 64, "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    packed = _packed(onnx.load(str(tmp_path / "engine" / "target" / "drafter.onnx"), load_external_data=False))
    kinds = {name: tensor.entry.dtype for name, tensor in Target.open(written.file).checkpoint.tensors.items()}
    forms = {form for name, (form, _, _) in packed.items() if "embed" not in name}
    assert forms == {"int8"}
    (table,) = [form for name, (form, _, _) in packed.items() if "embed" in name]
    assert table.upper() == kinds["model.embed_tokens.weight"]
    loaded, params = Engine.load(tmp_path / "engine"), SamplingParams(max_tokens=16, ignore_eos=True)
    texts = [loaded.generate(["hello w"], params, num_speculative_tokens=k)[0].token_ids for k in (0, 3)]
    assert texts[0] == texts[1]


REFUSED: dict[str, tuple[tuple[Any, ...], int, str]] = {
    "ort": (("--lowering", "ort", "--precision", "stored"), 2, "use the lowering cpu, or use --precision fp32"),
    "rtx": (
        ("--backend", "tensorrt-rtx", "--gpu", "sm_120", "--precision", "stored"), 2,
        "use --precision fp16 or bf16, or --backend onnxruntime",
    ),
    "drafter": (("--draft-precision", "stored", "--draft", "demo"), 2, "unknown --draft-precision stored"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_backends_without_block_products_are_refused(
    case: str, written: gguf_files.Written, cli: Run, tmp_path: Path
) -> None:
    flags, code, said = REFUSED[case]
    alone = () if "--draft" in flags else ("--draft", "none")
    done = cli("build", "--model", written.file, *alone, *flags, "--out", tmp_path / "engine")
    assert (done.code, said in done.err) == (code, True), done.err


def test_a_checkpoint_without_blocks_has_nothing_stored(cli: Run, tmp_path: Path, written: gguf_files.Written) -> None:
    done = cli("build", "--model", written.folder, *ALONE, "--precision", "stored", "--out", tmp_path / "engine")
    assert done.code == 2, done.err
    assert "--precision stored needs a GGUF file with quantized weights" in done.err
    assert "use --precision int8 or int4" in done.err
    wide = gguf_files.write(tmp_path / "wide.gguf", "llama", kinds=("F16",)).file
    done = cli("build", "--model", wide, *ALONE, "--precision", "stored", "--dry-run")
    assert done.code == 2, done.err
    assert "GGUF: F16" in done.err
    done = cli("build", "--model", wide, *ALONE, "--dry-run", "--json")
    assert json.loads(done.out)["precision"] == "fp32"


def test_other_lowerings_keep_their_default(written: gguf_files.Written, cli: Run) -> None:
    for flags, precision in {("--lowering", "ort"): "fp32", ("--lowering", "cpu"): "stored"}.items():
        done = cli("build", "--model", written.file, *ALONE, *flags, "--dry-run", "--json")
        assert json.loads(done.out)["precision"] == precision
    done = cli("export", "--model", written.file, *ALONE, "--for", "cpu", "--dry-run", "--json")
    assert json.loads(done.out)["precision"] == "stored"


def test_a_text_is_the_same_alone_and_among_others_where_experts_are_in_fp32(tmp_path: Path) -> None:
    """Gate and up in different types cannot be one packed stack; FP32 experts are multiplied row by row as well."""
    kinds = ("Q4_K", "Q6_K", "Q5_0")
    file = gguf_files.write(
        tmp_path / "experts.gguf", "qwen3-moe", kinds=kinds, **SIZES, moe_intermediate_size=256
    ).file
    options = BUILD.request(
        model=str(file), draft="ngram", num_speculative_tokens=3, max_seq_len=128, out=tmp_path / "engine"
    )
    with Engine.load(build(options).path, max_batch_size=4) as loaded:
        prompts = [np.random.default_rng(seed).integers(3, 250, 9 + seed).tolist() for seed in range(4)]
        params = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=0)
        alone = [loaded.generate([each], params, num_speculative_tokens=0)[0] for each in prompts]
        for k in (0, 3):
            among = loaded.generate(prompts, params, num_speculative_tokens=k)
            assert [each.token_ids for each in among] == [each.token_ids for each in alone]
            assert [each.logprobs for each in among] == [each.logprobs for each in alone]  # to the bit
