"""Too little disk or memory ends a run before anything is created, as its dry run predicts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.resources import check, disk
from peagle.compiler.store.leftovers import temporary_path
from tests.fixtures.commands import Run
from tests.models import Pair

pytestmark = pytest.mark.usefixtures("trials_once")
MB = 10**6


@pytest.fixture(autouse=True)
def _is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the disk of these tests can: an engine takes room beside the kept steps."""
    monkeypatch.setattr(disk, "shares_blocks", lambda *_: False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stage cache in which nothing is kept."""
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def free(monkeypatch: pytest.MonkeyPatch, *, bytes_of_disk: int = 10**12, bytes_of_memory: int = 10**12) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: bytes_of_disk)
    monkeypatch.setattr(check, "free_memory", lambda: bytes_of_memory)


@pytest.mark.parametrize("ask", [("build", "demo", "--lowering", "std"), ("export", "demo")])
def test_too_small_disk_is_rejected_like_the_dry_run(
    ask: tuple[object, ...], cli: Run, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, bytes_of_disk=MB)
    ask = (*ask, "--out", tmp_path / "out")
    foretold = json.loads(cli(*ask, "--dry-run", "--json").out)["outcome"]
    done = cli(*ask, "--json")
    error = json.loads(done.err.splitlines()[-1])["error"]
    assert done.code == foretold["exit_code"] == 3
    assert error["what"] == "this machine has too little disk space"
    assert foretold["why"].startswith(f"{error['what']}; {error['why']}")
    assert "1.0 MB free" in error["why"]
    assert "--ignore-limits" in error["fix"]
    assert not (tmp_path / "out").exists()
    assert not list(cache.glob("trace-*"))


def test_too_little_memory_is_rejected_like_the_dry_run(
    cli: Run, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, bytes_of_memory=MB)
    ask = ("build", "demo", "--precision", "fp8", "--backend", "onnxruntime", "--out", tmp_path / "out")
    said = cli(*ask, "--dry-run").out
    assert re.search(
        r"expected outcome +fails on this machine with exit code 3: this machine has too little memory; ", said
    )
    done = cli(*ask)
    assert done.code == 3
    assert "memory to calibrate: " in done.err
    assert "(a layer in FP32), 1.0 MB free (this machine)" in done.err
    assert not (cache / "calibrate").exists()


def test_an_fp8_checkpoint_is_refused_too(
    cli: Run, tiny_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("quantize", "--model", tiny_pair.target, "--out", tmp_path / "out")
    for little in ({"bytes_of_disk": 1000}, {"bytes_of_memory": 1000}):
        free(monkeypatch, **little)
        done = cli(*ask)
        assert done.code == 3
        assert "1.0 kB free" in done.err
    assert not (tmp_path / "out").exists()


def test_limits_can_be_ignored_and_leftovers_are_removed_first(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (left := temporary_path(tmp_path / "out")).mkdir()
    free(monkeypatch)
    monkeypatch.setattr(disk, "free_bytes", lambda _: 0 if left.exists() else MB)
    ask = ("export", "demo", "--ignore-limits", "--out", tmp_path / "out")
    said = cli(*ask, "--dry-run").out
    assert "starts because of --ignore-limits, although this machine has too little disk space; " in said
    done = cli(*ask)
    assert done.code == 0, done.err
    assert "warning: started because of --ignore-limits: this machine has too little disk space; " in done.err
    assert "1.0 MB free" in done.err


def test_cached_steps_are_not_counted_again(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*flags: str) -> dict[str, Any]:
        return dict(json.loads(cli("build", "demo", "--out", tmp_path / "out", "--dry-run", "--json", *flags).out))

    weights = sum(file.stat().st_size for file in demo_engine.glob("*/*.data"))
    free(monkeypatch, bytes_of_disk=weights * 5 // 4)
    found = plan()
    assert found["disk"]["done_bytes"] >= found["disk"]["kept_bytes"] > 10 * MB
    assert found["outcome"] == {"exit_code": 0, "why": ""}
    assert plan("--force")["outcome"]["exit_code"] == 3, "every step is made anew, beside the old one"


@pytest.mark.slow  # it starts a process that imports torch
@pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")
def test_a_disk_of_two_megabytes_is_refused(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=2m none {small} && export PEAGLE_CACHE={small}/cache && exec "
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    if subprocess.run([*inside, f"{mount} true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    build = f"{Path(sys.executable).parent}/peagle-compile build --model demo --lowering std --out {small}/engine"
    done = subprocess.run([*inside, mount + build], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "this machine has too little disk space" in done.stderr
    assert "2.1 MB free" in done.stderr
