"""FP8 checkpoints written by ``nvidia-modelopt`` are read as they are, and their graphs compute the same.

The folders were written by ``tools/modelopt_checkpoint.py`` (nvidia-modelopt 0.47.0) from tiny random targets.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.graphs.drafters import torch_reference
from peagle.graphs.lowering import LOWERINGS
from tests.fp8_pairs import fake_quantized
from tests.graphs.running import Graph, target_inputs

HERE = Path(__file__).parent
CACHE = 64


@pytest.fixture(params=["modelopt_qwen3", "modelopt_qwen3_moe", "modelopt_gpt_oss"])
def folder(request: pytest.FixtureRequest) -> Path:
    return HERE / str(request.param)


def test_every_tensor_is_its_codes_times_its_scale(folder: Path) -> None:
    checkpoint, stored = Checkpoint.open(folder), load_file(folder / "model.safetensors")
    assert checkpoint.format == "modelopt-fp8"
    narrow = {name for name, tensor in stored.items() if tensor.dtype == torch.float8_e4m3fn}
    assert len(narrow) > 40
    for name in checkpoint.tensors:
        beside = f"{name}_scale" if name.endswith("weight") else f"{name}_weight_scale"  # of stacked experts
        expected = stored[name].float() * (stored[beside] if name in narrow else 1)
        np.testing.assert_array_equal(checkpoint.read(name), expected.numpy(), name)
        assert (checkpoint.fp8(name) is not None) == (name in narrow)
    beside = {n for n in stored if n.endswith(("_scale", ".k_scale", ".v_scale", "input_scale"))}
    assert set(checkpoint.companions) == beside
    assert set(stored) == set(checkpoint.tensors) | beside


def _in_graph(input_scale: str) -> str:
    """The module, or the experts' stack, that an input scale belongs to."""
    module = re.sub("[._]input_scale$", "", input_scale)
    single = re.fullmatch(r"(.*\.experts)\.\d+\.(\w+)_proj", module)
    if single is None:
        return module
    return f"{single[1]}.{'down' if single[2] == 'down' else 'gate_up'}_proj"


def test_graph_matches_fake_quantization_in_torch(folder: Path, tmp_path: Path) -> None:
    """Inputs rounded as the checkpoint's scales say; to 1e-4 but where a last digit flips a rounding to E4M3."""
    target = Target.open(folder).with_taps()
    spec = target.spec
    half = target_component(target, RECIPES["fp8"].on("fp32"))
    store = StageStore.default()
    traced = graph_stages.trace(store, half, "float32", Quiet())
    done = graph_stages.attach(
        store, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=CACHE, progress=Quiet()
    )
    assert done.precision is not None
    assert done.precision["share"] == 1
    scales: dict[str, float] = {}
    for name, entry in load_file(folder / "model.safetensors").items():
        if name.endswith("input_scale"):
            module = _in_graph(name)
            scales[module] = max(float(entry), scales.get(module, 0.0))
    model = fake_quantized(folder, tmp_path / "plain", scales)
    rows, width = 16, 3
    ids = np.random.default_rng(5).integers(2, spec.vocab_size, (rows, width))
    graph = Graph(done.attached.path / graph_stages.MODEL, spec.caches, CACHE, rows=rows)
    out = graph(**target_inputs(ids, 0, width - 1, width))
    expected = np.stack([torch_reference.target_pass(model, spec, row.tolist())[0].numpy() for row in ids])
    differences = np.abs(out["logits"] - expected).max(axis=-1)
    assert np.mean(differences < 1e-4) > 0.8
    assert np.median(differences) < 1e-5
