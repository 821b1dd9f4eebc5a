"""Dry runs of supported models: an offline estimate for B200, without weights, in the right order of magnitude."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.commands import Run


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))


def _of(cli: Run, *arguments: object) -> dict[str, Any]:
    done = cli("build", "--dry-run", "--json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["speed_estimate"]
    return found


def _rounds(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["k"]: each for each in found["rounds"]}


def test_qwen3_coder_on_b200_by_hand(cli: Run) -> None:
    found = _of(cli, "--model", "qwen3-coder-30b", "--precision", "fp8", "--gpu", "b200")
    rounds = _rounds(found)
    assert {0, 4, 8, 16} <= set(rounds)
    read = found["pass_bytes"]
    weights = sum(read[kind] for kind in ("attention", "experts", "router", "lm_head", "other"))
    assert weights == pytest.approx(3.37e9, rel=0.005), "0.906 attention, 1.81 of 8 experts, 0.62 LM head, 0.03 router"
    assert read["KV cache"] == 98_304 * 1025
    assert found["experts"]["4"] == pytest.approx(35.3, abs=0.05)
    assert rounds[0]["floor_ms"] == pytest.approx(sum(read.values()) / 8e9, rel=1e-3)
    assert 1.5 < rounds[0]["best_ms"] < rounds[0]["worst_ms"] < 4
    assert 800 < rounds[4]["tokens_per_second"]["slowest"] < rounds[4]["tokens_per_second"]["fastest"] < 1500
    assert rounds[4]["tokens"] == pytest.approx(4.30)
    assert rounds[4]["tokens"] < rounds[8]["tokens"] < rounds[16]["tokens"]
    assert 4 <= found["fastest"] <= 18
    assert any("hazyresearch" in source for source in found["sources"])
    assert any("assumed" in source for source in found["sources"])


def test_gpt_oss_on_b200_reads_every_expert_if_these_are_dense(cli: Run) -> None:
    """By default it does not: tests/scenarios/test_mxfp4_experts.py."""
    found = _of(cli, "--model", "gpt-oss-120b", "--precision", "fp8", "--gpu", "b200", "--experts", "dense")
    rounds = _rounds(found)
    assert {0, 4, 8, 16} <= set(rounds)
    assert found["pass_bytes"]["experts"] > 110e9
    assert set(found["experts"].values()) == {128}
    assert rounds[0]["tokens_per_second"]["floor"] == pytest.approx(68, abs=2)
    assert "the head was trained for K = 8" in found["sources"]


def test_gemma_needs_an_acceptance_length(cli: Run) -> None:
    asked = ("--model", "gemma-4-31b", "--precision", "fp8", "--gpu", "b200")
    found = _of(cli, *asked)
    rounds = _rounds(found)
    assert {0, 4, 8, 16} <= set(rounds)
    assert rounds[8]["best_ms"] > 0
    assert rounds[8]["tokens"] is found["fastest"] is None
    assert any("--acceptance-length" in source for source in found["sources"])
    given = _of(cli, *asked, "--acceptance-length", "8:3.5")
    assert _rounds(given)[8]["tokens"] == pytest.approx(3.5)
    assert given["fastest"]
    done = cli("build", "--dry-run", *asked)
    table = [line for line in done.out.splitlines() if line.startswith(("speed estimate", "  plain", "  K ="))]
    assert len(table) == 5
    assert "not measured" in done.out


def test_without_a_gpu_only_the_work_is_shown(cli: Run) -> None:
    found = _of(cli, "--model", "demo", "--backend", "onnxruntime", "--acceptance-length", "3")
    assert found["device"] is None
    assert all(each["best_ms"] is None and each["bytes"] > 0 for each in found["rounds"])
    assert _rounds(found)[8]["tokens"] == pytest.approx(3.0), "one number is for the trained depth"
    architecture = _of(cli, "--model", "demo", "--backend", "tensorrt-rtx", "--gpu", "sm_120")
    assert architecture["device"] is None
    assert any("--gpu b200" in source for source in architecture["sources"])


def test_plain_decoding_and_a_given_number_of_drafts(cli: Run) -> None:
    plain = _of(cli, "--model", "demo", "--draft", "none", "--backend", "tensorrt-rtx", "--gpu", "rtx-5090")
    assert [each["k"] for each in plain["rounds"]] == [0]
    assert plain["fastest"] == 0
    five = _of(cli, "--model", "demo", "--num-speculative-tokens", "5", "--backend", "onnxruntime")
    assert 5 in _rounds(five)


def test_impossible_lengths_end_a_dry_run(cli: Run) -> None:
    done = cli("build", "demo", "--dry-run", "--acceptance-length", "4:9")
    assert done.code == 2
    assert "--acceptance-length 4:9: invalid lengths" in done.err
    assert cli("export", "demo", "--dry-run", "--acceptance-length", "x").code == 2
