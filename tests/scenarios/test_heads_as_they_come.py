"""Heads with unusual configurations, from the command line, on a target of three layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import Manifest
from tests.fixtures.commands import Outcome, Run
from tests.models import CONFIGS, Pair, save_target

TAPS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def shallow(tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target of three layers, and a head whose configuration a test completes."""
    folder = tmp_path_factory.mktemp("shallow")
    target = save_target(folder / "target", CONFIGS["qwen3"] | {"num_hidden_layers": 3})
    return Pair(target, Path(shutil.copytree(tiny_pair.head, folder / "head")))


def head_saying(pair: Pair, folder: Path, **entries: Any) -> Path:
    """A copy of the head with these entries in its configuration."""
    head = Path(shutil.copytree(pair.head, folder / "head"))
    (head / "config.json").write_text(json.dumps(pair.head_config | entries))
    return head


def build(cli: Run, pair: Pair, head: Path, out: Path, *more: object) -> Outcome:
    sizes = ("--num-speculative-tokens", 2, "--max-seq-len", 64)
    return cli("build", pair.target, "--draft", head, *sizes, *more, "--out", out)


def test_a_head_that_names_its_taps_is_built(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    head, out = head_saying(shallow, tmp_path, **{TAPS: [0, 1, 2]}), tmp_path / "engine"
    done = build(cli, shallow, head, out)
    assert done.code == 0, done.err
    engine = Engine.load(out)
    assert engine.manifest.shapes.taps == (0, 1, 2)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    texts = {engine.generate([[5, 9, 30]], params, num_speculative_tokens=k)[0].token_ids for k in (0, 1, 2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("taps", "says"),
    [
        ([0, 1, 3], "taps [0, 1, 3] are invalid for a target of 3 layers"),
        ([0, 1, 47], "taps [0, 1, 47] are invalid for a target of 3 layers"),
        ([2, 1, 0], "taps [2, 1, 0] are invalid"),
        (
            None,
            f"a target of 3 layers has no default auxiliary hidden-state layers (taps), and the config lists none "
            f"({TAPS})",
        ),
    ],
)
def test_taps_that_cannot_be_are_refused_by_name(
    cli: Run, shallow: Pair, tmp_path: Path, taps: list[int] | None, says: str
) -> None:
    head, out = head_saying(shallow, tmp_path, **{TAPS: taps}), tmp_path / "engine"
    for more in ((), ("--dry-run",)):
        done = cli("build", shallow.target, "--draft", head, "--out", out, *more)
        assert (done.code, says in done.err) == (5, True), done.err
    assert not out.exists()


def test_missing_config_values_can_be_given_by_flags(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    """Taps and mask token; the engine is verified and repeated with them."""
    head = head_saying(shallow, tmp_path, ptd_token_id=None)
    out, told = tmp_path / "engine", ("--taps", "0,1,2", "--mask-token-id", 1)
    done = build(cli, shallow, head, out)
    assert (done.code, "no mask token id" in done.err) == (5, True)
    done = build(cli, shallow, head, out, *told)
    assert done.code == 0, done.err
    said = json.loads((out / "drafter" / "config.json").read_text())
    assert (said[TAPS], said["mask_token_id"]) == ([0, 1, 2], 1)
    done = cli("verify", out, "--prompts", 1, "--max-tokens", 4, "--num-speculative-tokens", 2, "--json")
    assert [check["status"] for check in json.loads(done.out)["parity"]] == ["passed", "passed"]
    done = cli("build", "--config", out / "resolved_config.yaml", "--out", tmp_path / "again")
    assert done.code == 0, done.err
    first, second = Manifest.read(out), Manifest.read(tmp_path / "again")
    assert (first.drafter, first.shapes) == (second.drafter, second.shapes)
    assert cli("build", shallow.target, "--draft", head, *told, "--dry-run").code == 0


@pytest.mark.parametrize("taps", ["2,x", "-1", "1.5", "2,,3", "9" * 5000])
def test_invalid_tap_layers_are_a_usage_error(cli: Run, shallow: Pair, tmp_path: Path, taps: str) -> None:
    done = build(cli, shallow, shallow.head, tmp_path / "engine", f"--taps={taps}")
    assert (done.code, "invalid layer ids" in done.err) == (2, True)


def test_a_head_of_an_unknown_architecture_is_built_with_a_warning(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    entries = {TAPS: [0, 1, 2], "architectures": ["OwnHead"], "ptd_token_id": None, "dspark_noise_token_id": 1}
    done = build(cli, shallow, head_saying(shallow, tmp_path, **entries), tmp_path / "engine")
    assert done.code == 0, done.err
    assert "the head's architecture OwnHead is unknown" in done.err


def test_head_with_fused_projections_and_extra_tensors_builds_with_a_warning(
    cli: Run, shallow: Pair, tmp_path: Path
) -> None:
    """It drafts what the head drafts that stores them apart."""
    logits = []
    for fuses in (False, True):
        folder = tmp_path / str(fuses)
        head, out = head_saying(shallow, folder, **{TAPS: [0, 1, 2]}), folder / "engine"
        if fuses:
            tensors = load_file(head / "model.safetensors")
            qkv = [tensors.pop(f"midlayer.self_attn.{part}_proj.weight") for part in "qkv"]
            gate_up = [tensors.pop(f"layers.1.mlp.{part}_proj.weight") for part in ("gate", "up")]
            tensors |= {"midlayer.self_attn.qkv_proj.weight": torch.cat(qkv), "confidence.weight": torch.ones(3)}
            save_file(tensors | {"layers.1.mlp.gate_up_proj.weight": torch.cat(gate_up)}, head / "model.safetensors")
        done = build(cli, shallow, head, out)
        assert (done.code, "which were ignored: confidence.weight;" in done.err) == (0, fuses), done.err
        logits.append(Engine.load(out).draft_logits([5, 9, 30, 2], 2))
    assert (logits[0] == logits[1]).all()
    sizes = ("--prompts", 1, "--max-tokens", 4, "--num-speculative-tokens", 2)
    done = cli("verify", tmp_path / "True" / "engine", *sizes, "--json")
    assert [check["status"] for check in json.loads(done.out)["parity"]] == ["passed", "passed"]


def test_unknown_head_is_rejected(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    head = head_saying(shallow, tmp_path, **{TAPS: [0, 1, 2], "architectures": ["OwnHead"]})
    tensors = load_file(head / "model.safetensors")
    del tensors["mask_hidden"]
    save_file(tensors, head / "model.safetensors")
    done = build(cli, shallow, head, tmp_path / "engine")
    assert (done.code, "OwnHead is not known as an EAGLE-3 or P-EAGLE head" in done.err) == (5, True)


def test_depth_beyond_the_kernel_limit_is_rejected(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    head = head_saying(shallow, tmp_path, **{TAPS: [0, 1, 2], "num_speculative_tokens": 1_000_000})
    done = build(cli, shallow, head, tmp_path / "engine")
    assert (done.code, "1000000 draft tokens per round, but the kernels support at most 63" in done.err) == (5, True)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_head_without_an_embedding_has_its_targets(cli: Run, tiny_pair: Pair, tmp_path: Path, precision: str) -> None:
    """It drafts what a head that stores the same table drafts, and no file holds that twice; another table stays."""
    own = load_file(tiny_pair.head / "model.safetensors")
    table = load_file(tiny_pair.target / "model.safetensors")["model.embed_tokens.weight"]
    logits, bytes_of = {}, {}
    for name, embedding in (("without", {}), ("copied", {"embed_tokens.weight": table}), ("own", own)):
        head, out = Path(shutil.copytree(tiny_pair.head, tmp_path / f"head-{name}")), tmp_path / name
        save_file({n: t for n, t in own.items() if n != "embed_tokens.weight"} | embedding, head / "model.safetensors")
        done = build(cli, tiny_pair, head, out, "--precision", precision)
        assert done.code == 0, done.err
        logits[name] = Engine.load(out).draft_logits([5, 9, 30, 2], 2)
        data = {path.relative_to(out).as_posix(): path.stat().st_size for path in out.rglob("*.data")}
        bytes_of[name] = sum(data.values())
        drafter = out / ("drafter/model.onnx" if name == "own" else "target/drafter.onnx")
        assert (drafter.with_name(f"{drafter.name}.data").relative_to(out).as_posix() in data, len(data)) == (True, 2)
        for graph in sorted(out.rglob("*.onnx")):
            onnx.load(graph)
    assert (logits["without"] == logits["copied"]).all()
    assert (logits["without"] != logits["own"]).any()
    assert bytes_of["without"] == bytes_of["copied"] <= bytes_of["own"] - table.numel() * 4
    if precision == "fp32":
        sizes = ("--prompts", 1, "--max-tokens", 4, "--num-speculative-tokens", 2)
        done = cli("verify", tmp_path / "without", *sizes, "--json")
        assert [check["status"] for check in json.loads(done.out)["parity"]] == ["passed", "passed"]
