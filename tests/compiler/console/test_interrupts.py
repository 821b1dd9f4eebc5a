"""Interruptions get through even where a library catches everything."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SWALLOWED = """
import os, signal, sys
from peagle.compiler.console import interrupts
from peagle.compiler.console.printing import interruptible, report_failure

interrupts.watch()

@interruptible("the work is kept")
def verb():
    try:
        os.kill(os.getpid(), signal.Signals(int(sys.argv[1])))
    except BaseException:
        pass
    {then}

try:
    verb()
except Exception as error:
    sys.exit(report_failure(error, as_json=False))
"""


@pytest.mark.parametrize("then", ["interrupts.check()", "raise ImportError('half imported')"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_swallowed_signal_counts_at_the_next_step(then: str, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-c", SWALLOWED.format(then=then), str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
