"""Every family in every recipe on every backend of this machine: builds, declared types, lossless drafts.

Plans are built ahead of time and not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.pipeline.assemble_engine import BuildResult
from peagle.compiler.pipeline.build import build
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.request.verb_options import BUILD
from peagle.engines import Engine, SamplingParams
from peagle.plugins.cpu.compile import find_compilers
from peagle.plugins.errors import EnvironmentProblem
from tests.fixtures.commands import Run
from tests.models import BLOCKED, CONFIGS, Pair, make_pair

E4M3, INT8, INT4, FP16, FP32 = "float8e4m3fn", "int8", "int4", "float16", "float32"
TEXTS = [text * 20 for text in ("def gcd(a, b):", "while b: a, b = b, a % b", "return a")]  # bytes are tokens
ORT, RTX = "onnxruntime", "tensorrt-rtx"
MODELS = (*CONFIGS, "demo")  # widths of the tiny ones are of whole blocks, that of the demo's MLP is not
SPARSE = ("qwen3-moe", "gpt-oss", "gemma-4-moe")
FIRST = "layers.0."
PROMPTS = ("def gcd(a, b):", "aaaa", "return [x for x in y]")
ORT_MATRIX = [(model, precision) for model in MODELS for precision in ("fp8", "int8", "int4", "mxfp8")]
RTX_MATRIX = [(model, precision) for model in MODELS for precision in ("fp8", "int8", "int4")]


class Types(NamedTuple):
    """How a recipe stores weights, and what it multiplies those of linears and those of routed experts in."""

    stored: str
    linears: str
    experts: str


EXPECTED = {
    (ORT, "fp8"): Types(E4M3, FP32, FP32),  # emulated
    (ORT, "mxfp8"): Types(E4M3, FP32, FP32),
    (ORT, "int8"): Types(INT8, INT8, INT8),
    (ORT, "int4"): Types(INT4, INT8, INT8),
    (RTX, "fp8"): Types(E4M3, E4M3, E4M3),
    (RTX, "int8"): Types(INT8, INT8, INT8),
    (RTX, "int4"): Types(INT4, FP16, FP16),
}

WIDE_NAME = {FP32: "fp32", FP16: "fp16", "bfloat16": "bf16"}
# What an export's graphs multiply linears and routed experts in. TensorRT's own layer of experts has FP8 alone.
EXPORTED = {
    ("tensorrt", "fp8"): (E4M3, E4M3), ("tensorrt", "int8"): (INT8, INT8), ("tensorrt", "int4"): (FP16, FP16),
    ("tensorrt", "mxfp8"): (E4M3, FP16), ("tensorrt-sm100", "fp8"): (E4M3, E4M3),
    ("tensorrt-sm100", "int8"): (INT8, FP16), ("tensorrt-sm100", "int4"): (FP16, FP16),
    ("tensorrt-sm100", "mxfp8"): (E4M3, FP16),
}  # fmt: skip

needs_rtx = pytest.mark.skipif(not inspect_machine().has(RTX), reason="TensorRT-RTX is not installed")
Models = Callable[[str], tuple[str, str | None]]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pairs are."""
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def models(where: Path) -> Models:
    """A target and its drafter, as a build is told of them."""

    @cache
    def made(model: str) -> tuple[str, str | None]:
        if model == "demo":
            return "demo", None
        pair: Pair = make_pair(where / model, model, sizes=BLOCKED)
        return str(pair.target), str(pair.head)

    return made


@pytest.fixture(scope="module")
def texts(where: Path) -> Path:
    path = where / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def made(models: Models, texts: Path, tmp_path: Path) -> Callable[..., BuildResult]:
    """Builds a model in a recipe, calibrated with few samples where it has to be."""

    def run(
        model: str, precision: str, backend: str, overrides: PrecisionOptions | None = None, lowering: str | None = None
    ) -> BuildResult:
        target, draft = models(model)
        tensorrt = backend == RTX
        asked = replace(overrides or PrecisionOptions(), name=precision)
        request = BUILD.request(
            model=target, out=tmp_path / "engine", draft=draft, backend=backend, lowering=lowering, max_seq_len=64,
            num_speculative_tokens=3, gpus=("sm_120",) if tensorrt else (), max_batch_size=2 if tensorrt else None,
        )  # fmt: skip
        ranges = _ranges(texts, precision, asked, backend, lowering)
        return build(replace(request, precision=asked, calibration=ranges))

    return run


def _ranges(
    texts: Path, precision: str, overrides: PrecisionOptions, backend: str, lowering: str | None
) -> CalibrationOptions:
    rounded = {"fp8", "int8"} if backend == RTX else {"fp8"}  # with scales that were measured before
    if backend == ORT and lowering is None and _has_compiler():  # for our kernels, by what is measured before
        rounded |= {"int4"}
    return CalibrationOptions(data=texts if {precision, overrides.lm_head, overrides.kv_cache} & rounded else None)


