"""ONNX Runtime's telemetry is off: it would start with a device id on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "module", ["peagle", "peagle.engines", "peagle.plugins.cpu.self_test", "peagle.compiler.verbs.program"]
)
def test_no_telemetry_is_started(module: str, tmp_path: Path) -> None:
    hidden = {"CI", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST", "ORT_DISABLE_TELEMETRY"}  # with which it reports nothing
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    code = f"import {module}, onnxruntime; print(onnxruntime.get_available_providers())"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE)
    assert [*tmp_path.rglob("*")] == []
