"""Calibration layer by layer gives the same bits as the whole model, with one layer in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.console.progress import Advance
from peagle.compiler.precision.calibration.calibrate import Settings
from peagle.compiler.precision.calibration.layerwise import Layerwise
from peagle.compiler.precision.calibration.obtain_ranges import describe
from peagle.compiler.precision.calibration.range_methods import Max, Mse, Percentile
from peagle.graphs.stream_weights import needed_weights
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_target
from peagle.plugins.errors import BuildError, UsageError
from tests.compiler.precision.calibration.conftest import Calibrate, random_samples
from tests.compiler.precision.calibration.residents import resident_bytes, uncounted
from tests.compiler.precision.calibration.whole import whole_model
from tests.models import CONFIGS, Pair

FAMILIES = ("llama", "qwen3", "qwen3-moe", "gpt-oss", "gemma-4", "gemma-4-moe")
Tiny = Callable[[str], Pair]


# Gemma-4 with experts has all layers of Gemma-4 without.
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name == "gemma-4" else []) for name in FAMILIES]
)
def test_equals_the_whole_model_bit_for_bit(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(23, 40, 1, 9)  # sliding windows of 8 fit in them
    scales = calibrated(tiny(family), samples)
    matmuls, caches = whole_model(tiny(family), samples.ids)
    for name, value in scales.inputs.items():
        seen = np.array([matmuls.largest[name, e] for e in range(value.size)], np.float32).reshape(value.shape)
        seen[seen == 0] = seen.max()  # an expert without tokens
        assert value.dtype == np.float32
        assert value.tobytes() == seen.tobytes(), name
    assert scales.squares.keys() == scales.inputs.keys()
    for name, value in scales.squares.items():
        rows = sum(matmuls.rows[name, e] for e in range(scales.inputs[name].size))  # of all experts together
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, matmuls.squares[name] / rows, rtol=1e-6)
    assert {name: float(value) for name, value in scales.caches.items()} == caches
    for module, counts in scales.expert_tokens.items():
        assert counts.tolist() == [matmuls.rows[f"{module}.gate_up_proj", e] for e in range(len(counts))]
    unseen = sum(int(np.sum(counts == 0)) for counts in scales.expert_tokens.values())
    assert (f"{unseen} of " in "".join(scales.facts.warnings)) == bool(unseen)
    for name, value in scales.ranges.items():
        peaks = scales.peaks[name].max(-1)
        assert np.array_equal(np.where(peaks == 0, peaks.max(), peaks), value), name
    assert scales.clipped == {}


@pytest.mark.parametrize("family", ["qwen3", "gemma-4"])
def test_equals_the_whole_model_in_bfloat16(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(23, 9)
    scales = calibrated(tiny(family), samples, Settings(dtype="bfloat16"))
    matmuls, _ = whole_model(tiny(family), samples.ids, torch.bfloat16)
    assert {n: float(v) for n, v in scales.inputs.items()} == {n: matmuls.largest[n, 0] for n in scales.inputs}


@pytest.mark.parametrize("family", FAMILIES)
def test_range_names_match_checkpoint_matrices(family: str) -> None:
    config = CONFIGS[family]
    matrices = {n for n, shape in Skeleton(config).shapes.items() if len(shape) > 1 and "embed" not in n}
    routers = {n for n in matrices if n.endswith(("mlp.gate.weight", "router.weight", "router.proj.weight", "_bias"))}
    assert set(Skeleton(config).range_shapes.inputs) == (matrices - routers) | {"lm_head.weight"}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_range_names_match_the_traced_graph(family: str) -> None:
    served = family_for(CONFIGS[family])
    text = served.keeping(CONFIGS[family], [3, 6] if family == "qwen3-moe" else [0, 5])  # a layer of either kind
    config = CONFIGS[family] | ({"text_config": text} if "text_config" in CONFIGS[family] else text)
    graph = trace_target(Skeleton(config), served.describe(config).with_taps((0, 1)))
    needed = Skeleton(config).range_shapes
    assert set(needed.inputs) <= set(needed_weights(graph))
    assert set(needed.caches) <= {str(value.name) for value in graph.graph.inputs}


def test_a_shared_input_has_one_range(tiny: Tiny, calibrated: Calibrate) -> None:
    inputs = calibrated(tiny("qwen3"), random_samples(20), Settings(method=Percentile(99.0))).inputs
    for layer in range(7):
        qkv = {float(inputs[f"model.layers.{layer}.self_attn.{x}_proj.weight"]) for x in "qkv"}
        mlp = {float(inputs[f"model.layers.{layer}.mlp.{x}_proj.weight"]) for x in ("gate", "up", "down")}
        assert (len(qkv), len(mlp)) == (1, 2)


def test_no_method_exceeds_the_maximum(tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(30)
    largest = calibrated(tiny("gpt-oss"), samples, Settings(method=Max())).inputs
    for method in (Percentile(99.0), Mse("e4m3"), Mse("int8")):
        clipped = calibrated(tiny("gpt-oss"), samples, Settings(method=method)).inputs
        assert all(np.all(clipped[name] <= largest[name]) for name in largest)
        assert any(np.any(clipped[name] < largest[name]) for name in largest)


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss"])
def test_clipped_values_are_counted(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(40, 24)
    scales = calibrated(tiny(family), samples, Settings(method=Percentile(95.0)))
    assert scales.clipped.keys() <= scales.ranges.keys()
    cut = scales.clipped["model.layers.3.self_attn.q_proj.weight"]
    assert 0.04 < cut <= 0.05  # one in twenty, less what shares a bucket with the limit
    assert np.array_equal(cut, scales.clipped["model.layers.3.self_attn.v_proj.weight"])
    saturation = describe(scales)["saturation"]
    experts = sum(v.size for v in scales.inputs.values() if v.ndim)
    assert saturation["inputs"] == len(scales.caches) + experts + sum(not v.ndim for v in scales.inputs.values())
    assert saturation["clipped"] > len(scales.caches)
    assert saturation["worst"][0]["beyond"] > 1
    assert any("clip" in line and "--calib-method max" in line for line in scales.facts.warnings)


def test_an_expert_without_tokens_takes_its_layers_largest_and_is_reported(tiny: Tiny, calibrated: Calibrate) -> None:
    scales = calibrated(tiny("gpt-oss"), random_samples(2))
    counts = scales.expert_tokens["model.layers.0.mlp.experts"]
    unseen = np.flatnonzero(counts == 0)
    assert counts.sum() == 2 * 2
    assert len(unseen)
    for weight in ("gate_up_proj", "down_proj"):
        ranges = scales.inputs[f"model.layers.0.mlp.experts.{weight}"]
        assert np.all(ranges[unseen] == ranges[counts > 0].max())
    never = sum(int(np.sum(counts == 0)) for counts in scales.expert_tokens.values())
    (warning,) = (line for line in scales.facts.warnings if "experts" in line)
    assert f"{never} of 42 experts saw no tokens and use their layer's largest range" in warning
    assert f"model.layers.0.mlp.experts {unseen[0]} (0)" in warning
    report = describe(scales)["experts"]
    assert (report["unseen"], len(report["seldom"])) == (never, 42)  # four tokens rarely reach all of them


def test_token_ids_out_of_range_are_refused(tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(4)
    shifted = type(samples).of("shifted", [[each + 95 for each in samples.ids[0]]])
    with pytest.raises(UsageError, match="token ids that are not in the model's vocabulary"):
        calibrated(tiny("qwen3"), shifted)


def test_activations_that_are_not_finite_are_refused(tiny: Tiny, calibrated: Calibrate, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny("qwen3")
    tensors = load_file(source.target / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"] *= 1e38
    tensors["model.layers.2.mlp.gate_proj.weight"] *= 1e38
    target = tmp_path / "huge"
    target.mkdir()
    (target / "config.json").write_bytes((source.target / "config.json").read_bytes())
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(BuildError, match=r"model\.layers\.2\.mlp\.down_proj\.weight has NaN or infinite values"):
        calibrated(Pair(target, source.head), random_samples(8))


class Residents:
    """A ``Progress`` that looks, sample by sample, at how many bytes of parameters are in memory."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        with uncounted():
            yield lambda _: self.bytes.append(resident_bytes())


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_one_layers_weights_are_in_memory_at_a_time(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    residents = Residents()
    calibrated(tiny(family), random_samples(6, 5), progress=residents)
    layers = [0] * 7
    for name, shape in Checkpoint.open(tiny(family).target).shapes.items():
        if name.startswith("model.layers."):
            layers[int(name.split(".")[2])] += 4 * int(np.prod(shape))
    assert residents.bytes == [each for each in layers for _ in range(2)]


@pytest.mark.parametrize(("smallest", "threads"), [(10**6, 1), (0, 2)])
def test_a_small_model_is_computed_on_one_thread(
    tiny: Tiny,
    calibrated: Calibrate,
    monkeypatch: pytest.MonkeyPatch,
    smallest: int,
    threads: int,
) -> None:
    """Two threads of a tiny model wait for each other, on a busy machine most of the time."""
    used: set[int] = set()
    real = Layerwise.run

    def run(self: Layerwise, *arguments: Any) -> torch.Tensor:
        used.add(torch.get_num_threads())
        return real(self, *arguments)

    monkeypatch.setattr(Layerwise, "run", run)
    monkeypatch.setattr(import_module("peagle.compiler.precision.calibration.calibrate"), "_SMALL", smallest)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        calibrated(tiny("qwen3"), random_samples(6))
        assert (used, torch.get_num_threads()) == ({threads}, 2)
    finally:
        torch.set_num_threads(before)
