"""The tests that wait for a GPU run against a stand-in, so that a change elsewhere cannot break them unseen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.stages import shared_folder
from tests.gpu.plan_folders import make

pytestmark = pytest.mark.begins_first

ROOT = Path(__file__).resolve().parents[2]
PLANS = ("tiny", "tiny-float16", "tiny-fp8-caches", "eagle3", "demo")  # of the first parameters of each test


def test_every_gpu_test_runs_against_the_stand_in(
    demo_engine: Path, plugin_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One process, for PyTorch's functions are replaced in it; it shares the demo engine with this run.

    Plans are made here, because the build is replaced as well.
    """
    shared = shared_folder(tmp_path_factory)
    plans = tmp_path_factory.mktemp("plans")
    for kind in PLANS:
        make(kind, plans / kind, plans / "pairs")
    variables = {
        "PEAGLE_TEST_DEMO_ENGINE": str(demo_engine),
        "PEAGLE_TEST_PLUGIN_LIBRARY": str(plugin_library),
        "PEAGLE_TEST_PLANS": str(plans),
        "PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "alone"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.stand_in", "-m", "gpu", "tests/gpu", "-ra"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={shared / 'gpu-tests'}"],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    files = (ROOT / "tests" / "gpu").glob("test_*.py")
    functions = sum(len(re.findall(r"^(?:def )?test_\w+(?: =|\()", path.read_text(), re.MULTILINE)) for path in files)
    assert re.search(rf"\b{functions} passed, \d+ deselected", done.stdout), done.stdout
