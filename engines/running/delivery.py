"""What the loop hands to the reader of a request: pieces of text as they come, and one end.

The loop's thread writes, any thread or event loop reads. Nobody polls: readers sleep until there is something.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..requests.results import Delta, RequestOutput


def wait_for(changed: threading.Condition) -> None:
    """Wait for a condition. Ctrl-C ends it, without the frames of ``threading`` in its traceback."""
    try:
        changed.wait()
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


class Delivery:
    """Pieces of one request, each taken once, and how it ended: an output or an error, and never both.

    ``in_pieces`` False keeps the end alone. ``at_end`` is called once, by the loop's thread.
    """

    def __init__(self, *, in_pieces: bool = True, at_end: Callable[[], object] | None = None) -> None:
        self.in_pieces = in_pieces
        self._at_end = at_end
        self._deltas: deque[Delta] = deque()
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes than what can be taken now."""
        return self._output is not None or self._error is not None

    def put(self, delta: Delta) -> None:
        """Hand over a piece."""
        with self._changed:
            self._deltas.append(delta)
            self._wake()

    def end(self, output: RequestOutput) -> None:
        """Hand over the result; nothing may follow."""
        self._finish(output, None)

    def fail(self, error: Exception) -> None:
        """Hand over the error that ended it; nothing may follow."""
        self._finish(None, error)

    def _finish(self, output: RequestOutput | None, error: Exception | None) -> None:
        with self._changed:
            if self.has_ended:
                raise ValueError("a request ends once")
            self._output, self._error = output, error
            self._wake()
        if self._at_end is not None:
            self._at_end()

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def take(self) -> Delta | None:
        """Return the next piece, waiting for it; None after the last. Raises the error that ended the request."""
        with self._changed:
            while not self._deltas and not self.has_ended:
                wait_for(self._changed)
            return self._next()

    def take_or_call(self, waker: Callable[[], None]) -> tuple[bool, Delta | None]:
        """Return True and what ``take`` would; where that would wait, False, and ``waker`` is called once later."""
        with self._changed:
            if not self._deltas and not self.has_ended:
                self._wakers.append(waker)
                return False, None
            return True, self._next()

    def _next(self) -> Delta | None:
        if self._deltas:
            return self._deltas.popleft()
        if self._error is not None:
            raise self._error
        return None

    def output(self) -> RequestOutput:
        """Return the result, waiting for it. Raises the error that ended the request."""
        with self._changed:
            while not self.has_ended:
                wait_for(self._changed)
        return self._result()

    def output_or_call(self, waker: Callable[[], None]) -> RequestOutput | None:
        """Return the result; where there is none yet, None, and ``waker`` is called when there is something new."""
        with self._changed:
            if not self.has_ended:
                self._wakers.append(waker)
                return None
        return self._result()

    def _result(self) -> RequestOutput:
        if self._error is not None:
            raise self._error
        if self._output is None:
            raise ValueError("the request has not ended")
        return self._output
