"""A request: one prompt on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..text.transcript import Transcript
from .params import SamplingParams
from .results import Acceptance, RequestOutput


@dataclass(eq=False)
class Request:
    """One prompt with what it has got so far. ``seed`` is the one in effect, drawn if the params leave it open.

    ``room`` is the most tokens it may get. ``launched`` counts passes whose tokens have not been read, ``ahead`` how
    many tokens those may bring at most. ``is_unwanted`` asks for an early end, from any thread.
    """

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    transcript: Transcript
    room: int
    acceptance: Acceptance = field(default_factory=Acceptance)
    prefill_seconds: float = 0.0
    decode_began: float = 0.0
    launched: int = 0
    ahead: int = 0
    is_unwanted: bool = False

    @property
    def is_done(self) -> bool:
        """Whether its text has ended."""
        return self.transcript.finish_reason is not None

    @property
    def will_be_done(self) -> bool:
        """Whether it ends, whatever comes, with what was launched: a pass brings a token or more."""
        return len(self.transcript.token_ids) + self.launched >= self.room

    @property
    def most_committed(self) -> int:
        """Prompt and tokens together, if all that was launched is accepted."""
        return len(self.prompt) + len(self.transcript.token_ids) + self.ahead

    def output(self, now: float) -> RequestOutput:
        """The result of a request that is done; ``now`` is when it ended."""
        text = self.transcript
        if text.finish_reason is None:
            raise ValueError("the request has not finished")
        return RequestOutput(
            self.prompt,
            tuple(text.token_ids),
            text.text,
            text.finish_reason,
            self.acceptance,
            self.seed,
            self.prefill_seconds,
            now - self.decode_began if self.decode_began else 0.0,
            tuple(text.drafted),
        )
