"""`--precision` and its options, from the command line to running engines: table, graph and report agree."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.pipeline.assemble_engine import BuildResult
from peagle.compiler.pipeline.build import build
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.calibration.obtain_ranges import obtain
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import patterns
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.compiler.verbs.build import _summary
from peagle.engines import Engine, SamplingParams
from peagle.plugins.errors import BuildError, UsageError
from tests.fixtures.commands import Run
from tests.fixtures.stages import cache_with_the_traces
from tests.fp8_pairs import fp8_pair
from tests.models import BLOCKED, Pair, make_pair

E4M3 = "float8e4m3fn"

TEXTS = [text * 20 for text in ("def gcd(a, b):", "while b: a, b = b, a % b", "return a")]  # bytes are tokens


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where calibrated layers are kept between the tests of this file."""
    return tmp_path_factory.mktemp("precisions")


@pytest.fixture(scope="module")
def dense(where: Path) -> Pair:
    return make_pair(where / "dense", "qwen3")


@pytest.fixture(scope="module")
def sparse(where: Path) -> Pair:
    return make_pair(where / "sparse", "qwen3-moe", sizes=BLOCKED)


@pytest.fixture(scope="module")
def texts(where: Path) -> Path:
    path = where / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(scope="module")
def _kept(where: Path) -> str:
    return cache_with_the_traces(where / "cache")


@pytest.fixture(autouse=True)
def _cache(_kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", _kept)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def built(
    pair: Pair,
    out: Path,
    precision: str,
    overrides: PrecisionOptions | None = None,
    ranges: CalibrationOptions | None = None,
) -> BuildResult:
    request = BUILD.request(
        model=str(pair.target), out=out, draft=str(pair.head), backend="onnxruntime", max_seq_len=64,
        num_speculative_tokens=3,
    )  # fmt: skip
    asked = replace(overrides or PrecisionOptions(), name=precision)
    return build(replace(request, precision=asked, calibration=ranges or CalibrationOptions()))


def generated(out: Path) -> tuple[int, ...]:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    return tuple(Engine.load(out).generate(["abc"], params)[0].token_ids)


def stored(result: BuildResult, half: str = "target") -> dict[str, str]:
    """By weight; those that were packed into one product go by a name of all."""
    matmuls = result.report["precision"][half]["matmuls"]
    return {name: each["stored"] for each in matmuls for name in each["weight"].split("+")}


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_integer_weights_take_effect_and_generate(dense: Pair, precision: str, texts: Path, tmp_path: Path) -> None:
    ranges = CalibrationOptions(data=texts) if precision == "int4" else CalibrationOptions()
    result = built(dense, tmp_path / "engine", precision, ranges=ranges)
    assert result.report["precision"]["target"]["share"] == 1
    assert result.report["precision"]["drafter"]["share"] == 1
    assert stored(result)["model.layers.0.self_attn.q_proj.weight"] == precision
    assert set(stored(result, "drafter").values()) == {"int8"}
    table = result.manifest.precision
    assert (table["weights"], table["lm_head"], table["drafter"]) == (precision, "int8", "int8")
    is_calibrated = any(phase["phase"] == "calibrate" for phase in result.report["phases"])
    assert is_calibrated == (precision == "int4")
    engine = Engine.load(tmp_path / "engine")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    for prompt in ([5, 9, 17, 33], [60, 2, 2, 41, 7], [11], [88, 3, 50]):
        plain, drafted = (engine.generate([prompt], params, num_speculative_tokens=k)[0] for k in (0, 3))
        assert plain.token_ids == drafted.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "int4", "fp8"])
def test_routed_experts_take_effect_and_generate(sparse: Pair, precision: str, texts: Path, tmp_path: Path) -> None:
    ranges = CalibrationOptions() if precision == "int8" else CalibrationOptions(data=texts)
    result = built(sparse, tmp_path / "engine", precision, ranges=ranges)
    record = result.report["precision"]["target"]
    assert (record["share"], record["stored_share"]) == (0 if precision == "fp8" else 1, 1), "fp8 is emulated"
    assert result.manifest.precision["experts"] == precision
    assert len(generated(tmp_path / "engine")) == 6


