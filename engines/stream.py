"""A request whose text is taken as it comes."""

from __future__ import annotations

from collections.abc import Iterator

from ..plugins.errors import UsageError
from .requests.results import Delta, RequestOutput
from .submission import Submission


class Stream:
    """Iterates over the ``Delta``s of one request; ``result`` is its ``RequestOutput`` once it has finished.

    The deltas together hold every token id and all of the text. The request runs whether they are read or not.
    """

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._is_read = False

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._submission:
            self._is_read = self._is_read or delta.finish_reason is not None
            yield delta

    def abort(self) -> None:
        """Have it end after the pass that runs, with the ``finish_reason`` "abort". Safe from any thread or signal."""
        self._submission.cancel()

    @property
    def result(self) -> RequestOutput:
        """The output of the whole request. Raises ``UsageError`` while it is still streaming."""
        if not self._is_read:
            raise UsageError("the stream has not finished", fix="iterate over it to its end first")
        return self._submission.result()
