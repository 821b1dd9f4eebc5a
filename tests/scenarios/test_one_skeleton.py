"""A build instantiates its target once, for calibration, quantization, tracing and proofs.

The trace makes modules of its own, with the few layers that it needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3ForCausalLM

from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from tests.models import Pair, make_pair

pytestmark = pytest.mark.begins_first


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


@pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed")
def test_an_int8_plan_is_built_with_one_skeleton(
    texts: Path, tmp_path: Path, constructed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pair: Pair = make_pair(tmp_path / "pair", "qwen3")
    constructed.clear()  # the test made a model with weights
    request = BUILD.request(
        model=str(pair.target), out=tmp_path / "engine", draft=str(pair.head), backend="tensorrt-rtx",
        gpus=("sm_120",), precision="int8", max_seq_len=64, max_batch_size=1, optimization_level=0, calib_data=texts,
    )  # fmt: skip
    store = StageStore(tmp_path / "store")
    store.root.mkdir()
    compiled = StageStore.default().root / "kernels"
    compiled.mkdir(exist_ok=True)
    (store.root / "kernels").symlink_to(compiled)  # those of the session; they know no module
    result = build(request, store=store)
    assert result.manifest.precision["weights"] == "int8"
    assert result.report["calibration"]
    assert {phase["phase"] for phase in result.report["phases"] if phase.get("reused")} <= {"kernels"}
    assert constructed == ["meta", "meta"]
