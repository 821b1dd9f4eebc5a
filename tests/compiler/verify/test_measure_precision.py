"""The reference for an engine's precision: by default, one that fits in the memory of a GPU's host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.bundled.prompts import code_prompts
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify import measure_precision, verify
from peagle.compiler.verify.measure_precision import MeasureRequest
from peagle.compiler.verify.precision_cost import RUN, STREAMED
from peagle.engines import Engine
from peagle.engines.folder.records import FileEntry
from peagle.plugins import optional_packages
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.fixtures.commands import Run
from tests.models import Pair


@pytest.fixture
def on_gpu(tiny_pair: Pair, tiny_engine: Engine, tmp_path: Path) -> Engine:
    """The tiny pair as plans in FP16, on a stand-in for TensorRT."""
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float16", tiny_engine.manifest.shapes.cache_length)
    manifest = plan_manifest(tiny_engine.manifest, graphs, tmp_path)
    manifest = replace(manifest, precision=RECIPES["fp16"].record())
    for name in ("tokenizer.json", "generation_config.json", "drafter/config.json"):
        (tmp_path / name).write_bytes((tiny_engine.folder / name).read_bytes())
    engine, _ = plan_engine(tmp_path, manifest, tiny_engine.folder, slots=1)
    return engine


def test_an_engine_on_a_gpu_is_verified_without_the_pair_in_fp32(
    on_gpu: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts, as by default: nothing is traced, attached, or loaded whole."""
    data = tmp_path / "data.jsonl"
    ids = [[(7 * i + j * j) % 90 + 2 for j in range(40)] for i in range(3)]
    data.write_text("".join(json.dumps({"input_ids": each}) + "\n" for each in ids))
    monkeypatch.setattr(measure_precision, "UnpublishedPairs", lambda *_: pytest.fail("it made the pair"))
    monkeypatch.setattr("peagle.graphs.drafters.torch_reference.load_target", lambda *_: pytest.fail("it was loaded"))
    found = verify(on_gpu, prompts=code_prompts(1), max_tokens=8, k=(2,), request=MeasureRequest(data))
    assert found.passed
    assert found.precision is not None
    assert (found.precision.status, found.precision.measured, found.precision.against) == ("passed", RUN, STREAMED)
    assert found.precision.logits is not None
    assert found.precision.logits.tokens == 120
    assert 0 < found.precision.logits.kl_mean < 1e-4, "FP16 rounds, and little"
    assert "--reference pair" in found.precision.notes[0]


def test_gpu_host_without_torch_reports_unchecked_parts(
    on_gpu: Engine, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the engine was built from an export."""
    folder = on_gpu.folder
    files = {path.relative_to(folder).as_posix(): FileEntry.of(path) for path in folder.rglob("*") if path.is_file()}
    on_gpu.manifest = replace(on_gpu.manifest, files=files)
    on_gpu.manifest.write(folder)
    monkeypatch.setattr(Engine, "load", lambda *_, **__: on_gpu)
    monkeypatch.setattr(optional_packages, "is_installed", lambda name: name != "torch")
    done = cli("verify", folder, "--prompts", 1, "--max-tokens", 6, "--num-speculative-tokens", 2)
    assert done.code == 3, done.out
    assert "comparing with FP32 needs packages that are not installed: torch" in done.out
    assert "NOT CHECKED: precision" in done.out
    assert "--only losslessness,text runs only the other parts" in done.err
    rest = ("--prompts", 1, "--max-tokens", 6, "--num-speculative-tokens", 2, "--only", "losslessness,text")
    assert cli("verify", folder, *rest).code == 0
    done = cli("verify", folder, "--only", "precision")
    assert (done.code, "verifying needs packages that are not installed: torch" in done.err) == (3, True)


def test_reference_follows_from_the_engine_by_default(on_gpu: Engine, tiny_engine: Engine) -> None:
    gpu, cpu = on_gpu.manifest, tiny_engine.manifest
    asked = (MeasureRequest(), MeasureRequest(bisect=True), MeasureRequest(reference="pair"))
    assert [each.reference_of(gpu) for each in asked] == ["streamed", "pair", "pair"]
    assert [each.reference_of(cpu) for each in asked] == ["pair"] * 3
    assert MeasureRequest(reference="streamed").reference_of(cpu) == "streamed"


def test_references_that_cannot_be_are_refused(cli: Run, tiny_folder: Path) -> None:
    done = cli("verify", tiny_folder, "--reference", "none")
    assert (done.code, "use streamed or pair" in done.err) == (2, True)
    done = cli("verify", tiny_folder, "--reference", "streamed", "--bisect")
    assert (done.code, "--bisect cannot be combined with --reference streamed" in done.err) == (2, True)
