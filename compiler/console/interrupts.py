"""A stop that is asked for is obeyed: Ctrl-C, SIGTERM or SIGHUP unwinds the program, or ends it where nothing unwinds.

A handler raises in whatever code runs at that moment. Some of it swallows that (the callback of a weak reference,
``__del__``, a library that catches everything), the import system would be left with its lock held, and a native module
that is being loaded may abort. So a stop is asked for again until it is on its way. What has not ended after
``PATIENCE`` seconds, as a native call that does not come back, or at a second Ctrl-C, is ended by a thread, which
removes what is half-made first.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from . import half_made

PATIENCE = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = signal.SIGALRM
_PAUSE = 0.02


class Interrupt(KeyboardInterrupt):
    """Ctrl-C on its way up."""


class Termination(SystemExit):
    """SIGTERM or SIGHUP on its way up; it unwinds as Ctrl-C does, so that a build cleans up after itself."""


class _Stop:
    """The stop that was asked for: which signal, and the exception that is on its way, for as long as one is."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_heard = False
        self._raised: weakref.ref[BaseException] | None = None

    @property
    def is_due(self) -> bool:
        """Whether it was asked for and nothing is on its way: an exception that is swallowed is gone at once."""
        is_raised = self._raised is not None and self._raised() is not None
        return self.number is not None and not self.is_heard and not is_raised

    def exception(self) -> BaseException:
        """A new one to raise."""
        number = self.number or signal.SIGINT
        made = Interrupt() if number == signal.SIGINT else Termination(128 + number)
        self._raised = weakref.ref(made)
        return made


_stop = _Stop()
_is_watched = False
_taken: Callable[[], object] | None = None
_taken_signals: frozenset[int] = frozenset()


def watch(last_words: Callable[[int], object] = lambda number: None) -> None:
    """Obey stops from here on. ``last_words`` are said with the signal's number where nothing unwinds."""
    global _is_watched
    if _is_watched:
        return
    _is_watched = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    sys.unraisablehook = _quiet_about_stops(sys.unraisablehook)
    threading.Thread(target=_see_to_it, args=(reader, last_words), name="stops", daemon=True).start()
    signal.signal(_AGAIN, _obey)
    for number in _STOPS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _obey)
    atexit.register(_ignore)


@contextmanager
def taken(handler: Callable[[], object], signals: Iterable[int] = (signal.SIGINT,)) -> Iterator[None]:
    """Have ``signals`` call ``handler`` in the main thread while this lasts; they are no stops then, others are."""
    global _taken, _taken_signals
    before = {number: signal.getsignal(number) for number in signals}
    _taken, _taken_signals = handler, frozenset(before)
    for number in before:
        signal.signal(number, _obey)
    try:
        yield
    finally:
        _taken, _taken_signals = None, frozenset()
        for number, handled in before.items():
            signal.signal(number, handled)


def check() -> None:
    """Raise again what was asked for and did not get through."""
    if _stop.number is not None:
        raise _stop.exception()


def asked() -> int | None:
    """Return the signal that asked for a stop, if one did."""
    return _stop.number


def heard() -> int | None:
    """Have a stop no longer raised, for the program has unwound; returns the signal that asked for it, if one did."""
    _stop.is_heard = True
    return _stop.number


def leave(code: int) -> NoReturn:
    """End the process. After a stop at once: libraries that are half imported need not tidy up."""
    if heard() is None:
        sys.exit(code)
    half_made.remove_all()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _ignore() -> None:
    """Have no stop change the exit code of what is done: Python gives signals back to the system as it shuts down."""
    for number in (*_STOPS, _AGAIN):
        signal.signal(number, signal.SIG_IGN)


def _obey(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise, unless this is no moment for it; then the thread asks again."""
    if _taken is not None and number in _taken_signals:
        _taken()
        return
    if _stop.number is None and number in _STOPS:
        _stop.number = number
    if _stop.is_due and not half_made.is_held() and not _is_importing(frame):
        raise _stop.exception()


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the import system itself is at work (not a module that it executes), or a native module is being loaded.

    C++ that calls Python while it sets up a module may end the process when that raises.
    """
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return True
    while frame is not None and not frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
        frame = frame.f_back
    return frame is not None


def _quiet_about_stops(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """Say nothing of what could not be raised after a stop: that is a stop, or comes of it."""

    def quiet(unraisable: Any) -> None:
        if _stop.number is None:
            hook(unraisable)

    return quiet


def _see_to_it(reader: int, last_words: Callable[[int], object]) -> None:
    """Run in a thread of its own: wait for a stop, ask for it until it is obeyed, and end the process if it is not."""
    number = _first(reader)
    main, deadline = threading.main_thread().ident, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([reader], [], [], _PAUSE)[0] and any(_stops(os.read(reader, 512))):
            break  # asked for twice
        if main is not None and _stop.is_due:
            signal.pthread_kill(main, _AGAIN)
    half_made.remove_all()
    last_words(number)
    os._exit(128 + number)


def _first(reader: int) -> int:
    main = threading.main_thread().ident
    while True:
        woken = os.read(reader, 512)
        for number in _stops(woken):
            return number
        if any(number in _STOPS for number in woken) and main is not None:
            # Somebody's own. If the main thread just began to wait for a key, it would be handled at the next one: any
            # signal wakes it.
            time.sleep(_PAUSE)
            signal.pthread_kill(main, _AGAIN)


def _stops(woken: bytes) -> Iterable[int]:
    return (number for number in woken if number in _STOPS and number not in _taken_signals)
