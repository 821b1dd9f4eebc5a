"""Synthetic checkpoints are named, shaped and loaded like the published ones, at a small scale."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import synthetic_checkpoint as synthetic
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from synthetic_weights import RING, EncodedTensor, Encoder, Noise, RandomTensor, write_file, write_shards

from peagle.compiler.checkpoints.safetensors import read_header
from peagle.compiler.request.verb_options import EXPORT
from peagle.compiler.resources.dry_run import decide_export
from peagle.graphs.drafters import read_drafter
from peagle.graphs.targets import family
from peagle.plugins.errors import UsageError

SMALL = {
    "qwen3-coder-30b": {"intermediate_size": 96, "moe_intermediate_size": 32},
    "gpt-oss-20b": {"intermediate_size": 96},
    "gemma-4-31b": {"intermediate_size": 96, "global_head_dim": 32, "num_global_key_value_heads": 1},
    "gemma-4-26b-a4b": {
        "intermediate_size": 96, "moe_intermediate_size": 32, "global_head_dim": 32, "num_global_key_value_heads": 1,
    },
}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def small(model: str, out: Path, **changes: Any) -> synthetic.Spec:
    """Seven layers, four experts, a width of 64."""
    experts = None if model == "gemma-4-31b" else 4
    sizes = tuple((HEADS | SMALL[model]).items())
    spec = synthetic.Spec(model, out, layers=7, experts=experts, hidden=64, vocab=300, sizes=sizes, shard_size=200_000)
    return replace(spec, **changes)


def written(folder: Path, model: str, format: str = "bf16") -> Path:
    return _written(folder, model, format)


@cache
def _written(folder: Path, model: str, format: str) -> Path:
    return synthetic.write(small(model, folder / model / format, format=format, head="flat"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


def tensors(target: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(target.glob("*.safetensors")) for name, t in load_file(file).items()}


def shapes(target: Path) -> dict[str, tuple[int, ...]]:
    return {name: e.shape for file in target.glob("*.safetensors") for name, e in read_header(file).items()}


def load(target: Path, **options: Any) -> Any:
    import transformers

    config = json.loads((target / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    return cls.from_pretrained(target, output_loading_info=True, **options)


# ------------------------------------------------------------------------------------------------- names and shapes


@pytest.mark.parametrize("model", SMALL)
def test_transformers_finds_every_key_it_wants_and_no_other(folder: Path, model: str) -> None:
    loaded, info = load(written(folder, model) / "target")
    assert {kind: list(found) for kind, found in info.items() if found} == {}
    with torch.no_grad():
        logits = loaded(torch.arange(20)[None]).logits
    assert torch.isfinite(logits).all()
    assert 0.1 < logits.float().std() < 10
    assert len(logits.argmax(-1).unique()) > 3  # the text depends on the tokens


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (
            "qwen3-coder-30b",
            {
                "model.layers.6.mlp.experts.3.gate_proj.weight": (32, 64),
                "model.layers.6.mlp.experts.3.down_proj.weight": (64, 32),
                "model.layers.0.mlp.gate.weight": (4, 64),
                "model.layers.0.self_attn.q_norm.weight": (16,),
                "lm_head.weight": (300, 64),
            },
        ),
        (
            "gpt-oss-20b",
            {
                "model.layers.6.mlp.experts.gate_up_proj": (4, 64, 192),
                "model.layers.6.mlp.experts.gate_up_proj_bias": (4, 192),
                "model.layers.0.mlp.experts.down_proj": (4, 96, 64),
                "model.layers.0.mlp.router.bias": (4,),
                "model.layers.0.self_attn.sinks": (4,),
            },
        ),
        (
            "gemma-4-31b",
            {
                "model.language_model.layers.0.self_attn.v_proj.weight": (32, 64),
                "model.language_model.layers.5.self_attn.k_proj.weight": (32, 64),
                "model.language_model.layers.5.self_attn.q_proj.weight": (128, 64),
                "model.language_model.layers.6.layer_scalar": (1,),
                "model.language_model.embed_tokens.weight": (300, 64),
                "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight": (128, 64),
            },
        ),
        (
            "gemma-4-26b-a4b",
            {
                "model.language_model.layers.6.experts.gate_up_proj": (4, 64, 64),
                "model.language_model.layers.6.experts.down_proj": (4, 64, 32),
                "model.language_model.layers.0.router.proj.weight": (4, 64),
                "model.language_model.layers.0.router.scale": (64,),
                "model.language_model.layers.0.router.per_expert_scale": (4,),
                "model.language_model.layers.0.mlp.gate_proj.weight": (96, 64),
            },
        ),
    ],
)
def test_keys_match_the_published_checkpoint(folder: Path, model: str, published: dict[str, tuple[int, ...]]) -> None:
    found = shapes(written(folder, model) / "target")
    assert {name: found.get(name) for name in published} == published


def test_gemma_stores_neither_its_tied_head_nor_values_that_are_keys(folder: Path) -> None:
    found = shapes(written(folder, "gemma-4-31b") / "target")
    assert "lm_head.weight" not in found
    assert not [name for name in found if re.search(r"language_model\.layers\.(5|6)\.self_attn\.v_proj", name)]


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("qwen3-coder-30b", 30.5),
        ("gpt-oss-20b", 20.9),
        ("gpt-oss-120b", 116.8),
        ("gemma-4-31b", 30.7),
        ("gemma-4-26b-a4b", 25.2),
    ],
)
def test_at_full_scale_it_has_the_parameters_of_the_model(tmp_path: Path, model: str, billions: float) -> None:
    found = synthetic.saved_shapes(synthetic.scaled_config(synthetic.Spec(model, tmp_path)))
    assert sum(math.prod(shape) for shape in found.values()) / 1e9 == pytest.approx(billions, abs=0.06)


# ----------------------------------------------------------------------------------------------------- files on disk


@pytest.mark.parametrize("model", SMALL)
def test_index_matches_the_shards(folder: Path, model: str) -> None:
    target = written(folder, model) / "target"
    files = sorted(target.glob("*.safetensors"))
    headers = {file.name: read_header(file) for file in files}
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert len(files) > 1
    assert [file.name for file in files] == [
        f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))
    ]
    assert index["weight_map"] == {name: file for file, header in headers.items() for name in header}
    sizes = {file: [e.end - e.begin for e in header.values()] for file, header in headers.items()}
    assert index["metadata"]["total_size"] == sum(map(sum, sizes.values()))
    assert all(sum(each) <= 200_000 or len(each) == 1 for each in sizes.values())


def test_seed_determines_the_output(folder: Path, tmp_path: Path) -> None:
    model = "qwen3-coder-30b"
    first = written(folder, model)
    again = synthetic.write(small(model, tmp_path / "again", head="flat"))
    for file in first.rglob("*.*"):
        assert (again / file.relative_to(first)).read_bytes() == file.read_bytes()
    other = tensors(synthetic.write(small(model, tmp_path / "other", seed=1)) / "target")
    assert not [name for name, tensor in tensors(first / "target").items() if torch.equal(tensor, other[name])]


def test_no_two_tensors_are_alike(folder: Path) -> None:
    pair = written(folder, "qwen3-coder-30b")
    values = [
        t.view(torch.int16).numpy().tobytes() for part in ("target", "head") for t in tensors(pair / part).values()
    ]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("model", SMALL)
def test_every_id_can_be_decoded(folder: Path, model: str) -> None:
    from tokenizers import Tokenizer

    target = written(folder, model) / "target"
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    end = json.loads((target / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.decode(tokenizer.encode("naïve λ\n").ids) == "naïve λ\n"
    assert tokenizer.decode([end, 299]) == ""
    assert all(tokenizer.id_to_token(i) for i in range(300))


# ------------------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("format", ["fp8-blocks", "modelopt-fp8", "compressed-tensors-fp8"])
@pytest.mark.parametrize("model", ["qwen3-coder-30b", "gemma-4-31b"])
def test_fp8_formats_store_the_linears_of_the_decoder_and_leave_the_rest(folder: Path, model: str, format: str) -> None:
    wide, narrow = (written(folder, model, f) / "target" for f in ("bf16", format))
    before, after = tensors(wide), tensors(narrow)
    stored = {name for name, tensor in after.items() if tensor.dtype == torch.float8_e4m3fn}
    linear = re.compile(r"model\.(language_model\.)?layers\..*\.([qkvo]|gate|up|down)_proj\.weight")
    assert stored == {name for name in before if linear.fullmatch(name)}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name not in stored)
    assert all(after[name].shape == before[name].shape for name in stored)
    scaled = {name.rpartition(".")[0] for name in after.keys() - before.keys()}
    assert scaled == {name.removesuffix(".weight") for name in stored}
    assert json.loads((narrow / "config.json").read_text())["quantization_config"]


def test_mxfp4_stores_the_experts_of_gpt_oss_in_blocks(folder: Path) -> None:
    found = shapes(written(folder, "gpt-oss-20b", "mxfp4") / "target")
    stem = "model.layers.6.mlp.experts."
    assert found[stem + "gate_up_proj_blocks"] == (4, 192, 2, 16)
    assert found[stem + "gate_up_proj_scales"] == (4, 192, 2)
    assert found[stem + "down_proj_blocks"] == (4, 64, 3, 16)
    assert found[stem + "down_proj_bias"] == (4, 64)
    assert stem + "gate_up_proj" not in found


def test_mxfp4_matches_the_bf16_checkpoint(folder: Path) -> None:
    from transformers import Mxfp4Config

    wide, narrow = (written(folder, "gpt-oss-20b", format) / "target" for format in ("bf16", "mxfp4"))
    loaded, info = load(narrow, quantization_config=Mxfp4Config(dequantize=True))
    assert not info["missing_keys"] | info["unexpected_keys"]
    before, after = tensors(wide), loaded.state_dict()
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        error = (after[name].float() - tensor.float()).norm() / tensor.float().norm()
        assert error < (0.2 if ".experts." in name else 1e-6), name


# --------------------------------------------------------------------------------------------------------------- head


@pytest.mark.parametrize("model", SMALL)
def test_flat_head_fits_its_target(folder: Path, model: str) -> None:
    pair = written(folder, model)
    config = synthetic.text_config(json.loads((pair / "target" / "config.json").read_text()))
    target = family.TargetSpec(
        family="", architecture="", hidden_size=config["hidden_size"], num_layers=config["num_hidden_layers"],
        vocab_size=config["vocab_size"], max_position_embeddings=config["max_position_embeddings"],
        caches=(family.CacheSpec(2, 16),) * 7, windows=(0,) * 7, taps=family.default_taps(7),
    )  # fmt: skip
    head = read_drafter(json.loads((pair / "head" / "config.json").read_text()), shapes(pair / "head"), target)
    assert (head.num_layers, head.taps, head.trained_depth, head.mask_token_id) == (4, (2, 3, 4), 8, 299)


def test_both_layouts_contain_the_same_head(folder: Path, tmp_path: Path) -> None:
    flat = written(folder, "gpt-oss-20b") / "head"
    other = synthetic.write(small("gpt-oss-20b", tmp_path / "pair", head="speculators")) / "head"
    ours, theirs = tensors(flat), tensors(other)
    assert {name.replace("midlayer.", "layers.0.") for name in ours} == theirs.keys()
    assert all(torch.equal(t, theirs[name.replace("midlayer.", "layers.0.")]) for name, t in ours.items())
    flat_config, config = (json.loads((each / "config.json").read_text()) for each in (flat, other))
    assert config["speculators_model_type"] == "peagle"
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert config["mask_token_id"] == flat_config["ptd_token_id"]
    assert config["transformer_layer_config"].items() <= flat_config.items()


# ----------------------------------------------------------------------------------------------------------- refusals


def test_every_bad_argument_is_named_at_once(tmp_path: Path) -> None:
    spec = synthetic.Spec(
        "gemma-4-31b", tmp_path, layers=3, experts=2, hidden=-3, sizes=(("no_such_size", 1),), format="mxfp4",
        head="flat", depth=-1,
    )  # fmt: skip
    with pytest.raises(UsageError) as caught:
        synthetic.write(spec)
    for word in ("--layers", "--experts", "--hidden", "no_such_size", "mxfp4", "blocks of 32", "--depth", "exists"):
        assert word in str(caught.value)


def test_a_disk_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(UsageError, match=r"GB free"):
        synthetic.write(small("gpt-oss-20b", tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "write_tokenizer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        synthetic.write(small("gpt-oss-20b", tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--shard-size", "many"], ["--set", "head_dim=wide"], ["--model", "gpt-2"]])
def test_the_command_line_explains_itself(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [synthetic.__file__, "--model", "gpt-oss-20b", "--out", str(tmp_path / "out"), *arguments]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        synthetic.main()
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_pair_of_the_guide_can_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What precedes the trace passes; tests/scenarios/test_mxfp4_experts.py makes graphs of such a target."""
    guide = (Path(synthetic.__file__).parents[1] / "docs" / "add-a-model.md").read_text()
    typed = re.search(r"tools/synthetic_checkpoint\.py (--.*?) --out", guide.replace("\\\n", ""), re.DOTALL)
    assert typed is not None
    monkeypatch.setattr(sys, "argv", [synthetic.__file__, *typed[1].split(), "--out", str(tmp_path / "pair")])
    synthetic.main()
    pair = {"model": str(tmp_path / "pair" / "target"), "draft": str(tmp_path / "pair" / "head")}
    decided = decide_export(EXPORT.request(**pair, max_seq_len=64))
    assert decided.plan.recipe.name == "fp32"
    assert decided.head is not None


