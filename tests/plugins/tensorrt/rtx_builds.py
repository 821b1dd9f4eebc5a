"""Builds with TensorRT-RTX in a child process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins.ops import OPS

AOT = Path(__file__).with_name("aot.py")


def rtx_installed() -> bool:
    spec = importlib.util.find_spec("tensorrt_rtx")
    return spec is not None and spec.origin is not None


needs_rtx = pytest.mark.skipif(not rtx_installed(), reason="TensorRT-RTX is not installed (extra: rtx)")


def run_aot(
    cases: Sequence[Mapping[str, Any]], environment: Mapping[str, str] | None = None, product: str = "tensorrt-rtx"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(AOT), product],
        input=json.dumps(list(cases)),
        env=dict(os.environ) | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )


def results(process: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert process.returncode == 0, (
        f"the build died with {process.returncode}\n{process.stdout[-2000:]}{process.stderr[-2000:]}"
    )
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def shapes_at(op: str, sizes: Mapping[str, int]) -> dict[str, list[int]]:
    return {operand.name: [sizes[dim] for dim in operand.dims] for operand in OPS[op].inputs}


def profile(op: str, *three: Mapping[str, int]) -> dict[str, list[list[int]]]:
    """A profile for every input of the op, from the sizes at least, usually and at most."""
    at = [shapes_at(op, sizes) for sizes in three]
    return {operand.name: [shapes[operand.name] for shapes in at] for operand in OPS[op].inputs}
