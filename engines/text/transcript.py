"""The transcript of one request: its text as it grows, its end, and the part that can be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from ..requests.params import SamplingParams
from ..requests.results import Delta, FinishReason
from .tokenizer import Tokenizer


class Transcript:
    """Collects emitted tokens until one of the ids in ``end_ids``, a stop string or ``max_tokens``.

    Tokens past the end are dropped. Text that could be the start of a stop string is held back from streaming.
    ``stop_reason`` is the stop string or the stop id that ended it; its text is included if the parameters say so.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        max_tokens: int,
        end_ids: frozenset[int],
        *,
        after: int | None = None,
        shows_special: bool = False,
    ) -> None:
        """The text continues one whose last token is ``after``; None begins a text."""
        self._params, self._max_tokens, self._ends = params, max_tokens, end_ids
        self._stream = tokenizer.stream(after=after, shows_special=shows_special)
        self._keeps_stop = params.include_stop_str_in_output
        self._held = 0 if self._keeps_stop else max((len(s) for s in params.stop), default=1) - 1
        self._shown_text = 0
        self._shown_tokens = 0
        self._runs: list[tuple[int, bool]] = []  # ends of text runs that were not shown yet
        self.token_ids: list[int] = []
        self.drafted: list[bool] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    def extend(self, tokens: Iterable[int], accepted: int = 0) -> None:
        """Append emitted tokens, the first ``accepted`` of them drafts; ignores everything past the end."""
        for index, token in enumerate(tokens):
            if self.finish_reason:
                return
            self.token_ids.append(token)
            self.drafted.append(index < accepted)
            if token in self._ends:
                if self._keeps_stop:
                    self.text += self._stream.push(token)
                    self._runs.append((len(self.text), index < accepted))
                self._end("stop", token if token in self._params.stop_token_ids else None)
                return
            self._append(self._stream.push(token))
            self._runs.append((len(self.text), index < accepted))
            if not self.finish_reason and len(self.token_ids) >= self._max_tokens:
                self._end("length")

    def _append(self, piece: str) -> None:
        before = len(self.text)  # earlier text contains no stop string, or came before ``min_tokens``
        self.text += piece
        stops = self._params.stop if len(self.token_ids) >= self._params.min_tokens else ()
        hits = [(at, s) for s in stops if (at := self.text.find(s, max(0, before - len(s) + 1))) >= 0]
        if hits:
            at, stop = min(hits)
            self.stop_reason = stop
            self.text = self.text[: at + (len(stop) if self._keeps_stop else 0)]
            self.finish_reason = "stop"

    def abort(self, reason: FinishReason = "abort") -> None:
        """End the text here, unless it has ended."""
        if not self.finish_reason:
            self._end(reason)

    def _end(self, reason: FinishReason, stop_reason: int | None = None) -> None:
        """End the text here, or at a stop string in the characters that were held back."""
        if piece := self._stream.end():
            self._append(piece)
            self._runs.append((len(self.text), self.drafted[-1]))
        if not self.finish_reason:
            self.finish_reason, self.stop_reason = reason, stop_reason

    def take(self) -> Delta:
        """Return the text and tokens that can be shown since the last call."""
        end = len(self.text) if self.finish_reason else max(self._shown_text, len(self.text) - self._held)
        new = slice(self._shown_tokens, None)
        delta = Delta(
            self.text[self._shown_text : end],
            tuple(self.token_ids[new]),
            self.finish_reason,
            tuple(self.drafted[new]),
            tuple(self._take_runs(end)),
            stop_reason=self.stop_reason,
        )
        self._shown_text, self._shown_tokens = end, len(self.token_ids)
        return delta

    def _take_runs(self, end: int) -> Iterator[tuple[str, bool]]:
        """Yield the text up to ``end`` that was not shown, split where drafts begin and end."""
        begin, pieces = self._shown_text, []
        for until, drafted in self._runs:
            pieces.append((self.text[begin : min(until, end)], drafted))
            begin = min(until, end)
        self._runs = [run for run in self._runs if run[0] > end]
        for drafted, group in groupby(pieces, key=lambda piece: piece[1]):
            if text := "".join(piece for piece, _ in group):
                yield text, drafted