def _has_compiler() -> bool:
    try:
        return bool(find_compilers())
    except EnvironmentProblem:
        return False


def check_types(result: BuildResult, expected: Types, wide: str, *, sparse: bool, by: str) -> None:
    """Every weight that the recipe narrows is what it should be, and every other one is wide."""
    record, emulated = result.report["precision"]["target"], expected.stored == E4M3 and by == "graph"
    assert (record["share"], record["stored_share"], record["accepted_share"]) == (0 if emulated else 1, 1, 1)
    rows = result.report["matmuls"]["target"]["list"]
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        found.setdefault(row.get("role", ""), set()).add((row["stored"], row["computed"]))
    routed = {"experts": {(expected.stored, expected.experts)}} if sparse else {}
    assert found.pop("mlp", None) in (None, {(expected.stored, expected.linears)})
    has_kernels = by == "graph" and expected.linears == INT8
    assert not has_kernels or found.pop("lm_head") == {(INT8, INT8)}, "beside integers, tied or not"
    others = [found.pop(role) for role in ("lm_head", "router", "other", "") if role in found]
    assert others or has_kernels
    assert all(each == {(wide, wide)} for each in others)
    assert found == {"attention": {(expected.stored, expected.linears)}} | routed
    assert {row["by"] for row in rows} == {by}
    assert not any(row["unpacked"] for row in rows)
    told = any("routed experts are stored" in note for note in result.report["warnings"])
    assert told == (sparse and expected.experts == wide and record["recipe"]["expert_activations"] == WIDE_NAME[wide])


def check_decoding(result: BuildResult) -> None:
    """Drafts change nothing, to the token."""
    engine, params = Engine.load(result.path), SamplingParams(max_tokens=24, ignore_eos=True)
    plain, drafted = (engine.generate(list(PROMPTS), params, num_speculative_tokens=k) for k in (0, 3))
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
    assert all(each.acceptance.drafted > 0 for each in drafted)


def _slow(matrix: list[tuple[str, str]], *cheap: tuple[str, str]) -> list[Any]:
    return [pytest.param(*each, marks=() if each in cheap else pytest.mark.slow) for each in matrix]


@pytest.mark.parametrize(("model", "precision"), _slow(ORT_MATRIX, ("demo", "int4")))
def test_onnx_runtime_takes_every_family_in_every_recipe(
    model: str, precision: str, made: Callable[..., BuildResult]
) -> None:
    result = made(model, precision, ORT)
    assert result.manifest.evidence == (), "what was verified is the pair in fp32"
    check_types(result, EXPECTED[ORT, precision], FP32, sparse=model in SPARSE, by="graph")
    check_decoding(result)
    emulated = [note for note in result.report["warnings"] if "is emulated:" in note]
    assert bool(emulated) == ("fp8" in precision)


@needs_rtx
@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), RTX_MATRIX)
def test_rtx_builds_plans_of_every_family_and_supported_recipe(
    model: str, precision: str, made: Callable[..., BuildResult]
) -> None:
    result = made(model, precision, RTX)
    wide = "bfloat16" if model == "demo" else FP16
    expected = Types(*(wide if kind == FP16 else kind for kind in EXPECTED[RTX, precision]))
    check_types(result, expected, wide, sparse=model in SPARSE, by="plan")
    (drafter,) = result.report["matmuls"]["drafter"]["types"]
    assert (drafter["stored"], drafter["computed"]) == (wide, wide)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3", "qwen3-moe", "gpt-oss"])
@pytest.mark.parametrize("precision", ["fp8", "int8", "int4", "mxfp8"])
def test_standard_onnx_runs_every_recipe_too(model: str, precision: str, made: Callable[..., BuildResult]) -> None:
    result, expected = made(model, precision, ORT, lowering="std"), EXPECTED[ORT, precision]
    if precision in ("int8", "int4"):  # no kernels of ONNX Runtime
        expected = Types(expected.stored, FP32, FP32)
        assert result.manifest.precision["activations"] == "fp32"
    check_types(result, expected, FP32, sparse=model in SPARSE, by="graph")
    check_decoding(result)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [ORT, pytest.param(RTX, marks=needs_rtx)])
