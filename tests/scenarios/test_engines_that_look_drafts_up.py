"""``--draft ngram``: an engine with only a target that drafts, and what every command reports of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline.component import target_component
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import UsageError
from tests.engines.backends.plan_engine import lowered_half, plan_engine, plan_manifest
from tests.engines.mixed_requests import MIXED, PROMPTS
from tests.fixtures.commands import Run
from tests.models import Pair

NGRAM = ("--draft", "ngram")
FOUR = ("--num-speculative-tokens", 4)
SHORT = ("--max-seq-len", 96)
LOOPS = [*PROMPTS, [7, 8, 9] * 6]
POLICIES = [*MIXED, SamplingParams(max_tokens=40, ignore_eos=True)]


@pytest.fixture(scope="module")
def looking(tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dense target alone, to be read only."""
    from peagle.compiler.cli import run_cli

    out = tmp_path_factory.mktemp("looking") / "engine"
    assert run_cli(["build", str(tiny_pair.target), *map(str, (*NGRAM, *FOUR, *SHORT)), "--out", str(out)]) == 0
    return out


def told(engine: Engine, **more: object) -> list[object]:
    outputs = engine.generate(LOOPS, POLICIES, **more)  # type: ignore[arg-type]
    return [(output.token_ids, output.text, output.finish_reason) for output in outputs]


def test_folder_contains_only_the_target_and_room_for_drafts(looking: Path) -> None:
    manifest = Manifest.read(looking)
    assert (manifest.drafter, manifest.method, manifest.format_version) == (None, "ngram", 7)
    speculation, shapes = manifest.speculation, manifest.shapes
    assert (speculation.num_speculative_tokens, speculation.max_num_speculative_tokens) == (4, 8)
    assert (shapes.taps, shapes.cache_length >= shapes.max_seq_len + 16) == ((), True)
    assert "aux_hidden" not in manifest.target.outputs


def test_the_text_is_plain_decoding_s(looking: Path, tiny_engine: Engine) -> None:
    engine = Engine.load(looking, max_batch_size=2)
    expected = told(tiny_engine, num_speculative_tokens=0)
    assert told(engine) == told(engine, draft="none") == told(engine, num_speculative_tokens=7) == expected
    outputs = engine.generate(LOOPS, POLICIES)
    assert sum(output.acceptance.accepted for output in outputs) > 10


def test_engine_has_no_drafter(looking: Path) -> None:
    engine = Engine.load(looking)
    with pytest.raises(UsageError, match="no drafter"):
        engine.draft_logits([1, 2], 1)
    with pytest.raises(UsageError, match="from 0 to 8"):
        engine.generate([[1]], num_speculative_tokens=9)


def test_run_and_inspect_report_the_draft_source(cli: Run, looking: Path) -> None:
    done = cli("run", looking, "--prompt", "aaaa", "--max-tokens", 30, "--ignore-eos", "--stats")
    assert done.code == 0, done.err
    assert "acceptance length" in done.err
    assert "tokens per round over all rounds" in done.err
    done = cli("run", looking, "--prompt", "aaaa", "--max-tokens", 30, "--ignore-eos", "--json")
    told_ = json.loads(done.out)["acceptance"]
    assert 1 <= told_["tokens_per_round"] <= told_["acceptance_length"]
    done = cli("inspect", looking)
    assert (done.code, "4, looked up in the text, at most 8" in done.out, "taps" in done.out) == (0, True, False)


def test_run_accepts_another_draft_method(cli: Run, looking: Path, tiny_folder: Path) -> None:
    asked = ("--prompt", "aaaa", "--max-tokens", 20, "--ignore-eos", "--json")
    texts = set()
    for folder, more in ((looking, ()), (looking, ("--draft", "none")), (tiny_folder, ()), (tiny_folder, NGRAM)):
        done = cli("run", folder, *asked, *more)
        assert done.code == 0, done.err
        texts.add(json.loads(done.out)["text"])
    assert len(texts) == 1
    done = cli("run", looking, *asked, "--draft", "none", *FOUR)
    assert (done.code, "draft is none, but num_speculative_tokens is 4" in done.err) == (2, True)
    done = cli("run", looking, *asked, "--draft", "head")
    assert (done.code, "draft must be ngram, none" in done.err) == (2, True)


