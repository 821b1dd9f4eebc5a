"""Quantized checkpoints match an independent dequantization, in row ranges, and unclear ones are refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_formats import encode, hf_quant_config, quantization_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.plugins.errors import BuildError

Tensors = dict[str, torch.Tensor]
NAME = "model.layers.0.mlp.up_proj.weight"
EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
NORM = "model.norm.weight"
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def write(folder: Path, tensors: Tensors, quantization: Any = None, modelopt: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # storing it twice is an error
    config = {"hidden_size": 2} | ({"quantization_config": quantization} if quantization else {})
    (folder / "config.json").write_text(json.dumps(config))
    if modelopt:
        (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    save_file(tensors, folder / "model.safetensors")
    return folder


def make(folder: Path, form: str, shape: tuple[int, ...], seed: int = 0, **options: Any) -> tuple[Checkpoint, Tensors]:
    """A checkpoint of one random weight, and what is stored."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    stored = encode(name_of(form), values, form, **options) | {NORM: torch.ones(3, dtype=torch.bfloat16)}
    block = {"block": options["block"]} if "block" in options else {}
    return Checkpoint.open(write(folder, stored, quantization_config(form, **block))), stored


def name_of(form: str) -> str:
    return EXPERTS if form == "mxfp4" else NAME


def refusal(folder: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        Checkpoint.open(folder)
    return caught.value


def mxfp4_by_hand(stored: Tensors) -> torch.Tensor:
    blocks, scales = stored[EXPERTS + "_blocks"], stored[EXPERTS + "_scales"]
    codes = torch.stack([blocks % 16, blocks // 16], dim=-1).flatten(-2).long()
    sign = torch.where(codes >= 8, -1.0, 1.0)
    return (sign * FP4[codes % 8] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2).mT


def scaled_by_hand(stored: Tensors, suffix: str, block: tuple[int, int]) -> torch.Tensor:
    weight, scale = stored[NAME].float(), stored[NAME + suffix].float()
    out = torch.empty_like(weight)
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            one = scale.flatten()[0] if scale.numel() == 1 else scale[row // block[0], column // block[1]]
            out[row, column] = weight[row, column] * one
    return out


CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], Callable[[Tensors], torch.Tensor]]] = {
    "bf16": ("bf16", (7, 5), {}, lambda s: s[NAME].float()),
    "mxfp4": ("mxfp4", (3, 6, 64), {}, mxfp4_by_hand),
    "blocks": ("fp8-blocks", (12, 16), {"block": (4, 8)}, lambda s: scaled_by_hand(s, "_scale_inv", (4, 8))),
    "odd blocks": ("fp8-blocks", (13, 17), {"block": (4, 8)}, lambda s: scaled_by_hand(s, "_scale_inv", (4, 8))),
    "one block": ("fp8-blocks", (13, 17), {}, lambda s: scaled_by_hand(s, "_scale_inv", (128, 128))),
    "modelopt": ("modelopt-fp8", (9, 6), {}, lambda s: scaled_by_hand(s, "_scale", (9, 6))),
    "tensor": ("compressed-tensors-fp8", (9, 6), {}, lambda s: scaled_by_hand(s, "_scale", (9, 6))),
    "channel": (
        "compressed-tensors-fp8", (9, 6), {"per_channel": True}, lambda s: scaled_by_hand(s, "_scale", (1, 6))
    ),
    "compressed blocks": (
        "compressed-tensors-fp8", (13, 17), {"block": (4, 8)}, lambda s: scaled_by_hand(s, "_scale", (4, 8))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_weight_matches_an_independent_dequantization(tmp_path: Path, case: str) -> None:
    form, shape, options, by_hand = CASES[case]
    checkpoint, stored = make(tmp_path, form, shape, **options)
    name = name_of(form)
    assert checkpoint.format == ("plain" if form == "bf16" else form)
    assert checkpoint.expert_blocks == ("MXFP4" if form == "mxfp4" else "")
    turned = form == "mxfp4"  # stored as [E, out, in]; in memory [E, in, out] if unquantized
    assert checkpoint.shapes == {name: (3, 64, 6) if turned else shape, NORM: (3,)}
    found = checkpoint.read(name)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, by_hand(stored).numpy())
    original = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert np.abs(found - (original.mT if turned else original).numpy()).max() < (1.0 if form == "mxfp4" else 0.2)


def test_mxfp4_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (2, 5, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(100, 150, (2, 5, 3), generator=generator, dtype=torch.uint8)
    write(tmp_path, {EXPERTS + "_blocks": blocks, EXPERTS + "_scales": scales}, quantization_config("mxfp4"))
    wanted = mxfp4.convert_moe_packed_tensors(blocks, scales).float()
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).read(EXPERTS), wanted.numpy())


def test_fp8_blocks_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    checkpoint, stored = make(tmp_path, "fp8-blocks", (256, 384))
    convert = fp8.Fp8Dequantize(None).convert
    wanted = convert({"weight": stored[NAME], "weight_scale_inv": stored[NAME + "_scale_inv"]})["weight"]
    np.testing.assert_array_equal(checkpoint.read(NAME), wanted.float().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e8m0fnu])
