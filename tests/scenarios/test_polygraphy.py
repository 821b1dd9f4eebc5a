"""The commands of docs/tensorrt.md for Polygraphy, on exports of every family."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.pipeline.export import export
from peagle.compiler.request.verb_options import EXPORT
from tests.fixtures.exports import Export
from tests.models import CONFIGS, make_pair

pytest.importorskip("polygraphy")
pytest.importorskip("onnx_graphsurgeon")
pytestmark = pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "tensorrt.md"
COMMANDS = re.findall(r"^(POLYGRAPHY\S+ )?\.venv/bin/polygraphy (.*)$", PAGE.read_text(), re.MULTILINE)


def _polygraphy(text: str, folder: Path, **variables: str) -> str:
    command = [sys.executable, "-c", "from polygraphy.tools import main; main()", *text.split()]
    environment = os.environ | variables | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("half", ["target", "drafter"])
def test_graphs_load_in_place_without_plugins(half: str, export_of: Export) -> None:
    graph, folder = f"{half}/model.onnx", export_of("qwen3")
    assert "Node(s)" in _polygraphy(f"inspect model {graph}", folder)
    told = _polygraphy(f"inspect capability {graph}", folder, POLYGRAPHY_USE_TENSORRT_RTX="1")
    assert "Graph is fully supported by TensorRT" in told


@pytest.mark.slow
@pytest.mark.parametrize("half", ["target", "drafter"])
@pytest.mark.parametrize("family", CONFIGS)
def test_every_command_of_the_page_works(family: str, half: str, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, family)
    export(
        EXPORT.request(
            model=str(pair.target), draft=str(pair.head), out=tmp_path / "demo-fp16", lowering="tensorrt",
            gpus="sm_120", precision="fp16", max_seq_len=64,
        )
    )  # fmt: skip
    assert len(COMMANDS) == 5
    for variable, text in COMMANDS:
        named = dict([variable.strip().split("=")]) if variable else {}
        _polygraphy(text.replace("/target/", f"/{half}/"), tmp_path, **named)
    assert (tmp_path / "target.plan").stat().st_size > 0