def test_explicit_part_precision_appears_in_table_graphs_and_record(dense: Pair, texts: Path, tmp_path: Path) -> None:
    overrides = PrecisionOptions(lm_head="int8", drafter="int4", exclude=("layers.0.*", "*.down_proj"))
    result = built(dense, tmp_path / "engine", "int4", overrides=overrides, ranges=CalibrationOptions(data=texts))
    target, drafter = stored(result), stored(result, "drafter")
    wide = {name for name, kind in target.items() if kind == "float32"}
    assert wide == {name for name in target if ".layers.0." in name or name.endswith("down_proj.weight")}
    assert {kind for name, kind in target.items() if "lm_head" in name} == {"int8"}
    assert result.report["precision"]["target"]["share"] == 1, "what is excluded does not count"
    assert set(drafter.values()) == {"int4"}
    table = result.manifest.precision
    assert (table["lm_head"], table["drafter"]) == ("int8", "int4")
    assert patterns(table) == overrides.exclude
    calibration = {"calibration": table["calibration"]}
    assert result.report["precision"]["target"]["recipe"] | calibration == dict(table)
    config = json.loads((tmp_path / "engine" / "resolved_config.yaml").read_text())
    assert config["recipe"] == dict(table)
    assert (config["lm_head_precision"], config["draft_precision"]) == ("int8", "int4")
    assert config["exclude"] == ["layers.0.*", "*.down_proj"]
    assert len(generated(tmp_path / "engine")) == 6
    (warning,) = result.report["warnings"]
    assert re.match(r"drafter: 4-bit quantization of \d+ weights without calibration", warning)
    said = _summary(result)
    assert re.search(r"^excluded +layers\.0\.\*, \*\.down_proj$", said, re.M)
    assert re.search(r"^rounding +changed target weights by at most \d+\.\d\d% \(.*\), drafter weights by", said, re.M)
    rows = {row["weight"]: row for row in result.report["matmuls"]["target"]["list"]}
    first = next(row for name, row in rows.items() if ".layers.0." in name and name.endswith("o_proj.weight"))
    assert (first["role"], first["why"]) == ("attention", "excluded by 'layers.0.*'")
    assert "excluded by &#x27;layers.0.*&#x27;" in (tmp_path / "engine" / "build_report.html").read_text()


def test_drafter_precision_does_not_change_the_target(dense: Pair, tmp_path: Path) -> None:
    for drafter, reused in ((None, False), ("fp32", True), ("int4", True)):
        result = built(dense, tmp_path / "engine", "int8", overrides=PrecisionOptions(drafter=drafter))
        steps = {phase["phase"]: phase.get("reused") for phase in result.report["phases"]}
        assert steps["attach target"] or not reused
        assert result.report["precision"]["target"]["recipe"]["drafter"] == (drafter or "int8")


def test_unquantized_target_supports_a_quantized_drafter(dense: Pair, tmp_path: Path) -> None:
    result = built(dense, tmp_path / "engine", "fp32", overrides=PrecisionOptions(drafter="int8"))
    assert set(result.report["precision"]) == {"drafter"}
    assert (result.manifest.precision["weights"], result.manifest.precision["drafter"]) == ("fp32", "int8")