def test_block_scales_accept_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = encode(NAME, torch.randn(8, 8), "fp8-blocks", block=(4, 4))
    stored[NAME + "_scale_inv"] = stored[NAME + "_scale_inv"].to(dtype)
    write(tmp_path, stored, quantization_config("fp8-blocks", block=(4, 4)))
    wanted = scaled_by_hand(stored, "_scale_inv", (4, 4)).numpy()
    np.testing.assert_array_equal(Checkpoint.open(tmp_path).read(NAME), wanted)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    case=st.sampled_from(sorted(CASES)),
    rows=st.integers(1, 40),
    columns=st.integers(1, 20),
    limit=st.integers(0, 4000),
)
def test_pieces_are_the_whole_in_slices(tmp_path: Path, case: str, rows: int, columns: int, limit: int) -> None:
    form, _, options, _ = CASES[case]
    shape = (rows, 2, 32 * columns) if form == "mxfp4" else (rows, columns)
    checkpoint, _ = make(tmp_path, form, shape, seed=rows, **options)
    name = name_of(form)
    pieces = list(checkpoint.pieces(name, limit))
    np.testing.assert_array_equal(np.concatenate(pieces), checkpoint.read(name))
    granule = checkpoint.tensors[name].granule
    row = 4 * int(np.prod(shape[1:]))
    assert all(piece.nbytes <= max(limit, granule * row) for piece in pieces)
    assert all(len(piece) % granule == 0 for piece in pieces[:-1])
    assert len(pieces) == 1 or len(pieces) <= -(-rows // max(limit // row // granule * granule, granule))


def test_vectors_and_scalars_support_partial_reads(tmp_path: Path) -> None:
    tensors = {"v": torch.arange(10), "s": torch.tensor(2.0), "e": torch.zeros(0, 4), "b": torch.tensor([True])}
    checkpoint = Checkpoint.open(write(tmp_path, tensors))
    assert [len(piece) for piece in checkpoint.pieces("v", 16)] == [4, 4, 2]
    for name, tensor in tensors.items():
        pieces = list(checkpoint.pieces(name))
        assert len(pieces) == 1
        assert pieces[0].dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(pieces[0], tensor.numpy())


@pytest.mark.parametrize("case", CASES)
def test_reading_by_pieces_takes_the_memory_of_a_few_pieces(tmp_path: Path, case: str) -> None:
    form, _, options, _ = CASES[case]
    options = {"block": (128, 128)} if "block" in options else options
    shape = (64, 32, 1024) if form == "mxfp4" else (2048, 1024)
    checkpoint, _ = make(tmp_path, form, shape, **options)
    limit = 1 << 20
    for _ in checkpoint.pieces(name_of(form), limit):
        pass  # tables are made once
    tracemalloc.start()
    try:
        for piece in checkpoint.pieces(name_of(form), limit):
            assert piece.nbytes <= limit
            del piece
        assert tracemalloc.get_traced_memory()[1] < 3 * limit
    finally:
        tracemalloc.stop()


def test_scales_are_companions_and_not_tensors(tmp_path: Path) -> None:
    scales = {f"model.layers.0.self_attn.{n}": torch.tensor(0.5) for n in ("k_proj.k_scale", "v_proj.v_scale")}
    stored = encode(NAME, torch.randn(4, 4), "modelopt-fp8", input_scale=0.25) | scales
    checkpoint = Checkpoint.open(write(tmp_path, stored, modelopt=hf_quant_config(kv_cache=True)))
    assert checkpoint.format == "modelopt-fp8"
    assert set(checkpoint.tensors) == {NAME}
    assert set(checkpoint.companions) == set(stored) - {NAME}


@pytest.mark.parametrize(
    ("structures", "is_read"),
    [
        (["4x8"], True),
        ([[4, 8], "4x8"], True),
        ([[4, 8], [8, 8]], False),
        (["4x8x1"], False),
        ([[0, 8]], False),
        ([None], False),
        ([], False),
    ],
)
def test_block_structure_gives_the_size_of_blocks(tmp_path: Path, structures: list[Any], is_read: bool) -> None:
    stored = encode(NAME, torch.randn(13, 17), "compressed-tensors-fp8", block=(4, 8))
    weights = [{"strategy": "block", "block_structure": structure} for structure in structures]
    groups = {str(i): {"weights": each} for i, each in enumerate(weights)}
    folder = write(tmp_path, stored, quantization_config("compressed-tensors-fp8") | {"config_groups": groups})
    if is_read:
        assert Checkpoint.open(folder).shapes == {NAME: (13, 17)}
    else:
        assert "with a wrong shape" in str(refusal(folder))


@pytest.mark.parametrize("form", ["fp8-blocks", "compressed-tensors-fp8"])
def test_static_input_scales_are_companions(tmp_path: Path, form: str) -> None:
    stored = encode(NAME, torch.randn(4, 4), form, input_scale=0.25)
    stored["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(2, 2)
    checkpoint = Checkpoint.open(write(tmp_path, stored, quantization_config(form, static=True)))
    assert len(checkpoint.companions) == 2
    assert len(checkpoint.tensors) == 2


def test_the_position_is_that_of_the_weight_itself(tmp_path: Path) -> None:
    checkpoint, stored = make(tmp_path, "mxfp4", (2, 4, 32))
    file, offset = checkpoint.position(EXPERTS)
    blocks = stored[EXPERTS + "_blocks"].numpy().tobytes()
    assert Path(file).read_bytes()[offset : offset + len(blocks)] == blocks


@pytest.mark.parametrize("place", ["top", "text_config", "compression_config", "hf_quant_config.json", "nested"])
def test_quantization_declaration_is_found_in_every_location(tmp_path: Path, place: str) -> None:
    write(tmp_path, encode(NAME, torch.randn(4, 4), "modelopt-fp8"))
    entry = quantization_config("modelopt-fp8")
    configs = {
        "top": {"quantization_config": entry},
        "text_config": {"text_config": {"quantization_config": entry}},
        "compression_config": {"compression_config": entry},
        "hf_quant_config.json": {},
        "nested": {"quantization_config": {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}},
    }
    (tmp_path / "config.json").write_text(json.dumps(configs[place]))
    if place == "hf_quant_config.json":
        (tmp_path / place).write_text(json.dumps(hf_quant_config()))
    assert Checkpoint.open(tmp_path).format == "modelopt-fp8"


def test_two_declarations_must_agree(tmp_path: Path) -> None:
    stored = encode(NAME, torch.randn(4, 4), "modelopt-fp8")
    both = write(tmp_path / "both", stored, quantization_config("modelopt-fp8"), hf_quant_config())
    assert Checkpoint.open(both).format == "modelopt-fp8"
    for other in (quantization_config("fp8-blocks"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}):
        problem = refusal(write(tmp_path / "other", stored, other, hf_quant_config()))
        assert "different quantizations" in str(problem)
        assert "'FP8'" in str(problem)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, ["gptq"]),
        ({"quant_method": "awq", "bits": 4}, ["awq"]),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["bitsandbytes"]),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["modelopt", "NVFP4"]),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, ["modelopt", "W4A16_AWQ"]),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, ["pack-quantized"]),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, ["int-quantized"]),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, ["nvfp4-pack-quantized"]),
        ({"quant_method": "compressed-tensors"}, ["compressed-tensors"]),
        (quantization_config("compressed-tensors-fp8") | {"transform_config": {"R1": {}}}, ["transform_config"]),
        (
            quantization_config("compressed-tensors-fp8") | {"sparsity_config": {"format": "sparse-24-bitmask"}},
            ["sparse-24-bitmask"],
        ),
        ({"quant_method": "fp8"}, ["fp8"]),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, ["weight_block_size [0, 128]"]),
        ({"quant_method": "fp8", "weight_block_size": "x"}, ["weight_block_size 'x'"]),
        ({"quant_method": ["odd"]}, ["odd"]),
        ({"bits": 4}, ["no quant_method"]),
        (["gptq"], ["not an object"]),
    ],
)
def test_other_quantizations_are_refused_by_name(tmp_path: Path, settings_: Any, words: list[str]) -> None:
    problem = refusal(write(tmp_path, {NAME: torch.zeros(2, 2)}, settings_))
    assert all(word in problem.what for word in words)
    assert problem.fix


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.float64])
def test_types_that_no_declaration_explains_are_named(tmp_path: Path, dtype: torch.dtype) -> None:
    problem = refusal(write(tmp_path, {NAME: torch.zeros(2, 2).to(dtype), "other": torch.zeros(1).to(dtype)}))
    assert "2 tensors stored as" in problem.what
    assert NAME in problem.what


