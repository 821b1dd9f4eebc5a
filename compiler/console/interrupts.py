"""Signal handling: Ctrl-C, SIGTERM and SIGHUP unwind the program, or end the process if it does not unwind.

A Python signal handler raises in whatever code runs at that moment. Some code swallows the exception (weak-reference
callbacks, ``__del__``, libraries that catch everything), the import system would keep its lock, and a native module
that is being loaded may abort. The stop is therefore raised again until an exception is propagating. After ``PATIENCE``
seconds, for example in a native call that does not return, or at a second Ctrl-C, a thread removes temporary files and
ends the process.
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

from . import exit_cleanup

PATIENCE = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = signal.SIGALRM
_PAUSE = 0.02


class Interrupt(KeyboardInterrupt):
    """The exception raised for Ctrl-C."""


class Termination(SystemExit):
    """The exception raised for SIGTERM or SIGHUP; it unwinds like Ctrl-C, so that a build cleans up."""


class _Stop:
    """The requested stop: its signal, and the exception raised for it while that propagates."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_heard = False
        self._raised: weakref.ref[BaseException] | None = None

    @property
    def is_due(self) -> bool:
        """True if a stop was requested and no exception for it is alive; a swallowed one is freed at once."""
        is_raised = self._raised is not None and self._raised() is not None
        return self.number is not None and not self.is_heard and not is_raised

    def exception(self) -> BaseException:
        """Return a new exception to raise."""
        number = self.number or signal.SIGINT
        exception = Interrupt() if number == signal.SIGINT else Termination(128 + number)
        self._raised = weakref.ref(exception)
        return exception


_stop = _Stop()
_is_watched = False
_taken: Callable[[], object] | None = None
_taken_signals: frozenset[int] = frozenset()


def watch(on_forced_exit: Callable[[int], object] = lambda number: None) -> None:
    """Handle stop signals. ``on_forced_exit`` is called with the signal's number if the program does not unwind."""
    global _is_watched
    if _is_watched:
        return
    _is_watched = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    sys.unraisablehook = _quiet_about_stops(sys.unraisablehook)
    threading.Thread(target=_stop_until_effective, args=(reader, on_forced_exit), name="stops", daemon=True).start()
    signal.signal(_AGAIN, _handle_signal)
    for number in _STOPS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _handle_signal)
    atexit.register(_ignore)


@contextmanager
def override_handler(handler: Callable[[], object], signals: Iterable[int] = (signal.SIGINT,)) -> Iterator[None]:
    """Call ``handler`` in the main thread for ``signals`` inside the block, instead of stopping the program."""
    global _taken, _taken_signals
    before = {number: signal.getsignal(number) for number in signals}
    _taken, _taken_signals = handler, frozenset(before)
    for number in before:
        signal.signal(number, _handle_signal)
    try:
        yield
    finally:
        _taken, _taken_signals = None, frozenset()
        for number, handled in before.items():
            signal.signal(number, handled)


def check() -> None:
    """Raise the requested stop again, in case its exception was swallowed."""
    if _stop.number is not None:
        raise _stop.exception()


def requested_signal() -> int | None:
    """Return the signal of the requested stop; None if there is none."""
    return _stop.number


def consume_signal() -> int | None:
    """Mark the stop as handled, since the program has unwound, and return its signal; None if there was none."""
    _stop.is_heard = True
    return _stop.number


def leave(code: int) -> NoReturn:
    """End the process, immediately after a stop, since half-imported libraries need no cleanup."""
    if consume_signal() is None:
        sys.exit(code)
    exit_cleanup.remove_all()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _ignore() -> None:
    """Ignore signals, so that none changes the exit code while Python shuts down and restores default handlers."""
    for number in (*_STOPS, _AGAIN):
        signal.signal(number, signal.SIG_IGN)


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise the stop, or leave it to the thread to retry if raising is unsafe now."""
    if _taken is not None and number in _taken_signals:
        _taken()
        return
    if _stop.number is None and number in _STOPS:
        _stop.number = number
    if _stop.is_due and not exit_cleanup.stops_are_deferred() and not _is_importing(frame):
        raise _stop.exception()


def _is_importing(frame: FrameType | None) -> bool:
    """Return True inside the import system itself (not in a module that it executes) or while a native module loads.

    C++ that calls Python while it initializes a module may abort the process if the call raises.
    """
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return True
    while frame is not None and not frame.f_code.co_qualname.startswith("ExtensionFileLoader."):
        frame = frame.f_back
    return frame is not None


def _quiet_about_stops(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """Suppress unraisable exceptions after a stop: they are the stop or a consequence of it."""

    def quiet(unraisable: Any) -> None:
        if _stop.number is None:
            hook(unraisable)

    return quiet


def _stop_until_effective(reader: int, on_forced_exit: Callable[[int], object]) -> None:
    """Thread body: wait for a stop signal, raise it until it takes effect, and end the process if it does not."""
    number = _first(reader)
    main, deadline = threading.main_thread().ident, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([reader], [], [], _PAUSE)[0] and any(_stops(os.read(reader, 512))):
            break  # second stop signal
        if main is not None and _stop.is_due:
            signal.pthread_kill(main, _AGAIN)
    exit_cleanup.remove_all()
    on_forced_exit(number)
    os._exit(128 + number)


def _first(reader: int) -> int:
    main = threading.main_thread().ident
    while True:
        received = os.read(reader, 512)
        for number in _stops(received):
            return number
        if any(number in _STOPS for number in received) and main is not None:
            # A signal with its own handler. A main thread that waits for input handles it only at the next key, unless
            # another signal wakes it.
            time.sleep(_PAUSE)
            signal.pthread_kill(main, _AGAIN)


def _stops(received: bytes) -> Iterable[int]:
    return (number for number in received if number in _STOPS and number not in _taken_signals)
