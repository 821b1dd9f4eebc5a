"""An interruption that a library swallowed, as some do while they are imported, still counts at the next step."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

_asked: list[BaseException] = []


def watch() -> None:
    """Have Ctrl-C and SIGTERM unwind the program from here on, and remember them."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _terminate)


def check() -> None:
    """Raise again what was asked for and did not get through."""
    if _asked:
        raise _asked[-1]


def _interrupt(*_: Any) -> NoReturn:
    _asked.append(KeyboardInterrupt())
    raise _asked[-1]


def _terminate(*_: Any) -> NoReturn:
    """Unwind as Ctrl-C does, so that a build cleans up after itself."""
    _asked.append(SystemExit(128 + signal.SIGTERM))
    raise _asked[-1]
