"""Verification in parts: each runs alone, each is recorded when done, and a missing requirement is explained."""

from __future__ import annotations

import errno
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.bundled.prompts import code_prompts
from peagle.compiler.precision.recipes import MULTIPLIED, RECIPES
from peagle.compiler.store.locks import locked
from peagle.compiler.verify import FILE_NAME, Verification, require_parts, verify, verify_engine
from peagle.compiler.verify.printing import lines
from peagle.compiler.verify.verify_path import VerifyOptions, verify_path
from peagle.engines import Engine
from peagle.engines import engine as loading
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from peagle.engines.folder.records import FileEntry, Speculation
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.fixtures.commands import Run

SHORT = ("--prompts", 1, "--max-tokens", 6, "--num-speculative-tokens", 2)


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """An FP32 engine of a tiny pair, to write into."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "engine"))


@pytest.fixture
def fp8(folder: Path) -> Manifest:
    """Return the manifest as if the engine were in FP8, emulated."""
    return replace(Manifest.read(folder), precision={MULTIPLIED: "0%"} | RECIPES["fp8"].record())


def test_losslessness_alone_needs_the_engine_alone(folder: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compare_with_sources", "measure", "checkpoint_problem"):
        monkeypatch.setattr(verify_engine, name, lambda *_: pytest.fail("it looked for checkpoints"))
    monkeypatch.setattr("peagle.compiler.verify.verify_path.require", lambda *_: pytest.fail("it asked for an extra"))
    done = cli("verify", folder, *SHORT, "--only", "losslessness", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["passed"] is found["losslessness"]["passed"] is True
    others = {"text": "left out", "parity": "left out", "precision": "left out"}
    assert found["parts"] == {"losslessness": "passed"} | others
    assert json.loads((folder / FILE_NAME).read_text()) == found


def test_results_are_stored_in_the_engine_with_a_hash(folder: Path, cli: Run) -> None:
    for _ in range(2):  # the second time, it exists and is replaced
        assert cli("verify", folder, *SHORT, "--only", "losslessness").code == 0
        manifest = Manifest.read(folder)
        assert manifest.files[FILE_NAME] == FileEntry.of(folder / FILE_NAME)
        check_files(manifest.files, folder)
    (folder / FILE_NAME).write_text("{}")
    assert FILE_NAME in cli("inspect", folder).err


def test_a_folder_that_cannot_be_written_is_refused_before_the_checks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with Engine.load(folder, threads=1) as engine:
        monkeypatch.setattr(verify_engine, "compare_on_and_off", lambda *_, **__: pytest.fail("it compared"))
        with pytest.raises(EnvironmentProblem, match="cannot write to"):
            verify(engine)
    with pytest.raises(EnvironmentProblem, match="cannot write to"):
        verify_engine.verify_elsewhere(folder, Manifest.read(folder), "no GPU", only=("text",))


def test_engine_stays_loadable_whenever_verify_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two files never contradict each other while they change."""
    one = Verification(str(folder), "1")
    verify_engine._save(folder, Manifest.read(folder), one)
    write = Manifest.write

    def stopped(manifest: Manifest, where: Path) -> None:
        if FILE_NAME in manifest.files:
            raise KeyboardInterrupt
        write(manifest, where)

    monkeypatch.setattr(Manifest, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        verify_engine._save(folder, Manifest.read(folder), replace(one, cannot={"parity": "another content"}))
    check_files(Manifest.read(folder).files, folder)
    assert FILE_NAME not in Manifest.read(folder).files
    assert "another content" in (folder / FILE_NAME).read_text()


def test_engine_loads_while_verify_stores_its_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader has read the manifest, and compares the files with it later."""
    done = Verification(str(folder), "1")
    verify_engine._save(folder, Manifest.read(folder), done)
    left = [replace(done, cannot={"parity": f"content {number}" * number}) for number in range(3)]

    def save_and_compare(*given: Any, **named: Any) -> None:
        if left:
            verify_engine._save(folder, Manifest.read(folder), left.pop())
        check_files(*given, **named)

    monkeypatch.setattr(loading, "check_files", save_and_compare)
    with Engine.load(folder, threads=1) as engine:
        assert engine.manifest.files[FILE_NAME] == FileEntry.of(folder / FILE_NAME)
    assert not left


def test_results_are_stored_after_the_change_of_somebody_else(folder: Path) -> None:
    """A drafter that is being added has read the manifest, and writes it later."""
    with ThreadPoolExecutor(1) as threads:
        with locked(folder):
            read = Manifest.read(folder)
            saved = threads.submit(verify_engine._save, folder, read, Verification(str(folder), "1"))
            with pytest.raises(TimeoutError):
                saved.result(0.2)
            replace(read, product_version="of the change").write(folder)
        saved.result(30)
    manifest = Manifest.read(folder)
    assert manifest.product_version == "of the change"
    check_files(manifest.files, folder)
    assert FILE_NAME in manifest.files


def test_results_are_not_stored_in_an_engine_that_replaced_the_checked_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rebuild(*_: Any) -> tuple[()]:
        manifest = Manifest.read(folder)
        (folder / "build_report.json").write_text("{}")
        files = {**manifest.files, "build_report.json": FileEntry.of(folder / "build_report.json")}
        replace(manifest, files=files).write(folder)
        return ()

    monkeypatch.setattr(verify_engine, "compare_text", rebuild)
    with pytest.raises(UsageError, match="was changed while it was being verified"):
        verify_engine.verify_elsewhere(folder, Manifest.read(folder), "no GPU", only=("text",))
    assert not (folder / FILE_NAME).exists()
    assert FILE_NAME not in Manifest.read(folder).files


def test_results_depend_only_on_the_drafter_that_was_checked(folder: Path) -> None:
    manifest, done = Manifest.read(folder), Verification(str(folder), "1")
    assert manifest.drafter
    graph = "drafters/removed/model.onnx"
    others = replace(manifest, files={**manifest.files, graph: manifest.files[manifest.drafter.file]})
    verify_engine._save(folder, others, done)
    with pytest.raises(UsageError, match="was changed while it was being verified"):
        verify_engine._save(folder, replace(others, drafter=replace(manifest.drafter, file=graph)), done)


def test_interrupted_run_keeps_finished_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify_engine, "compare_with_sources", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify(Engine.load(folder), max_tokens=4, k=(2,), prompts=code_prompts(1))
    found = json.loads((folder / FILE_NAME).read_text())
    assert found["losslessness"]["passed"] is True
    assert (found["passed"], found["status"]) == (False, "not checked"), "a part is still to come"
    assert found["parts"] == {
        "losslessness": "passed", "text": "passed", "parity": "not reached", "precision": "not needed",
    }  # fmt: skip


@pytest.mark.parametrize("part", ["parity", "precision"])
def test_missing_checkpoint_is_named_with_its_path(part: str, folder: Path, fp8: Manifest, tmp_path: Path) -> None:
    manifest = fp8 if part == "precision" else Manifest.read(folder)
    manifest = replace(
        manifest, target=replace(manifest.target, origin=replace(manifest.target.origin, source=str(tmp_path / "gone")))
    )
    with pytest.raises(EnvironmentProblem) as caught:
        require_parts(manifest, (part,))
    assert f"--only {part} needs the checkpoint of the target" in caught.value.what
    assert str(tmp_path / "gone") in caught.value.why
    require_parts(manifest, ("losslessness",))


@pytest.mark.parametrize(
    ("part", "narrow", "drafts", "why"),
    [
        ("speed", False, True, "'speed' is not a check of verify"),
        ("precision", False, True, "the engine is in fp32"),
        ("parity", True, True, "the engine is in fp8"),
        ("losslessness", False, False, "has no drafter"),
    ],
)
def test_a_part_that_this_engine_does_not_have_is_refused(
    part: str, narrow: bool, drafts: bool, why: str, folder: Path, fp8: Manifest
) -> None:
    manifest = fp8 if narrow else Manifest.read(folder)
    manifest = (
        manifest if drafts else replace(manifest, drafter=None, method="none", speculation=Speculation(0, 0, None))
    )
    with pytest.raises(UsageError, match=why):
        require_parts(manifest, (part,))


def test_unrunnable_engine_rejects_run_only_checks(
    folder: Path, fp8: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = replace(fp8, backend=replace(fp8.backend, gpus=("sm_100",)))

    def load(*_: Any, **__: Any) -> None:
        raise EnvironmentProblem("there is no NVIDIA GPU")

    monkeypatch.setattr("peagle.engines.Engine.load", load)
    monkeypatch.setattr(Manifest, "read", lambda _: manifest)
    with pytest.raises(EnvironmentProblem, match="there is no NVIDIA GPU"):
        verify_path(folder, VerifyOptions(only=("losslessness",)))


def test_actual_compute_share_is_reported_first() -> None:
    found = Verification("e", "1", multiplied="3.0% of the weights")
    assert next(iter(found.as_json().items())) == ("multiplied", "3.0% of the weights")
    assert lines(found)[0] == ("multiplied", "3.0% of the weights")
