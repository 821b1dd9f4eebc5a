"""Certificates of engines: up to a number of tokens, all draft methods in turns, resumed after a stop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.verify.certificate import Certificate
from peagle.compiler.verify.certify import CertificateRequest, certify
from peagle.compiler.verify.losslessness import Losslessness
from peagle.compiler.verify.verify_path import VerifyOptions, verify_path
from peagle.engines import Engine
from peagle.plugins.errors import UsageError
from tests.compiler.verify.test_losslessness import FakeEngine
from tests.fixtures.commands import Run

ONE = 2 * 3 * 10 * 5  # tokens of a comparison: policies, numbers of drafts with 0, prompts, tokens of each
SHORT = ("--only", "losslessness", "--max-tokens", 2, "--num-speculative-tokens", 3)


class Calls(FakeEngine):
    """It counts the texts that it generates, and may be interrupted at one of them, or call ``meanwhile``."""

    def __init__(
        self, folder: Path, interrupted_at: int = -1, meanwhile: Callable[[], object] = lambda: None, **faults: Any
    ) -> None:
        super().__init__(folder, **faults)
        self.texts: list[tuple[str | None, int | None]] = []
        self.interrupted_at, self.meanwhile = interrupted_at, meanwhile

    def generate(self, prompts: Any, params: Any, **options: Any) -> list[Any]:
        self.texts += [(options.get("draft"), each.seed) for each in params]
        if 0 <= self.interrupted_at < len(self.texts):
            raise KeyboardInterrupt
        self.meanwhile()
        return super().generate(prompts, params, **options)


Certified = Callable[..., Losslessness]


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    """Compare an engine, and write or continue the record ``certificate.json``."""

    def run(engine: FakeEngine, tokens: int = 3 * ONE, *, draft: str | None = None, batch: int = 2) -> Losslessness:
        request = CertificateRequest(tmp_path / "certificate.json", tokens)
        return certify(engine, request, 5, (1, 3), Quiet(), draft=draft, batch=batch)  # type: ignore[arg-type]

    return run


def record(folder: Path) -> Certificate:
    return Certificate.read(folder / "certificate.json")


def test_comparisons_go_on_until_the_tokens_are_reached(tmp_path: Path, certified: Certified) -> None:
    compared = certified(FakeEngine(tmp_path), 2 * ONE + 1)
    assert compared.passed
    assert (compared.tokens_compared, compared.tokens_differing) == (3 * ONE, 0)
    assert record(tmp_path).tokens_compared == 3 * ONE
    assert any(record(tmp_path).seal in note for note in compared.notes)


def test_only_methods_that_had_a_turn_count_as_compared(tmp_path: Path, certified: Certified) -> None:
    assert certified(FakeEngine(tmp_path), 2 * ONE).draft == "peagle, peagle-chain"
    assert record(tmp_path).options.drafts == ("peagle", "peagle-chain", "ngram")


def test_draft_methods_take_turns_and_every_turn_has_new_prompts_and_seeds(
    tmp_path: Path, certified: Certified
) -> None:
    certified(engine := Calls(tmp_path), 6 * ONE)
    done = record(tmp_path)
    assert done.options.drafts == ("peagle", "peagle-chain", "ngram")
    assert [(each.draft, each.first_prompt) for each in done.comparisons] == [
        (draft, first) for first in (0, 10) for draft in done.options.drafts
    ]
    assert {seed for draft, seed in engine.texts if draft == "ngram"} == {*range(20)}


def test_the_hash_of_a_reached_record_is_that_of_its_file(tmp_path: Path, certified: Certified) -> None:
    certified(FakeEngine(tmp_path), 2 * ONE)
    compared = certified(FakeEngine(tmp_path), ONE)  # another command, but nothing is left to compare
    assert any(record(tmp_path).seal in note for note in compared.notes)


def test_a_reached_record_is_not_compared_again_and_a_higher_number_continues_it(
    tmp_path: Path, certified: Certified
) -> None:
    certified(FakeEngine(tmp_path), 2 * ONE)
    before = (tmp_path / "certificate.json").read_bytes()
    certified(engine := Calls(tmp_path), 2 * ONE)
    assert engine.texts == []
    assert (tmp_path / "certificate.json").read_bytes() == before
    certified(Calls(tmp_path), 3 * ONE)
    assert len(record(tmp_path).comparisons) == 3
    assert f"--tokens {3 * ONE}" in record(tmp_path).command


@pytest.mark.parametrize("texts", [1, 90, 170])  # a comparison has 80: the reference, and three draft counts
def test_a_resumed_record_equals_that_of_an_uninterrupted_run(texts: int, tmp_path: Path, certified: Certified) -> None:
    with pytest.raises(KeyboardInterrupt):
        certified(Calls(tmp_path, interrupted_at=texts))
    path = tmp_path / "certificate.json"
    assert len(record(tmp_path).comparisons if path.exists() else ()) == texts // 80
    certified(FakeEngine(tmp_path))
    continued = record(tmp_path)
    path.unlink()
    certified(FakeEngine(tmp_path))
    assert replace(continued, began="", ended="") == replace(record(tmp_path), began="", ended="")


def test_a_record_of_other_options_is_refused_before_anything_is_generated(
    tmp_path: Path, certified: Certified
) -> None:
    certified(FakeEngine(tmp_path), ONE)
    with pytest.raises(UsageError, match="another option"):
        certified(engine := Calls(tmp_path), ONE, draft="ngram")
    with pytest.raises(UsageError, match="another option"):
        certified(engine, 2 * ONE, batch=3)
    changed = Calls(tmp_path)
    files = {name: replace(entry, sha256="f" * 64) for name, entry in changed.manifest.files.items()}
    changed.manifest = replace(changed.manifest, files=files)
    with pytest.raises(UsageError, match="another engine"):
        certified(changed, 2 * ONE)
    assert engine.texts == changed.texts == []


@pytest.mark.parametrize("begins_with", [0, ONE])  # no file, and the record of an earlier run
def test_a_record_that_another_run_writes_meanwhile_is_kept(
    begins_with: int, tmp_path: Path, certified: Certified
) -> None:
    path, longer = tmp_path / "certificate.json", tmp_path / "longer.json"
    certified(FakeEngine(tmp_path), 3 * ONE)
    path.rename(longer)
    if begins_with:
        certified(FakeEngine(tmp_path), begins_with)
    with pytest.raises(UsageError, match="changed during the comparison") as caught:
        certified(Calls(tmp_path, meanwhile=lambda: shutil.copy(longer, path)), 6 * ONE)
    assert "run the same command again" in caught.value.fix
    assert path.read_bytes() == longer.read_bytes()
    certified(FakeEngine(tmp_path), 6 * ONE)
    assert record(tmp_path).comparisons[:3] == Certificate.read(longer).comparisons


def test_a_record_that_is_removed_meanwhile_is_written_again(tmp_path: Path, certified: Certified) -> None:
    certified(FakeEngine(tmp_path), ONE)
    path = tmp_path / "certificate.json"
    certified(Calls(tmp_path, meanwhile=lambda: path.unlink(missing_ok=True)), 2 * ONE)
    assert record(tmp_path).tokens_compared == 2 * ONE


def test_changed_tokens_are_recorded_with_their_place(tmp_path: Path, certified: Certified) -> None:
    compared = certified(FakeEngine(tmp_path, lossy=[3]), ONE)
    assert not compared.passed
    (done,) = record(tmp_path).comparisons
    assert done.tokens_differing == 20
    assert {(each.k, each.position) for each in done.divergences} == {(3, 3)}


def test_the_hash_of_plain_decoding_depends_on_nothing_else(tmp_path: Path, certified: Certified) -> None:
    certified(FakeEngine(tmp_path, lossy=[3]), 4 * ONE)
    hashes = [each.plain_sha256 for each in record(tmp_path).comparisons]
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_the_command_line_writes_and_continues_a_record_of_a_real_engine(
    tiny_folder: Path, tmp_path: Path, cli: Run
) -> None:
    folder, path = Path(shutil.copytree(tiny_folder, tmp_path / "engine")), tmp_path / "certificate.json"
    done = cli("verify", folder, *SHORT, "--certificate", path, "--tokens", 1)
    assert done.code == 0, done.err
    assert Certificate.read(path).seal in done.out
    content = json.loads(path.read_text())
    assert content["tokens_compared"] == 2 * 2 * 10 * 2
    assert content["engine"]["name"] == "engine"
    assert str(tmp_path) not in path.read_text()
    refused = cli("verify", folder, *SHORT, "--certificate", path, "--batch-size", 3)
    assert refused.code == 2
    assert "batch is now 3, but the file has 4" in refused.err
    again = cli("verify", folder, *SHORT, "--certificate", path, "--tokens", 81)  # not a file of the engine
    assert again.code == 0, again.err
    assert Certificate.read(path).tokens_compared == 160


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--tokens", 9), "--tokens needs --certificate FILE"),
        (("--certificate", "c.json", "--acceptance-tolerance", 0.2), "cannot be combined"),
        (("--certificate", "c.json", "--only", "parity"), "cannot be combined"),
        (("--certificate", "x" * 300), "is not a valid file name"),
        (("--certificate", "missing/c.json"), "the folder missing does not exist"),
    ],
)
def test_options_that_make_no_certificate_are_refused(
    flags: tuple[Any, ...], error: str, tmp_path: Path, cli: Run
) -> None:
    done = cli("verify", tmp_path, *flags)
    assert done.code == 2
    assert error in " ".join(done.err.split())


@pytest.mark.parametrize("name", ["not-utf-8-\udcff.json", "two\nlines.json"])
def test_a_name_that_a_certificate_cannot_hold_is_refused_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--certificate .* cannot be displayed") as caught:
        verify_path(tmp_path / "no-engine", VerifyOptions(certificate=tmp_path / name))
    assert "choose another name for --certificate" in caught.value.fix
    assert [*tmp_path.iterdir()] == []


def test_an_engine_whose_name_a_certificate_cannot_hold_is_refused_before_it_is_loaded(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "load", lambda *_, **__: pytest.fail("it loaded the engine first"))
    engine = Path(shutil.copytree(tiny_folder, tmp_path / "engine-\udcff"))
    options = VerifyOptions(only=("losslessness",), certificate=tmp_path / "certificate.json")
    with pytest.raises(UsageError, match=r"the engine 'engine-\\udcff' cannot be displayed"):
        verify_path(engine, options)


def test_no_certificate_is_put_into_an_engine(tiny_folder: Path, cli: Run) -> None:
    done = cli("verify", tiny_folder, "--certificate", tiny_folder / "c.json")
    assert (done.code, "is inside the engine" in done.err) == (2, True), done.err
    assert not (tiny_folder / "c.json").exists()
