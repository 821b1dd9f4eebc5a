"""Calibration, quantization and proofs share one skeleton of the target, in an export and in a build.

The trace makes modules of its own, with the few layers that it needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3ForCausalLM

from peagle.compiler.pipeline.export import export
from peagle.compiler.request.verb_options import EXPORT
from peagle.compiler.store.stages import StageStore
from tests.models import Pair, make_pair


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text * 20}) + "\n" for text in ("def gcd(a, b):", "return a")))
    return path


@pytest.fixture
def constructed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of the models of transformers that were constructed."""
    devices: list[str] = []
    original = Qwen3ForCausalLM.__init__

    def counted(self: Any, *args: Any, **keywords: Any) -> None:
        original(self, *args, **keywords)
        devices.append(self.device.type)

    monkeypatch.setattr(Qwen3ForCausalLM, "__init__", counted)
    return devices


def test_an_int8_export_instantiates_its_target_once(texts: Path, tmp_path: Path, constructed: list[str]) -> None:
    pair: Pair = make_pair(tmp_path / "pair", "qwen3")
    constructed.clear()  # the test made a model with weights
    request = EXPORT.request(
        model=str(pair.target), out=tmp_path / "onnx", draft=str(pair.head), lowering="tensorrt",
        precision="int8", max_seq_len=64, calib_data=texts,
    )  # fmt: skip
    report = export(request, store=StageStore(tmp_path / "store")).report
    assert report["calibration"]
    assert not [phase for phase in report["phases"] if phase.get("reused")]
    assert constructed == ["meta", "meta"]