def test_fp8_calibrates_once_with_a_note(dense: Pair, texts: Path, tmp_path: Path, cli: Run) -> None:
    def run(name: str, *more: object) -> Any:
        done = cli(
            "build", dense.target, "--draft", dense.head, "--backend", "onnxruntime", "--precision", "fp8",
            "--max-seq-len", 64, "--num-speculative-tokens", 3, "--calib-data", texts, "--out", tmp_path / name, *more,
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "fp8 is emulated: 0% of the weights are computed in FP8" in done.err
        assert done.out.splitlines()[0].split()[:4] == ["multiplied", "fp8", "is", "emulated:"]
        assert next(iter(json.loads((tmp_path / name / "engine.json").read_text())["precision"])) == "multiplied"
        page = (tmp_path / name / "build_report.html").read_text()
        assert page.index("<strong>fp8 is emulated") < page.index("peagle-compile")
        assert "calibration" not in done.out
        return json.loads((tmp_path / name / "build_report.json").read_text())

    first, second = run("first"), run("second", "--calib-method", "percentile")
    third = run("third")
    assert first["calibration"] == third["calibration"] != second["calibration"]
    assert first["calibration"]["num_samples"] == len(TEXTS)
    assert first["calibration"]["method"]["name"] == "max"
    assert second["calibration"]["method"]["name"] == "percentile"
    assert first["graphs"] == third["graphs"] != second["graphs"]
    record = first["precision"]["target"]
    assert (record["share"], record["stored_share"]) == (0, 1), "nothing is multiplied in what is emulated"
    rows = [row for row in first["matmuls"]["target"]["list"] if row["stored"] == E4M3]
    assert {(row["computed"], row["emulates"]) for row in rows} == {("float32", E4M3)}
    config = json.loads((tmp_path / "second" / "resolved_config.yaml").read_text())
    assert (config["calib_method"], config["calib_data"]) == ("percentile", str(texts))
    assert f"{len(TEXTS)} samples" in config["recipe"]["calibration"]
    assert len(generated(tmp_path / "first")) == 6


def test_resolved_config_records_the_sample_count(dense: Pair, tmp_path: Path, cli: Run) -> None:
    """A later version may measure more or less by default, and the file still repeats the build."""
    ask = ("build", dense.target, "--draft", "none", "--backend", "onnxruntime", "--lowering", "cpu")
    assert cli(*ask, "--precision", "int4", "--out", tmp_path / "engine").code == 0
    config = tmp_path / "engine" / "resolved_config.yaml"
    content = json.loads(config.read_text())
    assert (content["calib_samples"], content["calib_length"]) == (16, 128)
    done = cli("build", "--config", config, "--out", tmp_path / "again")
    assert done.code == 0, done.err
    assert "samples" not in done.err
    reports = [json.loads((tmp_path / name / "build_report.json").read_text()) for name in ("engine", "again")]
    assert reports[0]["graphs"] == reports[1]["graphs"]
    assert reports[0]["calibration"] == reports[1]["calibration"]


def test_engine_keeps_its_ranges_for_other_builds(dense: Pair, texts: Path, tmp_path: Path) -> None:
    first = built(dense, tmp_path / "first", "fp8", ranges=CalibrationOptions(data=texts))
    again = built(
        dense, tmp_path / "again", "fp8", ranges=CalibrationOptions(scales=tmp_path / "first" / "calibration")
    )
    assert first.report["graphs"] == again.report["graphs"]
    assert {"calibration/scales.safetensors", "calibration/scales.json"} <= set(first.manifest.files)


def test_interrupted_calibration_resumes(
    dense: Pair, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("peagle.compiler.precision.calibration.calibrate")
    steps: list[int] = []
    layer, limit = module._layer, 3

    def counted(work: Any, target: Any, states: Any, index: int, *more: Any) -> Any:
        if len(steps) == limit:
            raise KeyboardInterrupt
        steps.append(index)
        return layer(work, target, states, index, *more)

    ranges = CalibrationOptions(data=texts, num_samples=2)
    monkeypatch.setattr(module, "_layer", counted)
    with pytest.raises(KeyboardInterrupt):
        built(dense, tmp_path / "engine", "fp8", ranges=ranges)
    assert not (tmp_path / "engine").exists()
    done, limit = list(steps), 99
    built(dense, tmp_path / "engine", "fp8", ranges=ranges)
    assert steps[len(done) :] == list(range(len(done), 7))


def test_saved_ranges_take_the_place_of_a_calibration(dense: Pair, sparse: Pair, texts: Path, tmp_path: Path) -> None:
    from peagle.compiler.checkpoints.target import Target
    from peagle.compiler.console.progress import Quiet

    found = obtain(CalibrationOptions(data=texts), Target.open(dense.target), StageStore.default(), Quiet())
    found.save(tmp_path / "ranges")
    result = built(dense, tmp_path / "engine", "fp8", ranges=CalibrationOptions(scales=tmp_path / "ranges"))
    assert result.report["calibration"]["samples"] == found.facts.samples
    with pytest.raises(BuildError, match="cannot be used"):
        built(sparse, tmp_path / "other", "fp8", ranges=CalibrationOptions(scales=tmp_path / "ranges"))
    changed = Pair(Path(shutil.copytree(dense.target, tmp_path / "changed")), dense.head)
    weights = changed.target / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BuildError, match="not to these weights"):
        built(changed, tmp_path / "other", "fp8", ranges=CalibrationOptions(scales=tmp_path / "ranges"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("precision", "overrides", "ranges", "says"),
    [
        (
            "int4",
            PrecisionOptions(exclude=("layer.0.*",)),
            CalibrationOptions(),
            "matches no matrix that would be quantized",
        ),
        ("int4", PrecisionOptions(exclude=("*",)), CalibrationOptions(), "leaves nothing to quantize"),
        ("int8", PrecisionOptions(), CalibrationOptions(method="mse"), "nothing is calibrated for --precision int8"),
        ("fp8", PrecisionOptions(), CalibrationOptions(method="median"), "unknown --calib-method 'median'"),
        ("fp8", PrecisionOptions(), CalibrationOptions(scales=Path("nowhere")), "nowhere does not exist"),
        (
            "fp8",
            PrecisionOptions(),
            CalibrationOptions(scales=Path(__file__).parent, method="max"),
            "cannot be combined with --calib-method",
        ),
        ("int8", PrecisionOptions(kv_cache="fp8"), CalibrationOptions(), "not available with ONNX Runtime"),
        ("int8", PrecisionOptions(drafter="bf16"), CalibrationOptions(), "cannot be combined with a target in fp32"),
    ],
)
def test_unsupported_request_is_rejected_without_leftovers(
    dense: Pair, precision: str, overrides: PrecisionOptions, ranges: CalibrationOptions, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        built(dense, tmp_path / "engine", precision, overrides=overrides, ranges=ranges)
    assert says in caught.value.what
    assert caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_malformed_samples_are_refused_with_their_line(dense: Pair, tmp_path: Path) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(UsageError, match="line 2"):
        built(dense, tmp_path / "engine", "fp8", ranges=CalibrationOptions(data=data))
    assert not (tmp_path / "engine").exists()


def test_partly_excluded_experts_are_rejected(sparse: Pair, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"weights that --precision int8 should quantize are INT8") as caught:
        built(sparse, tmp_path / "engine", "int8", overrides=PrecisionOptions(exclude=("*.experts.down_proj",)))
    assert "requires that both stacks of the experts are packed" in caught.value.why
    assert not (tmp_path / "engine").exists()


def test_unquantized_checkpoint_head_cannot_be_requested_quantized(dense: Pair, tmp_path: Path) -> None:
    pair = fp8_pair(dense, tmp_path / "fp8")
    with pytest.raises(BuildError, match="--lm-head-precision fp8 has no effect"):
        built(pair, tmp_path / "engine", "fp8", overrides=PrecisionOptions(lm_head="fp8"))
