"""A Qwen3-Coder whose experts TensorRT's own layer multiplies wide: refused in FP8, or permitted and said first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.compiler.hardware.machine import LocalGpu, Machine
from tests.fixtures.commands import Outcome, Run
from tests.tools.test_synthetic_checkpoint import HEADS, SMALL, synthetic

SHORT = "20.0% of the weights that"
SAID = "20.0% of the weights that fp8 names are multiplied in FP8: routed experts (80.0% of them) are stored in FP8"
SIZES = HEADS | SMALL["qwen3-coder-30b"]


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven layers of eight experts, named as published; the folder of a pair."""
    spec = synthetic.Spec(
        "qwen3-coder-30b", tmp_path_factory.mktemp("coder") / "pair", layers=7, experts=8, hidden=64, vocab=300,
        sizes=tuple(SIZES.items()), head="flat",
    )  # fmt: skip
    synthetic.write(spec)
    (spec.out / "texts.jsonl").write_text((json.dumps({"text": "while b: a, b = b, a % b; " * 12}) + "\n") * 4)
    return spec.out


def pair(coder: Path, out: Path) -> list[object]:
    return [
        coder / "target", "--draft", coder / "head", "--precision", "fp8", "--calib-data", coder / "texts.jsonl",
        "--max-seq-len", 64, "--out", out,
    ]  # fmt: skip


def check_refused(done: Outcome, out: Path) -> None:
    assert done.code == 5
    assert f"{SHORT} --precision fp8 names would be multiplied in FP8" in done.err
    assert "routed experts (80.0% of them)" in done.err
    assert "model.layers.0.mlp.experts.gate_up_proj" in done.err
    assert "--allow-wide experts" in done.err
    assert not out.exists()


def test_an_export_for_sm100_in_fp8_is_refused_with_the_true_share_and_permitted_says_so_first(
    coder: Path, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["export", *pair(coder, out), "--for", "tensorrt-sm100"]
    with monkeypatch.context() as patched:
        patched.setattr(
            "peagle.compiler.pipeline.shared_steps.calibrated", lambda *_, **__: pytest.fail("it calibrated first")
        )
        check_refused(cli(*arguments), out)
    done = cli(*arguments, "--allow-wide", "experts")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split(maxsplit=1) == [
        "multiplied",
        f"{SAID} and multiplied in bf16, as --allow-wide experts permits",
    ]
    assert next(line for line in done.err.splitlines() if line.startswith("warning")).startswith(f"warning: {SAID}")
    for name in ("export.json", "export_report.json"):
        first, text = next(iter(json.loads((out / name).read_text()).items()))
        assert first == "multiplied"
        assert text.startswith(SAID)
    record = json.loads((out / "export_report.json").read_text())["precision"]["target"]
    assert record["share"] == pytest.approx(0.2, abs=5e-4)
    kinds = {row["role"]: (row["stored"], row["computed"]) for row in record["matmuls"] if row["narrow"]}
    assert kinds == {
        "attention": ("float8e4m3fn", "float8e4m3fn"), "experts": ("float8e4m3fn", "bfloat16"),
    }  # fmt: skip


def test_a_build_on_a_b200_is_refused_too(
    coder: Path, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine((LocalGpu("NVIDIA B200", 100),), {"tensorrt": "11.4.0"})
    monkeypatch.setattr("peagle.compiler.request.build_platform.look", lambda: machine)
    check_refused(cli("build", *pair(coder, tmp_path / "out")), tmp_path / "out")


def test_permission_for_what_is_no_group_is_refused(coder: Path, cli: Run, tmp_path: Path) -> None:
    done = cli("export", *pair(coder, tmp_path / "out"), "--allow-wide", "attention")
    assert done.code == 2
    assert "it is for experts" in done.err
