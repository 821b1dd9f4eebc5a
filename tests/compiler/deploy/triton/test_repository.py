"""Model repositories on disk: written files, files left unchanged, and refusals."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.deploy.triton.options import RepositoryOptions
from peagle.compiler.deploy.triton.repository import write_repository
from peagle.compiler.store.locks import locked
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from tests.compiler.deploy.saving import Saving
from tests.fixtures.commands import Run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_engine_and_options_give_the_same_bytes(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    first, second = tmp_path / "a", tmp_path / "deeper" / "b"
    for repository in (first, second):
        assert cli("triton", demo_engine, "--repository", repository, "--name", "m", "--quiet").code == 0
    assert contents(first) == contents(second)
    assert not any(str(tmp_path).encode() in text or str(demo_engine).encode() in text
                   for name, text in contents(first).items() if "/1/engine/" not in name)  # fmt: skip


def test_the_engine_is_copied_whole(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    assert cli("triton", demo_engine, "--repository", tmp_path / "r").code == 0
    copy = tmp_path / "r" / demo_engine.name / "1" / "engine"
    files = {*Manifest.read(demo_engine).files, "engine.json"}
    assert set(contents(copy)) == files
    assert all((copy / name).read_bytes() == (demo_engine / name).read_bytes() for name in files)
    assert all((copy / name).stat().st_nlink == 1 for name in files)


def test_second_run_writes_nothing(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    command = ("triton", demo_engine, "--repository", tmp_path, "--name", "m", "--json")
    assert json.loads(cli(*command).out)["changed"] == ["m", "m_tokens", "m_whole"]
    config = tmp_path / "m" / "config.pbtxt"
    before = config.stat().st_mtime_ns, config.stat().st_ino
    assert json.loads(cli(*command).out)["changed"] == []
    assert (config.stat().st_mtime_ns, config.stat().st_ino) == before


def test_the_printed_command_is_quoted_for_a_shell(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    out = cli("triton", demo_engine, "--repository", tmp_path / "my models", "--link").out
    assert f"tritonserver --model-repository '{tmp_path / 'my models'}'" in out


def test_other_options_change_the_config_and_leave_no_trace_of_the_old(
    demo_engine: Path, tmp_path: Path, cli: Run
) -> None:
    command = ("triton", demo_engine, "--repository", tmp_path, "--name", "m")
    assert cli(*command).code == 0
    assert cli(*command, "--max-batch-size", 7, "--link").code == 0
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'key: "max_running" value: { string_value: "7" }' in text
    link = tmp_path / "m" / "1" / "engine"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == demo_engine.resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m_tokens", "m_whole"]


def test_engine_path_is_recorded_as_given(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    assert cli("triton", demo_engine, "--repository", tmp_path, "--name", "m", "--engine-path", "/engines/x").code == 0
    assert 'key: "engine_dir" value: { string_value: "/engines/x" }' in (tmp_path / "m" / "config.pbtxt").read_text()
    assert not (tmp_path / "m" / "1" / "engine").exists()


def test_drafters_are_copied_and_recorded(drafters_folder: Path, tmp_path: Path, cli: Run) -> None:
    command = ("triton", drafters_folder, "--repository", tmp_path, "--name", "m")
    assert cli(*command, "--draft", "twin", "--load-drafter", "noisy", "--load-drafter", "built-in").code == 0
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'key: "draft" value: { string_value: "twin" }' in text
    assert 'key: "drafters" value: { string_value: "noisy,built-in" }' in text
    assert (tmp_path / "m" / "1" / "engine" / "drafters" / "noisy" / "model.onnx").is_file()
    done = cli(*command, "--load-drafter", "unknown", "--link")
    assert (done.code, "has no drafter" in done.err) == (2, True)


@pytest.mark.parametrize("change", ["edited", "added", "removed", "foreign", "file"])
def test_foreign_files_are_replaced_only_with_force(demo_engine: Path, tmp_path: Path, cli: Run, change: str) -> None:
    command = ("triton", demo_engine, "--repository", tmp_path, "--name", "m", "--link")
    model = tmp_path / "m"
    if change == "foreign":
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text("mine")
    elif change == "file":
        model.write_text("mine")
    else:
        assert cli(*command).code == 0
        if change == "edited":
            (model / "config.pbtxt").write_text('name: "m"')
        elif change == "added":
            (model / "notes.txt").write_text("mine")
        else:
            (model / "config.pbtxt").unlink()
    before = contents(tmp_path)
    refused = cli(*command)
    assert refused.code == 2
    assert re.search(
        r"contains files that this command did not write: .*(config.pbtxt|model.py|notes.txt|m)", refused.err
    )
    assert contents(tmp_path) == before
    assert cli(*command, "--force").code == 0
    assert (model / "config.pbtxt").read_text().startswith("# Written by")
    assert not (model / "notes.txt").exists()


def test_neighbouring_models_are_untouched(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    other = tmp_path / "other" / "1"
    other.mkdir(parents=True)
    (other / "model.py").write_text("mine")
    assert cli("triton", demo_engine, "--repository", tmp_path, "--name", "m", "--link", "--force").code == 0
    assert (other / "model.py").read_text() == "mine"


def test_a_run_waits_for_another_that_writes_to_the_repository(demo_engine: Path, tmp_path: Path) -> None:
    options = RepositoryOptions("m", "link")
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path):
            second = pool.submit(write_repository, demo_engine, tmp_path, options, Quiet(), force=False)
            with pytest.raises(TimeoutError):
                second.result(1)
            assert not [*tmp_path.iterdir()]
        assert second.result(60).changed == ("m", "m_tokens", "m_whole")


def test_results_of_verify_are_stored_after_the_engine_was_copied(engine: Path, tmp_path: Path) -> None:
    """The copy is the engine that was checked, although copying takes minutes."""
    saving = Saving(engine, during="copy engine")
    write_repository(engine, tmp_path / "r", RepositoryOptions("m", "copy"), saving, force=False)
    saving.finish()
    copy = tmp_path / "r" / "m" / "1" / "engine"
    check_files(Manifest.read(copy).files, copy)
    assert Manifest.read(copy) != Manifest.read(engine)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--name", "a/b"), 2, "is not a valid model name"),
        (("--name", ".hidden"), 2, "is not a valid model name"),
        (("--name", "x" * 129), 2, "at most 128 letters"),
        (("--name", ""), 2, "is not a valid model name"),
        (("--gpus", "0"), 2, "--gpus does not work with a CPU engine"),
        (("--gpus", "a"), 2, "--gpus 'a' is not a list"),
        (("--link", "--engine-path", "/x"), 2, "cannot be combined"),
        (("--engine-path", 'a"b'), 2, "config.pbtxt cannot contain"),
        (("--engine-path", "/not-utf-8-\udcff"), 2, "config.pbtxt cannot contain"),
        (("--engine-path", ""), 2, "config.pbtxt cannot contain"),
        (("--request-timeout", "inf"), 2, "--request-timeout must be a finite number above 0"),
        (("--max-batch-size", "0"), 2, "max-batch-size"),
    ],
)
def test_invalid_request_is_rejected_before_writing(
    demo_engine: Path, tmp_path: Path, cli: Run, flags: tuple[str, ...], code: int, message: str
) -> None:
    done = cli("triton", demo_engine, "--repository", tmp_path / "r", *flags)
    assert (done.code, message in done.err) == (code, True), done.err
    assert not (tmp_path / "r").exists()


def test_a_damaged_engine_is_refused(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    engine = Path(shutil.copytree(demo_engine, tmp_path / "e"))
    with (engine / "target" / "model.onnx").open("ab") as file:
        file.write(b"x")
    for folder in (engine, tmp_path / "absent"):
        assert cli("triton", folder, "--repository", tmp_path / "r").code == 3
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("below", ["", "target", "new/models"])
def test_no_model_is_put_into_an_engine(demo_engine: Path, cli: Run, below: str) -> None:
    before = contents(demo_engine)
    done = cli("triton", demo_engine, "--repository", demo_engine / below, "--name", "m", "--link")
    assert (done.code, f"is inside the engine {demo_engine}" in done.err) == (2, True), done.err
    assert contents(demo_engine) == before


def test_engine_inside_the_output_folder_is_rejected(demo_engine: Path, tmp_path: Path, cli: Run) -> None:
    assert cli("triton", demo_engine, "--repository", tmp_path, "--name", "m").code == 0
    inside = tmp_path / "m" / "1" / "engine"
    before = contents(tmp_path)
    done = cli("triton", inside, "--repository", tmp_path, "--name", "m", "--force")
    assert done.code == 2
    assert "is inside" in done.err
    assert contents(tmp_path) == before
