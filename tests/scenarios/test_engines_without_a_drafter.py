"""``--draft none``: an engine with only a target, and what every command reports of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from peagle.compiler.checkpoints import hub
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.component import target_component
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import UsageError
from tests.engines.backends.plan_engine import lowered_half, plan_engine, plan_manifest
from tests.engines.mixed_requests import MIXED, PROMPTS
from tests.fixtures.commands import Run
from tests.models import CONFIGS, save_target

PLAIN = ("--draft", "none")
ZERO = ("--num-speculative-tokens", 0)  # the same
CODE = ["def gcd(a, b):", "x =", "class Stack:\n    def __init__(self):\n"]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
POLICIES = {
    "greedy": GREEDY,
    "sampled": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.9, top_k=50, seed=7),
}


@pytest.fixture(scope="module")
def plain(_own_stage_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target alone, to be read only."""
    from peagle.compiler.cli import run_cli

    out = tmp_path_factory.mktemp("plain") / "engine"
    assert run_cli(["build", "demo", *map(str, PLAIN), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of so few layers that nobody could guess what a head taps."""
    return save_target(tmp_path_factory.mktemp("small") / "target", CONFIGS["qwen3"] | {"num_hidden_layers": 2})


@pytest.fixture(scope="module")
def small_engine(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its engine, to be read only."""
    from peagle.compiler.cli import run_cli

    out = tmp_path_factory.mktemp("small") / "engine"
    assert run_cli(["build", str(small), *PLAIN, "--max-seq-len", "96", "--out", str(out)]) == 0
    return out


def ids(engine: Engine, params: SamplingParams, **more: int) -> list[tuple[int, ...]]:
    return [output.token_ids for output in engine.generate(CODE, params, **more)]


def test_folder_contains_only_the_target(plain: Path) -> None:
    manifest = Manifest.read(plain)
    assert manifest.drafter is None
    assert (manifest.format_version, list(manifest.parts)) == (7, ["target"])
    assert not [name for name in manifest.files if "drafter" in name]
    assert "aux_hidden" not in manifest.target.outputs
    onnx.checker.check_model(str(plain / "target" / "model.onnx"))
    report = json.loads((plain / "build_report.json").read_text())
    assert (report["num_speculative_tokens"], "choose_k" in report) == (0, False)
    assert "no drafts per round" in (plain / "build_report.html").read_text()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_text_is_plain_decoding_s_of_the_pair(plain: Path, demo_engine: Path, policy: str) -> None:
    alone, pair, params = Engine.load(plain, max_batch_size=2), Engine.load(demo_engine), POLICIES[policy]
    expected = ids(pair, params, num_speculative_tokens=0)
    assert ids(alone, params) == ids(alone, params, num_speculative_tokens=0) == expected
    assert ids(pair, params) == expected
    stream = alone.stream(CODE[0], params)
    assert tuple(token for delta in stream for token in delta.token_ids) == expected[0]


def test_text_continues_to_the_end_of_the_caches(plain: Path) -> None:
    engine = Engine.load(plain)
    prompt = [7] * (engine.max_seq_len - 3)
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=99, ignore_eos=True))
    assert len(output.token_ids) == 3


def test_drafts_are_refused(cli: Run, plain: Path) -> None:
    engine = Engine.load(plain)
    calls = (
        lambda: engine.generate(["x"], num_speculative_tokens=1),
        lambda: engine.stream("x", num_speculative_tokens=3),
        lambda: engine.draft_logits([1, 2], 1),
    )
    for call in calls:
        with pytest.raises(UsageError, match="num_speculative_tokens") as caught:
            call()
        assert "no drafter" in caught.value.why
    done = cli("run", plain, "--prompt", "x", "--num-speculative-tokens", 2)
    assert (done.code, "no drafter" in done.err) == (2, True)