@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_head_and_drafter_can_be_quantized_separately(
    backend: str, kind: str, made: Callable[..., BuildResult]
) -> None:
    """FP8 is no type of a drafter for TensorRT."""
    drafter = None if (backend, kind) == (RTX, "fp8") else kind
    result = made(
        "qwen3",
        "fp16" if backend == RTX else "fp32",
        backend,
        overrides=PrecisionOptions(lm_head=kind, drafter=drafter),
    )
    expected = EXPECTED[backend, kind]
    shares = "stored_share" if (backend, kind) == (ORT, "fp8") else "share"
    assert {half: record[shares] for half, record in result.report["precision"].items()} == {
        half: 1 for half in ("target", "drafter") if half == "target" or drafter
    }
    found = {
        role: {(row["stored"], row["computed"], row["unpacked"]) for row in table["list"] if row.get("role") == role}
        for role, table in zip(("lm_head", "drafter"), result.report["matmuls"].values(), strict=True)
    }
    computed = FP16 if backend == RTX else FP32 if kind == "fp8" else INT8  # whose kernels round what they are given
    assert found["lm_head"] == {(expected.stored, expected.linears, False)}
    assert found["drafter"] == ({(expected.stored, computed, False)} if drafter else set())
    if backend == ORT:
        check_decoding(result)


@needs_rtx
@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), [("qwen3", "fp16"), ("gemma-4", "fp8"), ("gpt-oss", "int4")])
def test_fp8_caches_combine_with_any_recipe(model: str, precision: str, made: Callable[..., BuildResult]) -> None:
    result = made(model, precision, RTX, overrides=PrecisionOptions(kv_cache="fp8"))
    plan = result.manifest.target.plan
    assert plan is not None
    caches = {tensor.name: tensor.dtype for tensor in plan.tensors if "_cache." in tensor.name}
    assert set(caches.values()) == {E4M3}
    assert result.manifest.precision["kv_cache"] == "fp8"
    assert {row["by"] for row in result.report["matmuls"]["target"]["list"]} == {"plan"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", [ORT, pytest.param(RTX, marks=needs_rtx)])
@pytest.mark.parametrize(("model", "precision"), [("gemma-4", "int4"), ("qwen3-moe", "int8"), ("gpt-oss", "fp8")])
def test_excluded_parts_are_unquantized_in_the_build(
    model: str, precision: str, backend: str, made: Callable[..., BuildResult]
) -> None:
    result = made(model, precision, backend, overrides=PrecisionOptions(exclude=(f"{FIRST}*",)))
    rows = {row["weight"]: row["stored"] for row in result.report["matmuls"]["target"]["list"]}
    first = {name for name in rows if FIRST in name}
    assert first
    assert {rows[name] for name in first} == {FP16 if backend == RTX else FP32}
    rest = {kind for name, kind in rows.items() if name not in first and ("_proj" in name or "qkv" in name)}
    assert rest == {EXPECTED[backend, precision].stored}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp8", "int8", "int4", "mxfp8"])
@pytest.mark.parametrize("lowering", ["ort", "tensorrt", "tensorrt-sm100"])
def test_graphs_of_every_recipe_can_be_kept(
    lowering: str, precision: str, models: Models, texts: Path, cli: Run, tmp_path: Path
) -> None:
    """TensorRT for data centres takes MXFP8: its graphs are made here, its plans are not."""
    target, draft = models("qwen3-moe")
    calibrated = precision == "fp8" or (precision == "int8" and lowering != "ort")
    samples = ("--calib-data", texts) if calibrated else ()
    linears, experts = EXPORTED.get((lowering, precision), EXPECTED[ORT, precision][1:])
    falls_short = lowering != "ort" and precision != "int4" and experts == FP16
    arguments = (
        "export", target, "--draft", draft, "--for", lowering, "--precision", precision, "--max-seq-len", 64,
        "--out", tmp_path / "out", "--json", *samples,
    )  # fmt: skip
    if falls_short:
        refused = cli(*arguments)
        assert refused.code == 5
        assert "--allow-wide experts" in refused.err
    done = cli(*arguments, *(("--allow-wide", "experts") if falls_short else ()))
    assert done.code == 0, done.err
    record = json.loads(done.out)["precision"]["target"]
    assert record["stored_share"] == record["accepted_share"] == 1
    rows = [row for row in record["matmuls"] if row["narrow"]]
    inside = [row for row in rows if row["role"] != "lm_head"]  # the LM head has a type of its own
    assert {row["stored"] for row in inside} == {EXPECTED[ORT, precision].stored}
    assert {row["computed"] for row in rows if row["role"] == "experts"} == {experts}
    assert {row["computed"] for row in rows if row["role"] != "experts"} == {linears}
    multiplied = sum(row["numbers"] for row in rows if row["computed"] == row["stored"] or precision == "int4")
    assert record["share"] == pytest.approx(multiplied / sum(row["numbers"] for row in rows), abs=0.02)
    assert bool(record["shortfall"]) == falls_short
