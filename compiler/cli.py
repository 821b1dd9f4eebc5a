"""Entry point of the ``peagle-compile`` program: standard streams, signals and the exit code.

Slow imports happen after the signal handlers are installed; before that, Ctrl-C ends the process silently.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the ``peagle-compile`` command."""
    arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .console import interrupts, streams

    streams.prepare()
    interrupts.watch(lambda number: _report_stop(number, arguments))
    gc.set_threshold(100_000, 50, 100)  # else the collector scans torch's many objects again and again
    interrupts.leave(run_cli(arguments))


def run_cli(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Errors are reported on standard error, never raised."""
    from .console import interrupts

    try:
        from .verbs.program import app

        code = app(list(arguments), prog_name="peagle-compile", standalone_mode=False)
        sys.stdout.flush()
        interrupts.check()
    except (Exception, KeyboardInterrupt, interrupts.Termination) as error:
        stop = interrupts.consume_signal() or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
        if stop is not None:
            return _report_stop(stop, arguments)
        from .console.printing import report_failure

        return report_failure(error, as_json="--json" in arguments)
    return code if isinstance(code, int) else 0


def _report_stop(number: int, arguments: Sequence[str]) -> int:
    from .console.printing import report_stop

    return report_stop(number, as_json="--json" in arguments)
