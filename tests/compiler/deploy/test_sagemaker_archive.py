"""SageMaker archives contain exactly the engine's files, are reproducible, and are written completely or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from peagle.compiler.deploy.sagemaker_archive import write_archive
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import FILE_NAME, Manifest
from tests.compiler.deploy.saving import Saving
from tests.fixtures.commands import Run


def test_archive_contains_the_engine_at_top_level(cli: Run, engine: Path, tmp_path: Path) -> None:
    (engine / "notes.txt").write_text("not the engine's")
    out = tmp_path / "model.tar.gz"
    done = cli("sagemaker", engine, "--out", out, "--quiet", "--json", "--compression-level", 0)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["bytes"], said["sha256"]) == (out.stat().st_size, hashlib.sha256(out.read_bytes()).hexdigest())
    manifest = Manifest.read(engine)
    with tarfile.open(out) as tar:
        assert tar.getnames() == sorted({FILE_NAME, *manifest.files})
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            assert content.read() == (engine / member.name).read_bytes()
            assert (member.mode, member.uid, member.gid, member.mtime, member.uname) == (0o644, 0, 0, 0, "")
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "xzf", out, "-C", tmp_path / "there"], check=True)  # owned by another user, as on SageMaker
    assert (tmp_path / "there" / FILE_NAME).read_bytes() == (engine / FILE_NAME).read_bytes()


def test_same_engine_gives_the_same_archive_bytes(cli: Run, engine: Path, tmp_path: Path) -> None:
    archives = []
    for name in ("first", "second"):
        out = tmp_path / name / "model.tar.gz"
        assert cli("sagemaker", engine, "--out", out, "--quiet").code == 0
        archives.append(out.read_bytes())
        engine = engine.rename(engine.with_name("moved"))
        os.utime(engine / FILE_NAME, (1, 1))
        (engine / FILE_NAME).chmod(0o600)
    assert archives[0] == archives[1]


def test_a_damaged_engine_is_not_packed(cli: Run, engine: Path, tmp_path: Path) -> None:
    weights = engine / "target" / "model.onnx.data"
    changed = bytearray(weights.read_bytes())
    changed[len(changed) // 2] ^= 1
    weights.write_bytes(changed)
    out = tmp_path / "out" / "model.tar.gz"
    done = cli("sagemaker", engine, "--out", out)
    assert done.code == 3
    assert "was changed after the build" in done.err
    assert not out.parent.exists()


def test_results_of_verify_are_stored_after_the_archive_is_complete(engine: Path, tmp_path: Path) -> None:
    """The archive contains the engine that was checked, although it takes minutes to write."""
    out, saving = tmp_path / "model.tar.gz", Saving(engine, during="write the archive")
    packed = write_archive(engine, out, saving, level=0, force=False)
    saving.finish()
    with tarfile.open(out) as tar:
        tar.extractall(tmp_path / "there")  # its filters came with Python 3.11.4
    assert Manifest.read(tmp_path / "there") == packed.manifest != Manifest.read(engine)
    check_files(packed.manifest.files, tmp_path / "there")


@pytest.mark.parametrize(
    "name", ["model.zip", ".tar.gz", "folder.tar.gz", "there.tar.gz", "dangling.tar.gz", "a\nb.tar.gz"]
)
def test_unusable_output_path_is_rejected(cli: Run, demo_engine: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tar.gz").mkdir()
    (tmp_path / "there.tar.gz").write_text("mine")
    (tmp_path / "dangling.tar.gz").symlink_to("gone")
    before = sorted(tmp_path.iterdir())
    done = cli("sagemaker", demo_engine, "--out", tmp_path / name)
    assert done.code == 2
    assert "--out" in done.err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.tar.gz").read_text() == "mine"


def test_no_archive_is_put_into_an_engine(cli: Run, demo_engine: Path) -> None:
    done = cli("sagemaker", demo_engine, "--out", demo_engine / "model.tar.gz")
    assert (done.code, "is inside the engine" in done.err) == (2, True), done.err
    assert not (demo_engine / "model.tar.gz").exists()


def test_existing_file_is_replaced_on_request(cli: Run, demo_engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.tar.gz"
    out.write_text("old")
    assert cli("sagemaker", demo_engine, "--out", out, "--force", "--quiet", "--compression-level", 0).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.tar.gz"]
    assert tarfile.is_tarfile(out)


def test_folder_without_an_engine_is_not_packed(cli: Run, tmp_path: Path) -> None:
    done = cli("sagemaker", tmp_path, "--out", tmp_path / "model.tar.gz")
    assert done.code == 3
    assert "is not an engine folder" in done.err
    assert list(tmp_path.iterdir()) == []
