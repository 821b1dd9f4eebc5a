"""What several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The models of the tests are tiny: a second thread costs more than it brings, most of all on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _own_stage_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Builds of the tests neither use nor fill the stage cache of whoever runs them."""
    before = os.environ.get("PEAGLE_CACHE")
    os.environ["PEAGLE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PEAGLE_CACHE"]
    else:
        os.environ["PEAGLE_CACHE"] = before


@pytest.fixture(scope="session")
def demo_engine(_own_stage_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo pair, built once per test run by the command a user would type. Copy it before changing it."""
    engine = tmp_path_factory.mktemp("engine") / "demo-engine"
    command = [str(Path(sys.executable).with_name("peagle-compile")), "build", "--model", "demo", "--out", str(engine)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} exited {done.returncode}\n{done.stdout}{done.stderr}"
    return engine