def test_run_and_inspect_report_the_missing_drafter(cli: Run, plain: Path) -> None:
    done = cli("run", plain, "--prompt", "def f(", "--max-tokens", 5, "--stats")
    assert (done.code, "acceptance" in done.err) == (0, False)
    done = cli("inspect", plain)
    assert done.code == 0
    assert "none: plain decoding" in done.out
    assert "taps" not in done.out
    content = json.loads(cli("inspect", plain, "--json").out)
    assert (content["drafter"], list(content["operators"])) == (None, ["target"])


@pytest.mark.parametrize("flags", [("--certificate", "c.json"), ("--draft", "ngram")])
def test_verify_refuses_options_that_need_drafts(cli: Run, plain: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    before = sorted(tmp_path.iterdir())
    words = [tmp_path / word if word.endswith(".json") else word for word in flags]
    done = cli("verify", plain, *words)
    assert done.code == 2
    assert f"{flags[0]} cannot be used: the engine has no drafter" in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_only_parity_is_verified(cli: Run, plain: Path) -> None:
    done = cli("verify", plain, "--prompts", 1, "--json")
    assert done.code == 0, done.err
    verdict = json.loads(done.out)
    assert verdict["losslessness"] is None
    assert verdict["parts"] == {
        "losslessness": "not needed", "text": "passed", "parity": "passed", "precision": "not needed",
    }  # fmt: skip
    assert "no drafter" in verdict["not_needed"]["losslessness"]
    assert [(check["name"], check["status"]) for check in verdict["parity"]] == [("target logits", "passed")]


def test_precision_cost_is_measured_on_the_target(cli: Run, tmp_path: Path) -> None:
    target = save_target(tmp_path / "target", CONFIGS["qwen3"] | {"num_hidden_layers": 1})
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"input_ids": [i + j for j in range(40)]}) + "\n" for i in (2, 9, 40)))
    out = tmp_path / "int8"
    done = cli("build", target, *PLAIN, "--lowering", "ort", "--precision", "int8", "--max-seq-len", 64, "--out", out)
    assert done.code == 0, done.err
    done = cli("verify", out, "--data", texts, "--max-perplexity-increase", 1000, "--bisect", "--json")
    precision = json.loads(done.out)["precision"]
    assert precision["skipped"] == ""
    assert precision["logits"]["tokens"] == 120
    assert precision["layers"]
    assert (precision["acceptance"], precision["greedy"]["prompts"]) == (None, 6)
    done = cli(*shlex.split(precision["bisection"]["command"])[1:], "--dry-run", "--json")
    again = json.loads(done.out)
    assert (again["lowering"], again["drafter"]["note"]) == ("ort", "none: plain decoding")
    assert f"but {', '.join(precision['bisection']['exclude'])} in fp32" in again["recipe"]


def test_its_options_repeat_it(cli: Run, plain: Path, tmp_path: Path) -> None:
    done = cli("build", "--config", plain / "resolved_config.yaml", "--out", tmp_path / "again")
    assert done.code == 0, done.err
    first, second = Manifest.read(plain), Manifest.read(tmp_path / "again")
    assert (first.target, first.drafter, first.speculation) == (second.target, second.drafter, second.speculation)