# ---------------------------------------------------------------------------------------------------------- streaming


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8),
    st.integers(1, 400),
)
def test_shards_match_the_plan(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, ...]], limit: int
) -> None:
    folder, noise = tmp_path_factory.mktemp("shards"), small_noise()
    sources = [RandomTensor(f"t{i}", shape, i, 0.0, 1.0, noise) for i, shape in enumerate(wanted)]
    seen: list[int] = []
    write_shards(folder, sources, limit, seen.append)
    assert {name: tuple(t.shape) for name, t in tensors(folder).items()} == {s.name: s.shape for s in sources}
    assert sum(seen) == sum(2 * math.prod(shape) for shape in wanted)


@cache
def small_noise() -> Noise:
    return Noise(0)


def test_oversized_tensor_is_the_same_by_matrices_and_by_pieces(tmp_path: Path) -> None:
    tensor = RandomTensor("stack", (3, 1024, 2048), 5, 0.0, 0.5, small_noise())
    assert math.prod(tensor.shape) > RING
    write_file(tmp_path / "model.safetensors", [tensor], lambda _: None)
    stored = load_file(tmp_path / "model.safetensors")["stack"]
    assert torch.equal(stored, torch.stack(list(tensor.matrices())))
    assert stored.float().std() == pytest.approx(0.5, rel=0.01)
    rows = stored[:2].flatten(0, 1).float()
    assert torch.corrcoef(rows[::97]).fill_diagonal_(0).abs().max() < 0.2


def test_large_dtypes_come_first_for_alignment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(_: Encoder, name: str, matrix: torch.Tensor) -> dict[str, torch.Tensor]:
        stem = name.removesuffix(".weight")
        return {f"{stem}.weight": matrix.to(torch.float8_e4m3fn), f"{stem}.scale": matrix[:, 0].float()}

    monkeypatch.setattr(Encoder, "encode", halves)
    values = RandomTensor("a.weight", (3, 5), 0, 0.0, 1.0, small_noise())
    write_file(tmp_path / "x.safetensors", [EncodedTensor(values, Encoder("any"))], lambda _: None)
    header = read_header(tmp_path / "x.safetensors")
    assert header["a.scale"].begin % 4 == 0
    assert header["a.scale"].begin < header["a.weight"].begin
    stored, matrix = load_file(tmp_path / "x.safetensors"), next(values.matrices())
    assert torch.equal(stored["a.scale"], matrix[:, 0].float())
    assert torch.equal(stored["a.weight"].float(), matrix.to(torch.float8_e4m3fn).float())
