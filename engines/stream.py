"""A request whose text is taken as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from ..plugins.errors import UsageError
from .requests.request import Request
from .requests.results import Delta, RequestOutput


class Stream:
    """Iterates over the ``Delta``s of one request; ``result`` is its ``RequestOutput`` once it has finished.

    The deltas together hold every token id and all of the text.
    """

    def __init__(self, request: Request, running: Iterator[Request], turn: threading.RLock) -> None:
        self._request, self._running, self._turn = request, running, turn
        self._result: RequestOutput | None = None

    def __iter__(self) -> Iterator[Delta]:
        while True:
            with self._turn:
                request = next(self._running, None)
            if request is None:
                return
            delta = request.transcript.take()
            if delta.finish_reason:
                self._result = request.output(time.perf_counter())
            yield delta

    def abort(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort". Safe from any thread or signal."""
        self._request.is_unwanted = True

    @property
    def result(self) -> RequestOutput:
        """The output of the whole request. Raises ``UsageError`` while it is still streaming."""
        if self._result is None:
            raise UsageError("the stream has not finished", fix="iterate over it to its end first")
        return self._result
