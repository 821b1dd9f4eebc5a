"""Passes layer by layer give transformers' results for the whole model, with one layer in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.precision.calibration.streamed_passes import num_steps, streamed_passes
from peagle.graphs.drafters.torch_reference import load_target, target_pass
from peagle.plugins.errors import BuildError
from tests.compiler.precision.calibration.conftest import random_samples
from tests.compiler.precision.calibration.residents import resident_bytes, uncounted
from tests.models import CONFIGS, Pair

Tiny = Callable[[str], Pair]
TEXTS = random_samples(23, 40, 1, 9).ids  # sliding windows of 8 fit in them


# Gemma-4 with experts has all layers of Gemma-4 without.
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name == "gemma-4" else []) for name in CONFIGS]
)
def test_streamed_logits_and_taps_match_the_whole_model(family: str, tiny: Tiny, tmp_path: Path) -> None:
    target = Target.open(tiny(family).target).with_taps((0, 2, 3))
    whole = load_target(target.folder, target.config)
    done: list[int] = []
    passes = list(streamed_passes(target, TEXTS, tmp_path, done.append))
    assert len(passes) == len(TEXTS)
    for ids, ours in zip(TEXTS, passes, strict=True):
        logits, features = (theirs.numpy() for theirs in target_pass(whole, target.spec, ids))
        # Experts are added in another order, and Gemma-4 normalizes their sum, which amplifies differences.
        np.testing.assert_allclose(ours.logits, logits, rtol=0, atol=5e-6 * abs(logits).max())
        np.testing.assert_allclose(ours.features, features, rtol=0, atol=2e-6 * abs(features).max())
    assert sum(done) == len(TEXTS) * num_steps(target)


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_one_layer_or_the_head_is_in_memory_at_a_time(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """And on the disk the streams of two layers, and of the taps."""
    target = Target.open(tiny(family).target).with_taps((1,))
    layers = [0] * target.spec.num_layers
    shapes = Checkpoint.open(tiny(family).target).shapes
    for name, shape in shapes.items():
        if name.startswith("model.layers."):
            layers[int(name.split(".")[2])] += 4 * int(np.prod(shape))
    head = 4 * (target.spec.vocab_size + 1) * target.spec.hidden_size  # and the norm before it
    seen: list[int] = []
    files: list[int] = []

    def look(_: int) -> None:
        seen.append(resident_bytes())
        files.append(len(list(tmp_path.iterdir())))

    with uncounted():
        for _ in streamed_passes(target, TEXTS[:2], tmp_path, look):
            pass
    assert seen == [each for each in (*layers, head) for _ in range(2)]
    assert max(files) <= 3


def test_separate_and_tied_lm_heads_are_read(tiny: Tiny, tmp_path: Path) -> None:
    """Which of the two a tiny family has is its own affair; together they have both."""
    tied = {family: "lm_head.weight" not in Checkpoint.open(tiny(family).target).shapes for family in CONFIGS}
    assert set(tied.values()) == {True, False}


def test_checkpoint_without_a_required_weight_is_rejected(tiny: Tiny, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, folder = tiny("qwen3").target, tmp_path / "target"
    folder.mkdir()
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.2.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(BuildError, match="down_proj"):
        next(streamed_passes(Target.open(folder), TEXTS, tmp_path, lambda _: None))