def test_every_misfit_of_fp8_weights_is_named_at_once(tmp_path: Path) -> None:
    fp8 = torch.zeros(4, 4).to(torch.float8_e4m3fn)
    stored = {
        "lacking.weight": fp8,
        "misshapen.weight": fp8,
        "misshapen.weight_scale": torch.ones(4),
        "cube.weight": fp8.reshape(2, 2, 4),
        "cube.weight_scale": torch.ones(1),
        "typed.weight": fp8,
        "typed.weight_scale": torch.ones(1, dtype=torch.int32),
        "wide.weight": torch.ones(4, 4),
        "wide.weight_scale": torch.ones(1),
        "lone.weight_scale": torch.ones(1),
        "int.weight": torch.zeros(2, dtype=torch.int8),
        "fine.weight": fp8,
        "fine.weight_scale": torch.ones(()),
    }
    text = str(refusal(write(tmp_path, stored, quantization_config("compressed-tensors-fp8"))))
    for name in ("lacking", "misshapen", "cube", "typed", "wide", "lone", "int"):
        assert f"{name}.weight" in text
    assert "fine" not in text


def test_every_misfit_of_mxfp4_is_named_at_once(tmp_path: Path) -> None:
    blocks, scales = torch.zeros(2, 4, 1, 16, dtype=torch.uint8), torch.zeros(2, 4, 1, dtype=torch.uint8)
    stored = {
        "bare_blocks": blocks,
        "lone_scales": scales,
        "misshapen_blocks": blocks,
        "misshapen_scales": scales[:1],
        "flat_blocks": blocks[0, 0, 0],
        "flat_scales": scales[0, 0, 0],
        "twice_blocks": blocks,
        "twice_scales": scales,
        "twice": torch.zeros(1),
        "fine_blocks": blocks,
        "fine_scales": scales,
    }
    text = str(refusal(write(tmp_path, stored, quantization_config("mxfp4"))))
    for name in ("bare_blocks", "lone_scales", "misshapen [", "flat [", "twice"):
        assert name in text
    assert "fine" not in text


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("case", ["blocks", "modelopt", "tensor", "channel"])
def test_scales_that_are_not_positive_numbers_are_named_when_read(tmp_path: Path, case: str, bad: float) -> None:
    form, shape, options, _ = CASES[case]
    _, stored = make(tmp_path, form, shape, **options)
    scale = next(name for name in stored if "weight_scale" in name)
    stored[scale].flatten()[-1] = bad
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(BuildError, match=f"1 of the .* scales of {scale} are"):
        Checkpoint.open(tmp_path).read(NAME)


def test_codes_and_scales_that_are_nan_are_named_when_read(tmp_path: Path) -> None:
    _, stored = make(tmp_path, "modelopt-fp8", (4, 4))
    stored[NAME].view(torch.uint8)[1, :2] = torch.tensor([0x7F, 0xFF], dtype=torch.uint8)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(BuildError, match=f"{NAME} has 2 NaN and 0 Inf among 16 values"):
        Checkpoint.open(tmp_path).read(NAME)
    _, stored = make(tmp_path, "mxfp4", (2, 4, 32))
    stored[EXPERTS + "_scales"][1, 1, 0] = 255
    save_file(stored, tmp_path / "model.safetensors")
    pieces = Checkpoint.open(tmp_path).pieces(EXPERTS, 1)
    next(pieces)
    with pytest.raises(BuildError, match=f"1 of the .* scales of {EXPERTS}_scales are"):
        next(pieces)
