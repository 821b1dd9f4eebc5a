"""``doctor --model``: disk, memory and packages that a build requires, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from peagle.compiler.hardware.gpus import find_gpu
from peagle.compiler.resources import check, disk, download
from peagle.compiler.resources.gpu_memory import RESERVE, fit
from peagle.compiler.resources.readiness import fit_of
from tests.fixtures.commands import Run

pytestmark = pytest.mark.usefixtures("trials_once")


@pytest.fixture(autouse=True)
def one_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything on one disk with a terabyte free, and memory enough."""
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    free_disk(monkeypatch, 10**12)
    free_memory(monkeypatch, 10**12)


def free_disk(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (disk, download):
        monkeypatch.setattr(module, "free_bytes", lambda _: count)


def free_memory(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: count)


def test_buildable_targets_are_listed_with_requirements(cli: Run) -> None:
    done = cli("doctor", "--model", "demo", "--precision", "fp8")
    assert done.code == 0
    for said in ("demo in fp8, for onnxruntime", "disk for the output", "memory", "ready"):
        assert said in done.out
    found = json.loads(cli("doctor", "--model", "demo", "--json").out)
    assert found["ready"]
    assert "disk for the download" not in {need["name"] for need in found["needs"]}
    assert not (Path.cwd() / "cache").exists()


def test_download_and_result_share_a_disk(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("doctor", "--model", "qwen3-coder-30b", "--precision", "fp8", "--backend", "onnxruntime", "--json")
    needs = {need["name"]: need for need in json.loads(cli(*ask).out)["needs"]}
    made = needs["disk for the output"]
    assert made["before_bytes"] == needs["disk for the download"]["bytes"] + needs["disk for cached steps"]["bytes"]
    free_disk(monkeypatch, made["before_bytes"] + made["bytes"] - 1)
    done = cli(*ask)
    assert done.code == 3
    error = json.loads(done.err)["error"]
    assert error["why"].startswith("disk for the output: ")
    assert "for earlier steps" in error["why"]
    assert "set --out to a folder on a larger disk" in error["fix"]


def test_an_engine_that_shares_blocks_takes_no_disk(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "shares_blocks", lambda *_: True)
    names = {need["name"] for need in json.loads(cli("doctor", "--model", "demo", "--json").out)["needs"]}
    assert "disk for cached steps" in names
    assert "disk for the output" not in names


def test_insufficient_memory_is_named(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 1000)
    done = cli("doctor", "--model", "demo", "--precision", "fp8", "--json")
    assert done.code == 3
    found, error = json.loads(done.out), json.loads(done.err)["error"]
    assert not found["ready"]
    assert "memory to calibrate:" in error["why"]
    assert "--scales" in error["fix"]
    assert any(note.startswith("memory to trace and write:") for note in found["notes"]), "a guess refuses nothing"


def test_plan_needs_builder_memory(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 20 * 10**9)
    ask = ("doctor", "--model", "qwen3-coder-30b", "--precision", "bf16", "--json", "--backend", "tensorrt-rtx")
    done = cli(*ask, "--gpu", "sm_120")
    assert done.code == 3
    needs = {need["name"]: need for need in json.loads(done.out)["needs"]}
    assert needs["memory to trace and write"]["bytes"] < 2 * 10**9
    assert needs["memory to build plans"]["bytes"] > 180 * 10**9
    assert "memory to build plans:" in json.loads(done.err)["error"]["why"]


def test_unmeasured_full_tensorrt_never_rejects(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 20 * 10**9)
    done = cli("doctor", "--model", "qwen3-coder-30b", "--precision", "bf16", "--gpu", "b200", "--json")
    assert "memory" not in json.loads(done.err)["error"]["why"]
    assert any(note.startswith("memory to build plans:") for note in json.loads(done.out)["notes"])


def test_a_precision_that_would_be_refused_is_missing(cli: Run) -> None:
    done = cli("doctor", "--model", "qwen3-coder-30b", "--precision", "int8", "--gpu", "b200", "--json")
    assert done.code == 3
    assert "3.0% of the weights" in json.loads(done.out)["missing"][0]


def test_absent_gpu_is_reported_missing(cli: Run) -> None:
    done = cli("doctor", "--model", "demo", "--precision", "fp16", "--backend", "tensorrt", "--gpu", "b200")
    assert done.code == 3
    assert "no NVIDIA GPU" in done.err
    assert "the engine fits b200" in done.out


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
def test_model_specific_checks_require_a_model(cli: Run, arguments: tuple[str, ...]) -> None:
    done = cli("doctor", *arguments)
    assert done.code == 2
    assert "without --model" in done.err


def test_a_gpu_with_room_for_fewer_slots_than_planned_is_ready() -> None:
    """An engine can be loaded with fewer slots than it was built for; without room for one, what one lacks is named."""
    b200 = find_gpu("b200")
    room = b200.memory_bytes - int(b200.memory_bytes * RESERVE)
    few = fit(b200, (), weight_bytes=0, slot_bytes=room // 3, slots=8)
    none = fit(b200, (), weight_bytes=room - 10**9, slot_bytes=3 * 10**9, slots=8)
    assert not few.fits
    assert fit_of(SimpleNamespace(gpu=few)) == ("the engine fits b200, with 3 slots", False)  # type: ignore[arg-type]
    assert fit_of(SimpleNamespace(gpu=none)) == ("the engine does not fit b200: short by 2.0 GB", True)  # type: ignore[arg-type]
