"""An engine whose outputs are not finite is not published, for any K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.check_numbers import require_finite
from peagle.compiler.request.verb_options import BUILD
from peagle.engines import Engine
from peagle.engines.folder.records import BackendRecord
from peagle.plugins.errors import BuildError
from tests.engines.folder.test_manifest import manifest_of
from tests.models import Pair


def built(pair: Pair, **changes: Any) -> dict[str, Any]:
    """The report of a build with 3 drafts."""
    options = {"model": str(pair.target), "draft": str(pair.head), "out": pair.target.parent / "out"}
    return build(BUILD.request(**options | {"num_speculative_tokens": 3} | changes)).report


def refusal(pair: Pair, **changes: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        built(pair, **changes)
    assert not [path for path in pair.target.parent.iterdir() if path.name not in ("target", "head")]
    return caught.value


def overflow(folder: Path, name: str) -> None:
    """Make a weight so large that what is computed with it is not finite."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.full_like(tensors[name], 1e38)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("k", [3, 0])
def test_overflowing_weights_are_rejected_with_an_explicit_k(pair: Pair, k: int) -> None:
    overflow(pair.target, "model.layers.0.mlp.up_proj.weight")
    error = refusal(pair, num_speculative_tokens=k)
    assert "out does not work: the target's logits are NaN or infinite after 1 of 1 prompts" in error.what


def test_a_drafter_that_overflows_is_refused(pair: Pair) -> None:
    overflow(pair.head, "fc.weight")
    assert "out does not work: the drafter's logits are NaN or infinite" in refusal(pair).what


@pytest.mark.parametrize("theta", [0, -1])
def test_a_rotary_embedding_without_numbers_is_refused(pair: Pair, theta: float) -> None:
    rope = {"rope_type": "default", "rope_theta": theta}
    (pair.target / "config.json").write_text(json.dumps(pair.config | {"rope_parameters": rope}))
    assert "rope_theta must be a positive number" in str(refusal(pair))


def test_check_of_identical_graphs_is_cached(pair: Pair) -> None:
    phases = [{each["phase"]: each for each in built(pair, max_seq_len=72)["phases"]} for _ in range(2)]
    assert [phase["check numbers"]["reused"] for phase in phases] == [False, True]


def test_an_engine_for_short_texts_is_checked_with_short_prompts(pair: Pair) -> None:
    built(pair, max_seq_len=4)
    assert Engine.load(pair.target.parent / "out").max_seq_len == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("table", "gpus", "fix"),
    [
        ({"recipe": "fp32", "weights": "fp32"}, (), "download the checkpoint again"),
        ({"recipe": "int4", "weights": "int4"}, (), "build with --backend onnxruntime --precision fp32"),
        ({"recipe": "fp16", "weights": "fp16"}, ("sm_90",), "build with --precision bf16, which has"),
        ({"recipe": "int8", "lm_head": "bf16"}, ("sm_90",), "build with --backend onnxruntime --precision fp32"),
    ],
)
def test_engine_with_nan_logits_is_rejected(bad: float, table: dict[str, str], gpus: tuple[str, ...], fix: str) -> None:
    manifest = manifest_of({}, precision=table, backend=BackendRecord("tensorrt", "tensorrt", {}, gpus))
    whole, hurt = np.zeros((2, 3), np.float32), np.array([[0, 1, 2], [0, bad, 2]], np.float32)
    require_finite("target", [whole, whole], manifest, Path("out"))
    with pytest.raises(BuildError, match=r"out does not work.* NaN or infinite after 1 of 2 prompts") as caught:
        require_finite("target", [whole, hurt], manifest, Path("out"))
    assert caught.value.fix.startswith(fix)
