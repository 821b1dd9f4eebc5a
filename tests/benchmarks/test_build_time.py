"""The build benchmark writes a pair, builds it, and reports the time of each phase."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "build_time.py"


@pytest.mark.slow
def test_a_pair_is_built_and_its_phases_are_printed() -> None:
    command = [sys.executable, str(BENCHMARK), "--runs", "1", "--limit", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, "no build is that fast"
    for phase in ("compile kernels", "calibrate", "trace target", "trace drafter", "choose K", r"whole \("):
        assert re.search(rf"^ +\d+\.\d s  {phase}", done.stdout, re.M), done.stdout + done.stderr
