"""Plain decoding: the target alone, one token per round. Every other method must produce the same text."""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod


class PlainDecoding:
    """Rounds that feed the newest token and emit the next one. No drafter runs, whatever K is."""

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run the target over a prompt chunk, as a round whose window is that chunk."""
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify no drafts and lay out the newest token; emits one token per row."""
        lanes.verify(k)  # y_0 = target(newest): there are no drafts
        lanes.advance(0)  # window = [y_0]


METHOD = DraftMethod(name="none", title="plain decoding", help="plain decoding", strategy=PlainDecoding())
