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


@pytest.mark.parametrize(
    ("selection", "kinds"),
    [
        ("gpu and not slow", ["tiny", "eagle3"]),
        pytest.param("gpu", ["tiny", "tiny-float16", "tiny-fp8-caches", "eagle3", "demo"], marks=pytest.mark.slow),
    ],
)
def test_every_gpu_test_runs_against_the_stand_in(
    demo_engine: Path,
    plugin_library: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    selection: str,
    kinds: list[str],
) -> None:
    """One process, for PyTorch's functions are replaced in it; it shares the demo engine with this run.

    Plans, of the ``kinds`` that the first parameters of the tests name, are made here: the build is replaced as well.
    """
    shared = shared_folder(tmp_path_factory)
    for kind in kinds:
        make(kind, tmp_path / "plans" / kind, tmp_path / "pairs")
    variables = {
        "PEAGLE_TEST_DEMO_ENGINE": str(demo_engine),
        "PEAGLE_TEST_PLUGIN_LIBRARY": str(plugin_library),
        "PEAGLE_TEST_PLANS": str(tmp_path / "plans"),
        "PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "alone"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.stand_in", "-m", selection, "tests/gpu", "-ra"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={shared / 'gpu-tests'}"],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py")]
    functions = sum(len(re.findall(r"^(?:def )?test_\w+(?: =|\()", text, re.MULTILINE)) for text in texts)
    left_out = 0 if selection == "gpu" else sum(text.count("@pytest.mark.slow\n") for text in texts)
    assert re.search(rf"\b{functions - left_out} passed, \d+ deselected", done.stdout), done.stdout
