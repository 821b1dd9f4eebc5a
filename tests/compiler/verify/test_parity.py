"""Logits of an engine against torch: the model loaded whole, or a layer of it at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.bundled.prompts import code_prompts
from peagle.compiler.console.progress import Quiet
from peagle.compiler.verify.measure_precision import streamed_passes_in
from peagle.compiler.verify.parity import compare_with_sources, whole_passes
from peagle.engines import Engine


def test_engine_matches_its_checkpoint_for_every_reader(
    tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compare_with_sources(tiny_engine, code_prompts(2), Quiet(), whole_passes)
    monkeypatch.setattr("peagle.graphs.drafters.torch_reference.load_target", lambda *_: pytest.fail("it was loaded"))
    streamed = compare_with_sources(tiny_engine, code_prompts(2), Quiet(), streamed_passes_in(tmp_path))
    for checks in (whole, streamed):
        assert [(check.name, check.status) for check in checks] == [
            ("target logits", "passed"), ("drafter logits", "passed"),
        ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["bisect.lock"], "the streams are gone"


def test_different_engine_fails_parity(tiny_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tiny_engine.target_logits
    monkeypatch.setattr(tiny_engine, "target_logits", lambda ids: right(ids) * 1.001)
    target, drafter = compare_with_sources(tiny_engine, code_prompts(1), Quiet(), streamed_passes_in(tmp_path))
    assert (target.status, drafter.status) == ("failed", "passed")
