"""GGUF files as models: the same values and names that transformers uses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.plugins.errors import BuildError
from tests import gguf_files

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.mark.parametrize("family", gguf_files.FAMILIES)
def test_every_tensor_matches_the_converted_original(family: str, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", family, kinds=KINDS)
    target, expected = Target.open(written.file), load_file(written.folder / "model.safetensors")
    target.check()
    assert target.checkpoint.tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(target.checkpoint.read(name), values)
        pieces = [*target.checkpoint.pieces(name, 4 * 3 * values.shape[-1])]
        np.testing.assert_array_equal(np.concatenate(pieces), values)


@pytest.mark.parametrize("family", gguf_files.FAMILIES)
def test_the_configuration_is_the_published_one(family: str, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", family)
    read, settings = Target.open(written.file), Target.open(written.folder)
    assert (read.spec, read.family) == (settings.spec, settings.family)
    ours, theirs = read.family.settings(read.config).to_dict(), read.family.settings(settings.config).to_dict()
    differ = {name for name in theirs if ours.get(name) != theirs[name]}
    assert differ <= {"bos_token_id", "dtype", "transformers_version", "layer_types"}


def test_partial_head_rows_match_the_whole_head(tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q8_0",))
    tensor = Checkpoint.open(written.file).tensors["model.layers.1.self_attn.k_proj.weight"]
    whole = tensor.rows(0, 128)
    for begin, end in ((0, 1), (63, 65), (30, 128), (127, 128), (5, 5)):
        np.testing.assert_array_equal(tensor.rows(begin, end), whole[begin:end])


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def _divisors() -> np.ndarray:
    """As the converter of llama.cpp writes them, one frequency at a time."""
    divisors = []
    for j in range(32):
        wave = 2 * math.pi * LLAMA3["rope_theta"] ** (2 * j / 64)
        smooth = (8192 / wave - 1) / 3
        between = 1 / ((1 - smooth) / 32 + smooth)
        divisors.append(1.0 if wave < 2048 else 32.0 if wave > 8192 else between)
    return np.array(divisors, np.float32)


def test_the_rotary_table_of_llama_3_is_found_in_its_divisors(tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", _divisors())

    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", edit=edit, rope_parameters=LLAMA3)
    read, settings = Target.open(written.file), Target.open(written.folder)
    ours, theirs = (each.family.settings(each.config).rope_parameters for each in (read, settings))
    assert ours == theirs
    read.check()


def test_unsupported_rope_table_is_rejected(tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", _divisors() * np.linspace(1, 2, 32, dtype=np.float32))

    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", edit=edit, rope_parameters=LLAMA3)
    with pytest.raises(BuildError, match="custom RoPE frequency divisors"):
        Target.open(written.file)


@pytest.mark.parametrize(("kind", "said"), [("linear", None), ("yarn", "uses RoPE scaling 'yarn'")])
def test_scaled_positions_are_read_or_refused(kind: str, said: str | None, tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_float32("llama.rope.scaling.factor", 4.0)

    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", edit=edit)
    if said:
        with pytest.raises(BuildError, match=said):
            Target.open(written.file)
    else:
        assert Target.open(written.file).config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("entries", "factor"),
    [
        ({"scale_linear": 4.0}, 4.0),
        ({"scaling.factor": 4.0}, 4.0),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, 4.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, None),
        ({"scaling.type": "linear", "scaling.factor": 1.0}, None),
        ({"scaling.type": "linear"}, None),
    ],
)
def test_scaling_of_positions_is_read_as_llama_cpp_reads_it(
    entries: dict[str, Any], factor: float | None, tmp_path: Path
) -> None:
    def edit(writer: Any) -> None:
        for name, value in entries.items():
            add = writer.add_string if isinstance(value, str) else writer.add_float32
            add(f"llama.rope.{name}", value)

    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", edit=edit)
    scaling = Target.open(written.file).config.get("rope_scaling")
    assert scaling == (None if factor is None else {"rope_type": "linear", "factor": factor})


def test_linear_scaling_beside_a_rope_table_is_refused(tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.add_tensor("rope_freqs.weight", _divisors())
        writer.add_float32("llama.rope.scaling.factor", 4.0)

    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", edit=edit, rope_parameters=LLAMA3)
    with pytest.raises(BuildError, match="linear RoPE scaling and RoPE frequency divisors"):
        Target.open(written.file)


def test_other_positions_than_those_of_gpt_oss_are_refused(tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.add_string("gpt-oss.rope.scaling.type", "linear")

    written = gguf_files.write(tmp_path / "tiny.gguf", "gpt-oss", edit=edit)
    with pytest.raises(BuildError, match=r"gpt-oss.rope.scaling.type is 'linear'"):
        Target.open(written.file)


def test_gpt_oss_has_both_parts_of_its_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = gguf_files.write(tmp_path / "whole.gguf", "gpt-oss")
    assert Checkpoint.open(written.file).shapes["model.layers.0.mlp.experts.gate_up_proj"] == (6, 64, 192)
    add = GGUFWriter.add_tensor

    def add_most(writer: GGUFWriter, name: str, *given: Any, **named: Any) -> None:
        if name != "blk.0.ffn_up_exps.weight":
            add(writer, name, *given, **named)

    monkeypatch.setattr(GGUFWriter, "add_tensor", add_most)
    written = gguf_files.write(tmp_path / "part.gguf", "gpt-oss")
    with pytest.raises(BuildError, match=r"not all parts of the same experts: blk.0.ffn_gate_exps.weight"):
        Checkpoint.open(written.file)
