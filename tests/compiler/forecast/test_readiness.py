"""``doctor --model``: disk, memory and packages that a build takes here, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from peagle.compiler.forecast import disk, readiness
from tests.fixtures.commands import Run

pytestmark = pytest.mark.usefixtures("trials_once")


@pytest.fixture(autouse=True)
def one_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything on one disk with a terabyte free, and memory enough."""
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    room(monkeypatch, 10**12)
    monkeypatch.setattr(readiness, "free_memory", lambda: 10**12)


def room(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(readiness, "free_bytes", lambda _: count)


def test_what_can_be_built_is_told_with_what_it_takes(cli: Run) -> None:
    done = cli("doctor", "--model", "demo", "--precision", "fp8")
    assert done.code == 0
    for said in ("demo in fp8, for onnxruntime", "disk for the engine", "memory", "ready"):
        assert said in done.out
    found = json.loads(cli("doctor", "--model", "demo", "--json").out)
    assert found["ready"]
    assert {need["name"]: need["needed_bytes"] for need in found["needs"]}["disk for the download"] == 0
    assert not (Path.cwd() / "cache").exists()


def test_disks_are_counted_together(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = json.loads(cli("doctor", "--model", "demo", "--json").out)["needs"]
    engine = next(need["needed_bytes"] for need in needs if need["name"] == "disk for the engine")
    room(monkeypatch, 2 * engine - 1)
    done = cli("doctor", "--model", "demo")
    assert done.code == 3
    assert "disk for the engine" in done.err
    assert "before it" in done.err
    assert "PEAGLE_CACHE" in done.err
    assert "disk for kept steps:" not in done.err


def test_an_engine_that_shares_blocks_takes_no_disk(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "shares_blocks", lambda *_: True)
    needs = json.loads(cli("doctor", "--model", "demo", "--json").out)["needs"]
    assert {need["name"]: need["needed_bytes"] for need in needs}["disk for the engine"] == 0


def test_memory_that_is_too_little_is_named(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "free_memory", lambda: 1000)
    done = cli("doctor", "--model", "demo", "--json")
    assert done.code == 3
    assert not json.loads(done.out)["ready"]
    error = json.loads(done.err)["error"]
    assert "memory to trace and write:" in error["why"]
    assert "more memory" in error["fix"]


def test_a_plan_takes_the_memory_of_its_builder(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "free_memory", lambda: 20 * 10**9)
    done = cli("doctor", "--model", "qwen3-coder-30b", "--precision", "bf16", "--gpu", "b200", "--json")
    assert done.code == 3
    needs = {need["name"]: need for need in json.loads(done.out)["needs"]}
    assert not needs["memory to trace and write"]["lacks"]
    assert needs["memory to build plans"]["needed_bytes"] > 150 * 10**9
    assert "memory to build plans:" in json.loads(done.err)["error"]["why"]


def test_a_precision_that_would_be_refused_is_missing(cli: Run) -> None:
    done = cli("doctor", "--model", "qwen3-coder-30b", "--precision", "int8", "--gpu", "b200", "--json")
    assert done.code == 3
    assert "3.0% of the weights" in json.loads(done.out)["missing"][0]


def test_a_gpu_that_is_not_here_is_missing(cli: Run) -> None:
    done = cli("doctor", "--model", "demo", "--precision", "fp16", "--backend", "tensorrt", "--gpu", "b200")
    assert done.code == 3
    assert "no NVIDIA GPU" in done.err
    assert "b200 holds it" in done.out


def test_a_gpu_without_the_arithmetic_is_a_wrong_question(cli: Run) -> None:
    done = cli("doctor", "--model", "demo", "--precision", "fp8", "--backend", "tensorrt-rtx", "--gpu", "sm_80")
    assert done.code == 2
    assert "sm_80" in done.err


def test_a_missing_extra_is_named(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = cli("doctor", "--model", "demo")
    assert done.code == 3
    assert "torch" in done.err
    assert "[export]" in done.err


@pytest.mark.parametrize("arguments", [("--precision", "fp8"), ("--gpu", "b200", "--out", "x")])
def test_what_is_about_a_model_takes_one(cli: Run, arguments: tuple[str, ...]) -> None:
    done = cli("doctor", *arguments)
    assert done.code == 2
    assert "without --model" in done.err
