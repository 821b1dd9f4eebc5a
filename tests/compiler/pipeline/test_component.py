"""The weights of a graph come from complete checkpoints of every supported model and format, at a small scale."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import synthetic_checkpoint
import torch
from safetensors.torch import save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.checkpoints.target_and_drafter import read_head
from peagle.compiler.pipeline.component import drafter_component, target_component
from tests.tools import test_synthetic_checkpoint as synthetic

FORMATS = {
    "qwen3-coder-30b": ["fp8-blocks", "modelopt-fp8", "compressed-tensors-fp8"],
    "gpt-oss-20b": ["mxfp4"],
    "gemma-4-31b": ["fp8-blocks", "modelopt-fp8", "compressed-tensors-fp8"],
}
SLOW = (("gemma-4-31b", "fp8-blocks"), ("gemma-4-31b", "modelopt-fp8"))  # read in the same way in the first model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


def weights(target: Path) -> dict[str, np.ndarray]:
    """Every weight of the graph, whole."""
    opened = Target.open(target)
    half, shapes = target_component(opened), opened.skeleton.shapes
    half.check(shapes)
    return {name: np.concatenate(list(half.read(name, shape))).reshape(shape) for name, shape in shapes.items()}


@cache
def published(folder: Path, model: str) -> dict[str, np.ndarray]:
    return weights(synthetic.written(folder, model) / "target")


@pytest.mark.parametrize("model", FORMATS)
def test_a_published_checkpoint_has_every_weight_of_the_graph(folder: Path, model: str) -> None:
    found = published(folder, model)
    assert all(np.isfinite(array).all() for array in found.values())
    assert sum(array.size for array in found.values()) > 100_000


@pytest.mark.parametrize(
    ("model", "form"),
    [
        pytest.param(model, form, marks=pytest.mark.slow if (model, form) in SLOW else [])
        for model, forms in FORMATS.items()
        for form in forms
    ],
)
def test_quantized_checkpoint_gives_the_same_graph_and_nearly_equal_weights(
    folder: Path, model: str, form: str
) -> None:
    quantized = weights(synthetic.written(folder, model, form) / "target")
    wide = published(folder, model)
    assert quantized.keys() == wide.keys()
    # Relative to the largest value: MXFP4 has no values between 6 and 8 times a block's scale, FP8 3 mantissa bits.
    allowed = 0.25 if form == "mxfp4" else 0.07
    changed = [name for name in wide if not np.array_equal(quantized[name], wide[name])]
    assert changed
    for name in changed:
        assert np.abs(quantized[name] - wide[name]).max() <= allowed * np.abs(wide[name]).max(), name


@pytest.mark.parametrize("model", FORMATS)
def test_weights_are_read_shard_by_shard(folder: Path, model: str) -> None:
    target = Target.open(synthetic.written(folder, model) / "target")
    half, shapes = target_component(target), target.skeleton.shapes
    places = [half.position(name, shape) for name, shape in shapes.items()]
    assert len({file for file, _ in places}) > 1
    assert len(set(places)) == len(places)


def test_experts_are_interleaved_gate_first(folder: Path) -> None:
    checkpoint = Checkpoint.open(synthetic.written(folder, "qwen3-coder-30b") / "target")
    prefix = "model.layers.0.mlp.experts"
    found = published(folder, "qwen3-coder-30b")[f"{prefix}.gate_up_proj"]
    for expert in range(len(found)):
        for offset, part in enumerate(("gate", "up")):
            stored = checkpoint.read(f"{prefix}.{expert}.{part}_proj.weight")
            np.testing.assert_array_equal(found[expert, offset::2], stored)


def test_head_in_either_layout_gives_the_same_weights(folder: Path) -> None:
    found = []
    for layout in ("flat", "speculators"):
        out = folder / "heads" / layout
        synthetic_checkpoint.write(synthetic.small("qwen3-coder-30b", out, head=layout))
        target, head = Target.open(out / "target"), Checkpoint.open(out / "head")
        spec = read_head(head, target.spec)
        half = drafter_component(head, spec, target.with_taps(spec.taps))
        shapes = spec.expected_shapes()
        found.append({name: np.concatenate(list(half.read(name, shape))) for name, shape in shapes.items()})
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])


def test_a_vocabulary_that_contradicts_itself_is_refused(folder: Path, tmp_path: Path) -> None:
    from peagle.plugins.errors import BuildError

    out = synthetic.written(folder, "qwen3-coder-30b")
    target, head = Target.open(out / "target"), Checkpoint.open(out / "head")
    tensors = {name: torch.from_numpy(head.read(name)) for name in head.tensors}
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:100].contiguous()
    tensors["d2t"] = torch.full((100,), 7)
    tensors["t2d"] = torch.zeros(300, dtype=torch.bool).index_fill(0, torch.arange(100), True)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(dict(head.config) | {"draft_vocab_size": 100}))
    with pytest.raises(BuildError, match="d2t and t2d differ"):
        read_head(Checkpoint.open(tmp_path), target.spec)
