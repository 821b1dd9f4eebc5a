"""Output of `quantize` compared with NVIDIA's ModelOpt, for the same model and samples."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.pipeline.quantize import quantize
from peagle.compiler.request.verb_options import QUANTIZE
from tests.models import make_pair

TOOL = Path(__file__).parents[2] / "tools" / "modelopt_checkpoint.py"
_EXPERT = re.compile(r"(.*\.experts\.)\d+(\..*)")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("modelopt") is None,
        reason="needs ModelOpt (pip install nvidia-modelopt==0.47.0 requests)",
    ),
]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3-moe", "gemma-4", "gpt-oss"])
def test_output_matches_modelopt(family: str, tmp_path: Path) -> None:
    """Names, types, shapes, weights, scales and settings. Experts have input scales of their own here, shared there."""
    target = make_pair(tmp_path, family).target
    generator = np.random.default_rng(0)
    lines = [json.dumps({"input_ids": generator.integers(2, 89, 40).tolist()}) for _ in range(8)]  # of no image
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    subprocess.run(
        [sys.executable, TOOL, target, tmp_path / "theirs", tmp_path / "data.jsonl", "--kv-cache"], check=True
    )
    quantize(
        QUANTIZE.request(
            model=str(target), out=tmp_path / "ours", calib_data=tmp_path / "data.jsonl", kv_cache_dtype="fp8"
        )
    )
    ours, theirs = (
        load_file(tmp_path / "ours" / "model.safetensors"),
        load_file(tmp_path / "theirs" / "model.safetensors"),
    )
    assert {n: (t.dtype, t.shape) for n, t in ours.items()} == {n: (t.dtype, t.shape) for n, t in theirs.items()}
    for name, tensor in theirs.items():
        if not name.endswith(("input_scale", ".k_scale", ".v_scale")):
            assert torch.equal(ours[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
        elif found := _EXPERT.fullmatch(name):
            before, tail = found.groups()
            largest = max(float(ours[f"{before}{e}{tail}"]) for e in range(6))
            assert largest == pytest.approx(float(tensor), rel=1e-5), name
        else:
            assert float(ours[name]) == pytest.approx(float(tensor), rel=1e-5), name
    assert settings(tmp_path / "ours") == settings(tmp_path / "theirs")
    mine, other = Checkpoint.open(tmp_path / "ours"), Checkpoint.open(tmp_path / "theirs")
    assert (mine.format, mine.shapes) == (other.format, other.shapes)
    for name in mine.shapes:
        np.testing.assert_array_equal(mine.read(name), other.read(name), name)


def settings(folder: Path) -> list[Any]:
    """Both descriptions, without who made them. Gemma-4's embedding is of a class that ModelOpt does not list."""
    described = json.loads((folder / "hf_quant_config.json").read_text())
    entry = json.loads((folder / "config.json").read_text())["quantization_config"]
    for each in (described, entry):
        each.pop("producer")
    for names in (described["quantization"]["exclude_modules"], entry["ignore"]):
        names[:] = [name for name in names if name != "model.language_model.embed_tokens"]
    return [described, entry]
