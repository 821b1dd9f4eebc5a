"""The transcript of one request: its text as it grows, where it ends, and which part of it may be shown already."""

from __future__ import annotations

from collections.abc import Iterable

from ..requests.params import SamplingParams
from ..requests.results import Delta, FinishReason
from .tokenizer import Tokenizer


class Transcript:
    """Collects emitted tokens until an end-of-sequence id, a stop string or ``max_tokens``.

    A round may emit past the end; what lies past it is dropped. Text that could still turn out to be the beginning of
    a stop string is held back from streaming.
    """

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._params, self._stream, self._max_tokens = params, tokenizer.stream(), max_tokens
        self._eos = frozenset() if params.ignore_eos else tokenizer.eos_token_ids
        self._held = max((len(s) for s in params.stop), default=1) - 1
        self._shown_text = 0
        self._shown_tokens = 0
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None

    def extend(self, tokens: Iterable[int]) -> None:
        """Append emitted tokens; ignores everything past the end."""
        for token in tokens:
            if self.finish_reason:
                return
            self.token_ids.append(token)
            if token in self._eos:
                self.finish_reason = "stop"
                return
            self._append(self._stream.push(token))
            if not self.finish_reason and len(self.token_ids) >= self._max_tokens:
                self.finish_reason = "length"

    def _append(self, piece: str) -> None:
        searched = max(0, len(self.text) - self._held)
        self.text += piece
        hits = [at for s in self._params.stop if (at := self.text.find(s, searched)) >= 0]
        if hits:
            self.text = self.text[: min(hits)]
            self.finish_reason = "stop"

    def take(self) -> Delta:
        """Return what has become showable since the last call."""
        end = len(self.text) if self.finish_reason else max(self._shown_text, len(self.text) - self._held)
        delta = Delta(
            self.text[self._shown_text : end], tuple(self.token_ids[self._shown_tokens :]), self.finish_reason
        )
        self._shown_text, self._shown_tokens = end, len(self.token_ids)
        return delta