def test_explicit_drafter_is_not_read(cli: Run, plain: Path, tmp_path: Path) -> None:
    named = ("--draft", tmp_path / "nowhere", "--taps", "1,2")
    done = cli("build", "demo", *ZERO, *named, "--out", tmp_path / "engine", "--json")
    assert done.code == 0, done.err
    (warning,) = json.loads(done.out)["warnings"]
    assert "nowhere, --taps has no effect" in warning
    assert Manifest.read(tmp_path / "engine").drafter is None
    for spelled in (ZERO, PLAIN):
        done = cli("build", "demo", *spelled, "--draft-precision", "int8", "--out", tmp_path / "other")
        assert (done.code, f"has no effect with {spelled[0]} {spelled[1]}" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (("--num-speculative-tokens", 4), "--draft none and --num-speculative-tokens 4 cannot be combined"),
        (("--taps", "1,2"), "--taps has no effect with --draft none"),
        (("--draft-revision", "main"), "--draft-revision main has no effect with --draft none"),
        (("--mask-token-id", 3), "--mask-token-id has no effect with --draft none"),
    ],
)
@pytest.mark.parametrize("verb", ["build", "export"])
def test_contradictory_request_is_rejected(
    cli: Run, tmp_path: Path, verb: str, said: tuple[object, ...], refusal: str
) -> None:
    done = cli(verb, "demo", *PLAIN, *said, "--out", tmp_path / "out")
    assert (done.code, refusal in done.err, "fix:" in done.err) == (2, True, True), done.err
    assert not (tmp_path / "out").exists()


def test_it_is_planned_without_a_drafter(cli: Run, small: Path) -> None:
    done, same = (cli("build", small, *spelled, "--dry-run", "--json") for spelled in (PLAIN, ZERO))
    assert done.code == 0, done.err
    plan, other = json.loads(done.out), json.loads(same.out)
    for each in (plan, other):  # what was measured
        del each["time"], each["disk"], each["needs"]
    assert plan == other
    assert (plan["num_speculative_tokens"], plan["drafter"]["bytes"], plan["kv"]["drafter_slot_bytes"]) == (0, 0, 0)
    assert plan["cache_length"] == plan["max_seq_len"] + 2


def test_two_layer_target_needs_no_head(cli: Run, small: Path, small_engine: Path, tmp_path: Path) -> None:
    (output,) = Engine.load(small_engine).generate([[1, 2, 3]], SamplingParams(max_tokens=9, ignore_eos=True))
    assert len(output.token_ids) == 9
    done = cli("export", small, *PLAIN, "--max-seq-len", 64, "--out", tmp_path / "onnx")
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "onnx").iterdir() if path.is_dir()} == {"target"}
    done = cli("export", small, "--out", tmp_path / "tapped")
    assert (done.code, "2 layers has no default auxiliary hidden-state layers (taps)" in done.err) == (5, True)
    assert "--draft none" in done.err


@pytest.mark.parametrize("model", ["gemma-4-31b", "owner/model"])
def test_any_target_is_fetched_alone(
    cli: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Those of the Hugging Face Hub, with a short name or without."""
    asked = []

    def download(repo: str, revision: str | None, **_: object) -> hub.Snapshot:
        asked.append(repo)
        return hub.Snapshot(small, "c" * 40)

    monkeypatch.setattr(hub, "download", download)
    done = cli("build", model, *PLAIN, "--max-seq-len", 64, "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    assert asked == [{"gemma-4-31b": "google/gemma-4-31B-it"}.get(model, model)]
    repeated = json.loads((tmp_path / "engine" / "resolved_config.yaml").read_text())
    assert (repeated["model"], repeated["revision"], repeated["draft"]) == (model, "c" * 40, None)


def test_target_only_plans_give_the_same_text(small: Path, small_engine: Path, tmp_path: Path) -> None:
    """On the backend of TensorRT, over a stand-in: profiles, memory and windows without a drafter."""
    manifest, reference = Manifest.read(small_engine), Engine.load(small_engine)
    half = target_component(Target.open(small))
    graphs = {"target": lowered_half(half, "float32", manifest.shapes.cache_length)}
    engine, _ = plan_engine(tmp_path, plan_manifest(manifest, graphs, tmp_path), small_engine, slots=3)
    outputs, expected = (each.generate(PROMPTS, MIXED) for each in (engine, reference))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    text = list(range(5, 15))
    np.testing.assert_allclose(engine.target_logits(text), reference.target_logits(text), atol=1e-3)
    with pytest.raises(UsageError, match="num_speculative_tokens"):
        engine.generate(["x"], num_speculative_tokens=1)
