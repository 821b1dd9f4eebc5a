"""The calibrated ranges of an engine are reconstructed from its calibration data, or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline.build import build
from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.compiler.precision.calibration.saved_ranges import Scales
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.compiler.verify.engine_origin import Origins
from peagle.compiler.verify.engine_ranges import rebuild_ranges
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import EnvironmentProblem
from tests.models import Pair, make_pair


def samples(path: Path, first: int) -> Path:
    """Write more and longer samples than calibration for a CPU uses by default."""
    ids = [[(first + 7 * i + 3 * j * j) % 90 + 2 for j in range(140)] for i in range(20)]
    path.write_text("".join(json.dumps({"input_ids": each}) + "\n" for each in ids))
    return path


def built(pair: Pair, out: Path, ranges: CalibrationOptions) -> Path:
    request = BUILD.request(
        model=str(pair.target), out=out, draft=str(pair.head), backend="onnxruntime", precision="fp8", max_seq_len=64,
        num_speculative_tokens=2,
    )  # fmt: skip
    return build(replace(request, calibration=ranges)).path


def again(engine: Path) -> Scales:
    manifest = Manifest.read(engine)
    return rebuild_ranges(engine, manifest, Origins.open(manifest, engine), StageStore.default(), Quiet())


def same(one: Scales, other: Scales) -> bool:
    pairs: list[tuple[Any, Any]] = [(one.inputs, other.inputs), (one.caches, other.caches)]
    return all(a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a) for a, b in pairs)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples(tmp_path_factory.mktemp("data") / "data.jsonl", 0)


@pytest.fixture(scope="module")
def engine(tiny: Pair, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    ranges = CalibrationOptions(data=data, method="percentile")
    return built(tiny, tmp_path_factory.mktemp("engine") / "engine", ranges)


def test_calibration_is_repeated_with_the_same_samples_or_skipped(engine: Path, data: Path) -> None:
    found, before = again(engine).facts, data.read_bytes()
    assert (found.num_samples, found.num_tokens, found.method["name"]) == (16, 2048, "percentile")
    try:
        samples(data, 5)
        with pytest.raises(EnvironmentProblem, match="cannot recover") as caught:
            again(engine)
        assert "the recorded settings now give" in caught.value.why
        data.unlink()
        with pytest.raises(EnvironmentProblem, match=r"cannot recover.*does not exist"):
            again(engine)
    finally:
        data.write_bytes(before)


@pytest.mark.slow
def test_saved_ranges_are_used_without_substitutes(tiny: Pair, engine: Path, tmp_path: Path) -> None:
    scales, kept = tmp_path / "scales", again(engine)
    kept.save(scales)
    saved = built(tiny, tmp_path / "saved", CalibrationOptions(scales=scales))
    assert same(again(saved), kept)
    shutil.move(scales, tmp_path / "elsewhere")
    with pytest.raises(EnvironmentProblem, match=r"cannot recover.*does not exist"):
        again(saved)
    other = CalibrationOptions(data=samples(tmp_path / "other.jsonl", 9), num_samples=4)
    again(built(tiny, tmp_path / "other", other)).save(scales)
    with pytest.raises(EnvironmentProblem, match="cannot recover") as caught:
        again(saved)
    assert "build_report.json records" in caught.value.why
