"""The download of a build is part of the estimate of a dry run, and of the predicted outcome."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.request.request import ModelRef
from peagle.compiler.resources import disk, download
from peagle.compiler.resources.download import download_need
from tests.fixtures.commands import Run

PUBLISHED = 61_064_245_248  # bytes of Qwen3-Coder-30B-A3B-Instruct
ASK = ("build", "--model", "qwen3-coder-30b", "--precision", "fp8", "--backend", "onnxruntime", "--dry-run")


@pytest.fixture(autouse=True)
def _empty_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    free(monkeypatch, 10**12)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (disk, download):
        monkeypatch.setattr(module, "free_bytes", lambda _: count)


def plan(cli: Run) -> dict[str, Any]:
    done = cli(*ASK, "--json")
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def test_download_is_included_and_comes_first(cli: Run) -> None:
    found = plan(cli)
    needs = {need["name"]: need for need in found["needs"]}
    assert needs["disk for the download"]["bytes"] == PUBLISHED
    assert needs["disk for cached steps"]["before_bytes"] == PUBLISHED
    assert found["outcome"] == {"exit_code": 0, "why": ""}
    shown = cli(*ASK).out
    assert "61.1 GB more, as published" in shown
    assert "no known blocker on this machine" in shown


def test_disk_that_fits_the_engine_but_not_the_download_is_too_small(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {need["name"]: need for need in plan(cli)["needs"]}
    free(monkeypatch, needs["disk for the output"]["bytes"] + needs["disk for cached steps"]["bytes"] + 1)
    outcome = plan(cli)["outcome"]
    assert outcome["exit_code"] == 3
    assert "too little disk space" in outcome["why"]
    assert "no known blocker" not in cli(*ASK).out


def test_cached_hub_files_are_not_downloaded_again(tmp_path: Path) -> None:
    asked = ModelRef("qwen3-coder-30b")
    blobs = tmp_path / "hub" / "hub" / "models--Qwen--Qwen3-Coder-30B-A3B-Instruct" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "a").open("wb") as file:
        file.truncate(1_000_000)
    need = download_need(asked)
    assert need is not None
    assert need.bytes == PUBLISHED - 1_000_000
    with (blobs / "b").open("wb") as file:
        file.truncate(PUBLISHED)
    need = download_need(asked)
    assert need is not None
    assert need.bytes == 0


@pytest.mark.parametrize("model", ["demo", "smollm2-135m"])
def test_local_files_need_no_download(model: str) -> None:
    need = download_need(ModelRef(model))
    assert (need is None) == (model == "demo")


def test_forbidden_download_ends_the_build(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    outcome = plan(cli)["outcome"]
    assert outcome["exit_code"] == 3
    assert "HF_HUB_OFFLINE disables downloads" in outcome["why"]
