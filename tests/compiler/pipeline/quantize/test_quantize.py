"""FP8 checkpoints: quantized weights match their definition, everything else is unchanged, and all is readable."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.checkpoints.weight_files import INDEX
from peagle.compiler.console.progress import Advance, Quiet
from peagle.compiler.pipeline.quantize import quantize
from peagle.compiler.pipeline.quantize.select_matrices import make_worklist
from peagle.compiler.pipeline.quantize.write_shards import write
from peagle.compiler.precision.calibration.saved_ranges import Facts, Scales
from peagle.compiler.precision.rounding import in_order
from peagle.compiler.request.verb_options import QUANTIZE
from peagle.compiler.store.destination import QUANTIZED
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError, UsageError
from peagle.plugins.number_types import to_e4m3
from tests.fixtures.commands import Run
from tests.models import CONFIGS, Pair, make_pair

FAMILIES = ("llama", "qwen3", "qwen3-moe", "gemma-4")
# Each family in one type, and each type with and without experts.
QUICK = [(torch.float32, "qwen3-moe"), (torch.float32, "llama"), (torch.bfloat16, "qwen3"), (torch.bfloat16, "gemma-4")]
Tiny = Callable[[str], Pair]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A random target of a family, made once."""
    made: dict[str, Pair] = {}

    def get(family: str) -> Pair:
        if family not in made:
            made[family] = make_pair(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get


def some_scales(target: Target) -> Scales:
    """Ranges that no two inputs share."""
    needed = target.skeleton.range_shapes
    numbers = iter(np.linspace(1, 9, 100_000, dtype=np.float32))

    def draw(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.array([next(numbers) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)

    return Scales(
        {name: draw(shape) for name, shape in needed.inputs.items()},
        {name: draw(shape) for name, shape in needed.caches.items()},
        {name: np.ones(shape, np.int64) for name, shape in needed.experts.items()},
        Facts("m", "A", target.checkpoint.fingerprint, {"name": "max"}, "float32", "d", "s", 2, 20, {"torch": "2"}),
    )


def quantized(target: Path, out: Path, **options: Any) -> Path:
    """``target`` in FP8, with ``some_scales``."""
    scales = out.with_name(f"{out.name}-scales")
    some_scales(Target.open(target)).save(scales)
    return quantize(QUANTIZE.request(model=str(target), out=out, scales=scales, **options)).path


def stored(folder: Path) -> Tensors:
    """Every tensor of a checkpoint, as the safetensors library reads it."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bits, to be compared."""
    return tensor.reshape(-1).view(torch.uint8)


def rounded(weight: torch.Tensor, amax: torch.Tensor) -> np.ndarray[Any, Any]:
    """Quantized and dequantized, as ml_dtypes does it."""
    scale = np.float32(float(amax) / 448)
    return (weight.float().numpy() / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def expert_partner(name: str) -> str:
    """The other matrix of an expert's gate and up."""
    return name.replace("gate_proj", "up_proj") if "gate_proj" in name else name.replace("up_proj", "gate_proj")


# ------------------------------------------------------------------------------------------- what is written


def test_a_quantized_checkpoint_is_inspected(cli: Run, tiny: Tiny, tmp_path: Path) -> None:
    out = quantized(tiny("qwen3").target, tmp_path / "out", kv_cache_dtype="fp8")
    report = json.loads((out / QUANTIZED).read_text())
    said = cli("inspect", out).out
    assert all(
        text in said for text in ("modelopt-fp8", f"{report['fp8_matrices']} matrices", "20 tokens in 2 samples")
    )
    content = json.loads(cli("inspect", out, "--json").out)
    assert content["checkpoint"] == str(out)
    assert content["files"]["model.safetensors"] == (out / "model.safetensors").stat().st_size
    (out / QUANTIZED).write_text(json.dumps(report | {"calibration": 3}))
    assert cli("inspect", out).code == 3
    (out / QUANTIZED).write_text(json.dumps(report))
    os.truncate(out / "model.safetensors", 100)
    assert cli("inspect", out).code == 5


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        pytest.param(dtype, family, marks=[] if (dtype, family) in QUICK else pytest.mark.slow)
        for dtype in (torch.float32, torch.bfloat16)
        for family in FAMILIES
    ],
)
def test_matrices_are_quantized_and_other_tensors_unchanged(
    dtype: torch.dtype, family: str, tiny: Tiny, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(tiny(family).target, tmp_path / "target"))
    source = {name: tensor.to(dtype) for name, tensor in stored(target).items()}
    save_file(source, target / "model.safetensors", {"format": "pt"})
    out = quantized(target, tmp_path / "out")
    raw, back = stored(out), Checkpoint.open(out)
    assert back.format == "modelopt-fp8"
    assert back.shapes == Checkpoint.open(target).shapes
    scales, narrow = some_scales(Target.open(target)), make_worklist(Target.open(target)).matrices
    assert len(narrow) == expected_matrices(family)
    for name, weight in source.items():
        if name not in narrow:
            assert raw[name].dtype == dtype
            assert torch.equal(as_bytes(raw[name]), as_bytes(weight)), name
            continue
        partner = source[expert_partner(name)] if ".experts." in name and "down" not in name else weight
        amax = torch.maximum(weight.abs().amax(), partner.abs().amax())
        assert raw[name].dtype == torch.float8_e4m3fn
        np.testing.assert_array_equal(back.read(name), rounded(weight, amax), name)
        assert torch.equal(raw[f"{name}_scale"], amax.float() / 448)
        entered = torch.tensor(narrow[name].input_amax(scales), dtype=torch.float32) / 448
        assert torch.equal(raw[name.replace("weight", "input_scale")], entered)
    companions = {f"{n}_scale" for n in narrow} | {n.replace("weight", "input_scale") for n in narrow}
    assert raw.keys() == source.keys() | companions


def expected_matrices(family: str) -> int:
    """Seven a layer: four of attention, three of the MLP."""
    if family == "qwen3-moe":
        return 7 * 4 + 3 + 6 * 6 * 3  # one layer is dense, the others have six experts
    return 7 * 7 - (4 if family == "gemma-4" else 0)  # its four full layers use keys as values


def test_each_expert_uses_its_own_input_range(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3-moe").target
    raw, scales = stored(quantized(target, tmp_path / "out")), some_scales(Target.open(target))
    for kind, graph in (("gate_proj", "gate_up_proj"), ("up_proj", "gate_up_proj"), ("down_proj", "down_proj")):
        ranges = scales.inputs[f"model.layers.1.mlp.experts.{graph}"]
        found = [float(raw[f"model.layers.1.mlp.experts.{e}.{kind}.input_scale"]) for e in range(6)]
        np.testing.assert_array_equal(np.float32(found), ranges / np.float32(448))


def test_zero_matrix_stays_zero(tiny: Tiny, tmp_path: Path) -> None:
    target = Path(shutil.copytree(tiny("llama").target, tmp_path / "target"))
    tensors = stored(target)
    tensors["model.layers.1.mlp.up_proj.weight"].zero_()
    save_file(tensors, target / "model.safetensors")
    assert not Checkpoint.open(quantized(target, tmp_path / "out")).read("model.layers.1.mlp.up_proj.weight").any()


def test_weights_that_are_not_finite_are_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    target = Path(shutil.copytree(tiny("llama").target, tmp_path / "target"))
    tensors = stored(target)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.inf
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(BuildError, match=r"model\.layers\.1\.mlp\.up_proj\.weight has 0 NaN and 1 Inf"):
        quantized(target, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kv_cache_scales_are_written_on_request(tiny: Tiny, tmp_path: Path) -> None:
    for family, inside in (("qwen3", "model."), ("gemma-4", "model.language_model.")):
        target = tiny(family).target
        out = quantized(target, tmp_path / family, kv_cache_dtype="fp8")
        raw, caches = stored(out), some_scales(Target.open(target)).caches
        for layer in range(7):
            attention = f"{inside}layers.{layer}.self_attn"
            for name, scale in (("k_cache", "k_proj.k_scale"), ("v_cache", "v_proj.v_scale")):
                assert float(raw[f"{attention}.{scale}"]) == caches[f"{name}.{layer}"] / np.float32(448)
        assert json.loads((out / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"
        assert Checkpoint.open(out).format == "modelopt-fp8"


def test_configuration_records_the_quantization(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("qwen3-moe").target
    out = quantized(target, tmp_path / "out", exclude=("layers.1.*", "*.down_proj"))
    described = json.loads((out / "hf_quant_config.json").read_text())
    config = json.loads((out / "config.json").read_text())
    report = json.loads((out / QUANTIZED).read_text())
    assert "model.layers.0.mlp.experts" in report["warnings"][0], "down_proj is wide, gate and up are not"
    assert described["producer"]["name"] == "peagle-compile"
    assert described["quantization"]["quant_algo"] == "FP8"
    assert described["quantization"]["kv_cache_quant_algo"] is None
    wide = described["quantization"]["exclude_modules"]
    assert {"lm_head", "model.layers.1*", "model.layers.0.mlp.gate", "model.layers.3.mlp.down_proj"} <= set(wide)
    entry = config.pop("quantization_config")
    assert (entry["quant_method"], entry["quant_algo"], entry["ignore"]) == ("modelopt", "FP8", wide)
    assert config == json.loads((target / "config.json").read_text())
    assert (out / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    assert (out / "generation_config.json").read_bytes() == (target / "generation_config.json").read_bytes()
    raw = stored(out)
    assert raw["model.layers.1.self_attn.q_proj.weight"].dtype == torch.float32
    assert raw["model.layers.0.mlp.experts.2.down_proj.weight"].dtype == torch.float32
    assert raw["model.layers.0.mlp.experts.2.up_proj.weight"].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("family", "patterns", "torn"),
    [
        ("qwen3", ("layers.1.*", "*.down_proj", "*.o_proj"), ""),
        ("qwen3", ("layers.2.mlp.up_proj",), "model.layers.2.mlp.gate_proj/up_proj"),
        ("llama", ("layers.0.self_attn.v_proj",), "model.layers.0.self_attn.q_proj/k_proj/v_proj"),
        ("qwen3-moe", ("*.experts.*",), ""),
        ("qwen3-moe", ("layers.0.mlp.experts.3",), "model.layers.0.mlp.experts"),
        ("gpt-oss", ("layers.0.mlp.experts.down_proj",), "model.layers.0.mlp.experts"),
    ],
)
def test_layouts_unsupported_by_other_runtimes_are_reported(
    family: str, patterns: tuple[str, ...], torn: str, tiny: Tiny
) -> None:
    warnings = make_worklist(Target.open(tiny(family).target), patterns).warnings
    assert [torn in warning for warning in warnings] == [True] * bool(torn)


def test_experts_in_a_layout_that_modelopt_does_not_have_are_refused(tiny: Tiny) -> None:
    """Gate and up of Gemma-4's experts are stored in one tensor, one below the other."""
    target = Target.open(tiny("gemma-4-moe").target)
    with pytest.raises(BuildError, match=r"14 tensors of .* cannot be written in ModelOpt's FP8") as refused:
        make_worklist(target)
    assert "--exclude '*.experts.*'" in refused.value.fix
    rest = make_worklist(target, ("*.experts.*",)).matrices
    assert len(rest) == expected_matrices("gemma-4")
    assert not any("expert" in name or "router" in name for name in rest)


def test_shard_layout_is_preserved(tiny: Tiny, tmp_path: Path) -> None:
    whole = quantized(tiny("qwen3-moe").target, tmp_path / "whole")
    target = Path(shutil.copytree(tiny("qwen3-moe").target, tmp_path / "target"))
    tensors = stored(target)
    (target / "model.safetensors").unlink()
    files = [f"model-{i:05}-of-00003.safetensors" for i in range(3)]
    placed = {name: files[i % 3] for i, name in enumerate(sorted(tensors))}  # gate and up are separate
    for file in files:
        save_file({name: tensors[name] for name in tensors if placed[name] == file}, target / file)
    (target / INDEX).write_text(json.dumps({"weight_map": placed}))
    out = quantized(target, tmp_path / "out", kv_cache_dtype="fp8")
    index = json.loads((out / INDEX).read_text())
    assert {name: index["weight_map"][name] for name in tensors} == placed
    found = {name: file for file in files for name in load_file(out / file)}
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in stored(out).values())
    raw = stored(out)
    for name, tensor in stored(whole).items():
        assert torch.equal(as_bytes(tensor), as_bytes(raw[name])), name


def test_no_tensor_is_loaded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of 7.7 MB, wide and narrow, in pieces of 64 kB, with two threads: less than 2 MB is ever held."""
    monkeypatch.setattr(in_order, "processors", lambda: 2)
    config = CONFIGS["llama"] | {"num_hidden_layers": 1, "intermediate_size": 40_000, "vocab_size": 40_000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({n: torch.ones(shape) for n, shape in Skeleton(config).shapes.items()}, tmp_path / "model.safetensors")
    target = Target.open(tmp_path)
    work, scales = make_worklist(target), some_scales(target)
    (tmp_path / "out").mkdir()
    to_e4m3(np.ones(1, np.float32))  # creates the table that it stores
    tracemalloc.start()
    try:
        write(tmp_path / "out", target.checkpoint, work, scales, Quiet(), piece=1 << 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


# ---------------------------------------------------------------------------------------------------- refusals


def test_stacked_experts_can_stay_unquantized(tiny: Tiny, tmp_path: Path) -> None:
    target = tiny("gpt-oss").target
    raw = stored(quantized(target, tmp_path / "out", exclude=("*.experts.*",)))
    assert sum(tensor.dtype == torch.float8_e4m3fn for tensor in raw.values()) == 7 * 4
    assert raw["model.layers.0.mlp.experts.down_proj"].dtype == torch.float32


@pytest.mark.parametrize("patterns", [("layer.0.*",), ("lm_head",), ("layers.0.*", "*.gait_proj")])
def test_pattern_without_a_match_is_rejected(patterns: tuple[str, ...], tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="matches no matrix that would be quantized"):
        quantized(tiny("qwen3").target, tmp_path / "out", exclude=patterns)


def test_a_quantized_checkpoint_is_not_quantized_again(tiny: Tiny, tmp_path: Path) -> None:
    once = quantized(tiny("qwen3").target, tmp_path / "once")
    with pytest.raises(BuildError, match=r"already quantized \(modelopt-fp8\)"):
        quantized(once, tmp_path / "twice")


def test_ranges_of_other_weights_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    some_scales(Target.open(tiny("qwen3").target)).save(tmp_path / "scales")
    target = Path(shutil.copytree(tiny("qwen3").target, tmp_path / "target"))
    tensors = stored(target)
    tensors["model.norm.weight"] += 1
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(BuildError, match="not to these weights"):
        quantize(QUANTIZE.request(model=str(target), out=tmp_path / "out", scales=tmp_path / "scales"))


@pytest.mark.parametrize(("value", "said"), [(0, "zero"), (np.nan, "NaN"), (np.inf, "infinite"), (-1, "negative")])
def test_unused_ranges_are_rejected_by_name(value: float, said: str, cli: Run, pair: Pair, tmp_path: Path) -> None:
    scales = some_scales(Target.open(pair.target))
    name = "model.layers.2.mlp.up_proj.weight"
    inputs = dict(scales.inputs) | {name: np.float32(value).reshape(())}
    dataclasses.replace(scales, inputs=inputs).save(tmp_path / "bad")
    missing = {key: value for key, value in scales.inputs.items() if key != name}
    dataclasses.replace(scales, inputs=missing).save(tmp_path / "less")
    for folder, says in (("bad", f"{name} is {said}"), ("less", f"{name} is missing")):
        done = cli("quantize", pair.target, "--out", tmp_path / "out", "--scales", tmp_path / folder)
        assert (done.code, says in done.err) == (5, True), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--calib-method", "entropy"), 2, "max, percentile, mse"),
        (("--kv-cache-dtype", "int8"), 2, "quantize does not support --kv-cache-dtype int8"),
        (("--scales", "x", "--calib-method", "max"), 2, "--scales cannot be combined with --calib-method"),
        (("--calib-samples", 0), 2, "--calib-samples"),
        (("--calib-device", "tpu"), 2, "use one of cpu, cuda, cuda:N"),
        (("--scales", "absent"), 2, "--scales absent does not exist"),
        (("--calib-data", "absent.jsonl"), 2, "--calib-data absent.jsonl does not exist"),
        (("--exclude", "*"), 2, "leaves nothing to quantize"),
    ],
)
def test_invalid_request_is_rejected(
    cli: Run, pair: Pair, tmp_path: Path, arguments: tuple[object, ...], code: int, says: str
) -> None:
    done = cli("quantize", pair.target, "--out", tmp_path / "out", *arguments)
    assert (done.code, says in done.err) == (code, True), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no sample"),
        ("{", "line 1 is not a calibration sample"),
        ('{"input_ids": [1, 96]}', "token id 96 is not in the model's vocabulary"),
        ('{"input_ids": [1, 2]}', "too little text for calibration"),
    ],
)
def test_bad_calibration_data_is_named(cli: Run, pair: Pair, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "data.jsonl").write_text(content)
    done = cli("quantize", pair.target, "--out", tmp_path / "out", "--calib-data", tmp_path / "data.jsonl")
    assert (done.code, says in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()


def test_foreign_folder_is_kept_and_own_folder_is_replaced(cli: Run, tiny: Tiny, tmp_path: Path) -> None:
    out = quantized(tiny("qwen3").target, tmp_path / "out")
    before = (out / "model.safetensors").read_bytes()
    quantized(tiny("qwen3").target, tmp_path / "out", exclude=("layers.0.*",))
    assert (out / "model.safetensors").read_bytes() != before
    (out / QUANTIZED).unlink()
    done = cli("quantize", tiny("qwen3").target, "--out", out)
    assert done.code == 2
    assert "was not replaced" in done.err


# ------------------------------------------------------------------------------------------ interruptions, resuming


class Interrupting:
    """A ``Progress`` that stands for Ctrl-C in the middle of one step."""

    def __init__(self, step: str) -> None:
        self._step = step

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        calls = iter(range(10))

        def advance(_: int) -> None:
            if self._step in text and next(calls) == 3:
                raise KeyboardInterrupt

        yield advance


def samples(path: Path) -> Path:
    generator = np.random.default_rng(0)
    lines = [json.dumps({"input_ids": generator.integers(2, 96, 40).tolist()}) for _ in range(8)]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("step", ["calibrate", "write the weights"])
def test_interruption_leaves_nothing_and_next_run_is_identical(
    step: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    options = QUANTIZE.request(
        model=str(tiny("qwen3").target), out=work / "out", calib_data=samples(tmp_path / "data.jsonl")
    )
    with pytest.raises(KeyboardInterrupt):
        quantize(options, Interrupting(step))
    assert not any(work.iterdir())
    quantize(options)
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "other"))
    quantize(replace(options, out=work / "undisturbed"))
    for name in ("model.safetensors", "calibration/scales.safetensors", "config.json"):
        assert (work / "out" / name).read_bytes() == (work / "undisturbed" / name).read_bytes()


# --------------------------------------------------------------------------------------------------- end to end


def test_saved_ranges_reproduce_the_checkpoint(cli: Run, pair: Pair, tmp_path: Path) -> None:
    data = samples(tmp_path / "data.jsonl")
    done = cli(
        "quantize", pair.target, "--out", tmp_path / "a", "--calib-data", data, "--calib-method", "mse", "--json"
    )
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["fp8_matrices"] == 49
    assert report["calibration"]["method"]["name"] == "mse"
    again = cli("quantize", pair.target, "--out", tmp_path / "b", "--scales", tmp_path / "a" / "calibration")
    assert again.code == 0, again.err
    assert "49 matrices" in again.out
    for name in ("model.safetensors", "config.json", "hf_quant_config.json", "calibration/scales.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.slow
def test_a_build_takes_the_result(cli: Run, pair: Pair, tmp_path: Path) -> None:
    out = quantized(pair.target, tmp_path / "fp8")
    done = cli("build", out, "--draft", pair.head, "--out", tmp_path / "engine", "--num-speculative-tokens", 3,
               "--max-seq-len", 64)  # fmt: skip
    assert done.code == 0, done.err
    ran = cli("run", tmp_path / "engine", "--prompt", "def", "--max-tokens", 8)
    assert ran.code == 0, ran.err
