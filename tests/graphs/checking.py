"""The ONNX checker as a reader of our files has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CHECK = "import sys, onnx; [onnx.checker.check_model(path, full_check=True) for path in sys.argv[1:]]"


def check(*paths: Path) -> None:
    """In a process that does not know our schemas: they have no room for TensorRT's attributes, function calls do."""
    process = subprocess.run(
        [sys.executable, "-c", _CHECK, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