def test_verifying_compares_it_with_plain_decoding(cli: Run, looking: Path) -> None:
    done = cli("verify", looking, "--prompts", 2, "--max-tokens", 24, "--num-speculative-tokens", "1,4", "--json")
    assert done.code == 0, done.err
    verdict = json.loads(done.out)
    assert (verdict["losslessness"]["passed"], verdict["losslessness"]["tokens_differing"]) == (True, 0)
    assert verdict["losslessness"]["draft"] == "ngram"
    assert [(check["name"], check["status"]) for check in verdict["parity"]] == [("target logits", "passed")]


def test_an_engine_with_a_head_is_verified_with_drafts_from_the_text(
    cli: Run, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "engine")
    few = ("--prompts", 2, "--max-tokens", 24, "--num-speculative-tokens", 4, "--only", "losslessness")
    done = cli("verify", folder, *few, *NGRAM)
    assert (done.code, "looked up in the text" in done.out, "0 of 192 tokens" in done.out) == (0, True, True), done.err
    done = cli("verify", folder, *few, "--draft", "none")
    assert (done.code, "--draft none cannot be compared" in done.err) == (2, True)


def test_its_options_repeat_it(cli: Run, looking: Path, tmp_path: Path) -> None:
    assert json.loads((looking / "resolved_config.yaml").read_text())["draft"] == "ngram"
    done = cli("build", "--config", looking / "resolved_config.yaml", "--out", tmp_path / "again")
    assert done.code == 0, done.err
    first, second = Manifest.read(looking), Manifest.read(tmp_path / "again")
    assert (first.target, first.speculation, first.shapes) == (second.target, second.speculation, second.shapes)


def test_default_k_is_measured(cli: Run, tiny_pair: Pair, tmp_path: Path) -> None:
    done = cli("build", tiny_pair.target, *NGRAM, *SHORT, "--out", tmp_path / "engine", "--json")
    assert done.code == 0, done.err
    choice = json.loads(done.out)["choose_k"]
    assert [rate["k"] for rate in choice["rates"]] == list(range(9))
    assert Manifest.read(tmp_path / "engine").speculation.num_speculative_tokens == choice["k"]


def test_it_is_planned_and_exported_without_a_drafter(cli: Run, tiny_pair: Pair, tmp_path: Path) -> None:
    done = cli("build", tiny_pair.target, *NGRAM, *SHORT, "--dry-run", "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert (plan["num_speculative_tokens"], plan["drafter"]["bytes"], plan["cache_length"]) == (8, 0, 96 + 16)
    assert "n-gram lookup" in plan["drafter"]["note"]
    done = cli("doctor", "--model", tiny_pair.target, *NGRAM)
    assert (done.code, "ready" in done.out) == (0, True), done.err
    done = cli("export", tiny_pair.target, *NGRAM, *SHORT, "--out", tmp_path / "onnx")
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "onnx").iterdir() if path.is_dir()} == {"target"}
    assert "n-gram lookup" in cli("inspect", tmp_path / "onnx").out


def test_no_drafts_and_none_that_are_read(cli: Run, tiny_pair: Pair, tmp_path: Path) -> None:
    """K = 0 goes before it, so that a script may loop over K; what is said of a head is a contradiction."""
    zero = ("--num-speculative-tokens", 0)
    done = cli("build", tiny_pair.target, *NGRAM, *zero, *SHORT, "--out", tmp_path / "engine", "--json")
    assert done.code == 0, done.err
    assert "--draft ngram has no effect" in json.loads(done.out)["warnings"][0]
    assert Manifest.read(tmp_path / "engine").method == "none"
    with pytest.raises(UsageError, match="draft is ngram, but this engine cannot draft"):
        Engine.load(tmp_path / "engine").generate([[1]], draft="ngram")
    done = cli("build", tiny_pair.target, *NGRAM, "--taps", "1,2", "--out", tmp_path / "other")
    assert (done.code, "--taps has no effect with --draft ngram" in done.err) == (2, True)


def test_target_only_plans_give_the_same_text(looking: Path, tmp_path: Path) -> None:
    """On the backend of TensorRT, over a stand-in, which the host feeds its drafts."""
    manifest, reference = Manifest.read(looking), Engine.load(looking)
    half = target_component(Target.open(Path(manifest.target.origin.source)))
    graphs = {"target": lowered_half(half, "float32", manifest.shapes.cache_length)}
    engine, device = plan_engine(tmp_path, plan_manifest(manifest, graphs, tmp_path), looking, slots=3)
    assert told(engine) == told(reference)
    assert device.captures  # of passes: the host waits between them
    accepted = [output.acceptance for each in (engine, reference) for output in each.generate(LOOPS[:1], POLICIES[:1])]
    assert accepted[0] == accepted[1]
