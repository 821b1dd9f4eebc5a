"""GGUF files as models: the numbers that transformers computes with, under the names that it has for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from tests import gguf_files

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


@pytest.mark.parametrize("family", gguf_files.FAMILIES)
def test_every_tensor_is_the_one_that_was_converted(family: str, tmp_path: Path) -> None:
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


def test_some_rows_of_a_head_are_those_of_the_whole(tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q8_0",))
    tensor = Checkpoint.open(written.file).tensors["model.layers.1.self_attn.k_proj.weight"]
    whole = tensor.rows(0, 128)
    for begin, end in ((0, 1), (63, 65), (30, 128), (127, 128), (5, 5)):
        np.testing.assert_array_equal(tensor.rows(begin, end), whole[begin:end])
