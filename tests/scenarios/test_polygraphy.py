"""The commands of docs/tensorrt.md for Polygraphy, on exports of every family."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.compiler.hardware.machine import look
from peagle.compiler.pipeline.export import export
from peagle.compiler.request.verb_options import EXPORT
from tests.models import CONFIGS, make_pair

pytest.importorskip("polygraphy")
pytest.importorskip("onnx_graphsurgeon")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not look().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed"),
]
PAGE = Path(__file__).parents[2] / "docs" / "tensorrt.md"
COMMANDS = re.findall(r"^(POLYGRAPHY\S+ )?\.venv/bin/polygraphy (.*)$", PAGE.read_text(), re.MULTILINE)


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
    assert len(COMMANDS) == 4
    for variable, text in COMMANDS:
        named = dict([variable.strip().split("=")]) if variable else {}
        arguments = text.replace("/target/", f"/{half}/").split()
        command = [sys.executable, "-c", "from polygraphy.tools import main; main()", *arguments]
        environment = os.environ | named | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "target.plan").stat().st_size > 0
