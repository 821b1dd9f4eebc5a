"""A checkpoint in another basis computes the same function with other values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from other_basis import Basis, in_basis
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.models import make_pair

IDS = torch.tensor([[5, 9, 2, 40, 7, 7, 31]])


def _logits(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return np.asarray(model(IDS).logits[0])


@pytest.mark.parametrize("turns", [False, True])
def test_logits_are_kept_and_weights_change(turns: bool, tmp_path: Path) -> None:
    source = make_pair(tmp_path / "pair", "llama").target
    config = json.loads((source / "config.json").read_text())
    tensors = {name: value.astype(np.float32) for name, value in load_file(source / "model.safetensors").items()}
    for name, value in tensors.items():  # gains that are not all 1
        if "norm" in name:
            tensors[name] = value + np.linspace(-0.5, 0.5, value.size, dtype=np.float32)
    folders = tmp_path / "before", tmp_path / "after"
    changed = in_basis(tensors, config, Basis.drawn(config["hidden_size"], 3, turns=turns))
    for folder, (weights, settings) in zip(folders, ((tensors, config), changed), strict=True):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(settings))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    before, after = map(_logits, folders)
    np.testing.assert_allclose(after, before, atol=2e-4 * np.abs(before).max())
    down = "model.layers.0.mlp.down_proj.weight"
    same_numbers = np.array_equal(np.sort(tensors[down], axis=None), np.sort(changed[0][down], axis=None))
    assert same_numbers is not turns
    assert not np.allclose(tensors[down], changed[0][down])
