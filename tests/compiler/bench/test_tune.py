"""``tune`` stores measurements for the measured drafter, and changes nothing else in the engine."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.bench import tune as module
from peagle.compiler.bench.tune import Tuned, TuneOptions, tune
from peagle.compiler.pipeline.choose_k import KChoice, Rate
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import BatchCosts, Speculation
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.fixtures.commands import Run

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "engine"))


def test_costs_of_one_and_several_requests_are_measured_and_stored(engine: Path) -> None:
    before = Manifest.read(engine)
    text = Engine.load(engine, threads=1).generate([[5, 9]], PARAMS)[0].token_ids
    tuned = tune(TuneOptions(engine, max_batch_size=2, num_prompts=2, threads=1))
    after, most = Manifest.read(engine), before.speculation.max_num_speculative_tokens
    assert after.speculation == tuned.speculation
    measured = after.speculation.measured
    assert measured is not None
    assert [each.rows for each in measured.batches] == [2]
    assert {len(measured.tokens), len(measured.costs), len(measured.batches[0].costs)} == {most + 1}
    assert measured.batches[0].costs[0] == 1.0
    assert replace(after, speculation=before.speculation, format_version=before.format_version) == before
    assert [*tuned.gains] == [1, 2]
    loaded = Engine.load(engine, threads=1)
    assert loaded.generate([[5, 9]], PARAMS, num_speculative_tokens="auto")[0].token_ids == text


def given(monkeypatch: pytest.MonkeyPatch, costs: list[float], batches: dict[int, list[float]]) -> None:
    """Replace the clock: the engine is loaded and its prompts are encoded, but these are the costs."""
    rates = tuple(Rate(k, 1 + k / cost, 1, 1, 1 + k / 2, cost, 4) for k, cost in enumerate(costs))
    monkeypatch.setattr(module, "measure_k", lambda *_: KChoice(1, rates))
    several = tuple(BatchCosts(rows, tuple(each)) for rows, each in batches.items())
    monkeypatch.setattr(module, "measure_batches", lambda *_, **__: several)


def refuse(self: object, *_: object) -> None:
    """Refuse to write, as a file system that is mounted read-only."""
    raise OSError(errno.EROFS, "Read-only file system")


def test_the_fastest_k_becomes_the_first_unless_the_build_fixed_one(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest.read(engine)
    costs = [1.0, 1.1, 1.1, *[9.0] * (manifest.speculation.max_num_speculative_tokens - 2)]
    given(monkeypatch, costs, {4: [1.0, 1.2, *[9.0] * (len(costs) - 2)]})
    for adapts, k in ((True, 2), (False, manifest.speculation.num_speculative_tokens)):
        replace(manifest, speculation=replace(manifest.speculation, adapts=adapts), format_version=7).write(engine)
        tuned = tune(TuneOptions(engine))
        assert (tuned.speculation.num_speculative_tokens, tuned.speculation.adapts) == (k, adapts)
        fastest = {each["requests"]: each["fastest"] for each in tuned.as_json()["requests"]}
        assert fastest == {1: 2, 4: 1}
        assert Manifest.read(engine).format_version == 9


def test_an_engine_that_changes_meanwhile_is_left_as_it_is(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.read(engine)
    costs = [1.0] * (manifest.speculation.max_num_speculative_tokens + 1)
    given(monkeypatch, costs, {})
    other = replace(manifest, target=replace(manifest.target, origin=replace(manifest.target.origin, revision="new")))

    def rebuild(*_: object, **__: object) -> tuple[()]:
        other.write(engine)
        return ()

    monkeypatch.setattr(module, "measure_batches", rebuild)
    with pytest.raises(UsageError, match="was changed while it was being measured"):
        tune(TuneOptions(engine))
    assert Manifest.read(engine) == other


def test_an_engine_that_cannot_be_written_is_refused_before_the_measurement(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_k", lambda *_: pytest.fail("it measured"))
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(EnvironmentProblem, match="cannot write to") as caught:
        tune(TuneOptions(engine))
    assert "make it writable" in caught.value.fix


def test_an_engine_that_cannot_be_written_at_the_end_is_reported(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, [1.0] * (Manifest.read(engine).speculation.max_num_speculative_tokens + 1), {})
    monkeypatch.setattr(Manifest, "write", refuse)
    with pytest.raises(EnvironmentProblem, match="cannot write to"):
        tune(TuneOptions(engine))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workload": "random"}, "unknown --workload random"),
        ({"workload": "chat", "prompts": Path("a")}, "cannot be combined"),
        ({"max_batch_size": 0}, "--max-batch-size must be"),
        ({"num_prompts": 0}, "--num-prompts must be"),
        ({"draft": "code"}, "has no drafter named code"),
    ],
)
def test_wrong_options_are_refused(engine: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tune(TuneOptions(engine, **options))


@pytest.mark.parametrize(("most", "rows"), [(1, ()), (2, (2,)), (4, (2, 4)), (6, (2, 4, 6)), (8, (2, 4, 8))])
def test_numbers_of_requests_are_powers_of_two_and_the_largest(most: int, rows: tuple[int, ...]) -> None:
    assert TuneOptions(Path(), max_batch_size=most).rows == rows


def test_the_command_shows_gains_by_number_of_requests(cli: Run, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [1.0, 1.25, *[2.0] * (Manifest.read(engine).speculation.max_num_speculative_tokens - 1)]
    given(monkeypatch, costs, {2: [1.0, 1.2, *[9.0] * (len(costs) - 2)]})
    lines = cli("tune", engine, "--quiet").out.splitlines()
    assert lines[0].split()[:3] == ["tokens/s", "over", "plain"]
    assert lines[1].startswith("1 request ")
    assert "1.20x" in lines[1]
    assert lines[2].startswith("2 requests at once ")
    assert lines[2].endswith("K = 1")
    printed = json.loads(cli("tune", engine, "--json").out)
    assert [each["requests"] for each in printed["requests"]] == [1, 2]
    assert printed == Tuned(engine, "built-in", Manifest.read(engine).speculation).as_json()


def test_prompts_that_were_left_out_are_noted(
    cli: Run, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, [1.0] * (Manifest.read(engine).speculation.max_num_speculative_tokens + 1), {})
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in ("a", "b " * 400)))
    done = cli("tune", engine, "--quiet", "--prompts", prompts)
    said = "1 of 2 prompts were skipped: they are longer than 48 tokens"
    assert (done.code, f"note: {said}" in done.err) == (0, True), done.err
    assert said in json.loads(cli("tune", engine, "--prompts", prompts, "--json").out)["notes"]


def test_prompts_that_are_all_too_long_are_an_error_without_options_of_bench(engine: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "b " * 400}))
    with pytest.raises(UsageError, match="fits into 48 tokens") as caught:
        tune(TuneOptions(engine, prompts=prompts))
    assert "--max-tokens" not in str(caught.value)


def test_folders_that_cannot_be_tuned_are_refused(cli: Run, engine: Path) -> None:
    assert cli("tune", engine.parent).code == 3
    manifest = Manifest.read(engine)
    plain = replace(
        manifest,
        drafter=None,
        method="none",
        speculation=Speculation(0, 0, None),
        shapes=replace(manifest.shapes, draft_vocab_size=0, taps=()),
        files={name: entry for name, entry in manifest.files.items() if not name.startswith("drafter/")},
    )
    plain.write(engine)
    done = cli("tune", engine)
    assert (done.code, "cannot be tuned" in done.err) == (2, True)
