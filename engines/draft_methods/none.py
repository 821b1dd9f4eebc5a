"""The strategy of plain decoding: the target alone, a token a round. Every other must give the text of this one."""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod


class PlainDecoding:
    """Rounds that feed the newest token and emit the next one. No drafter runs, whatever K is asked for."""

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run the target over a piece of a prompt, as a round whose window is that piece."""
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify no drafts and lay out the newest token; emits one token a row."""
        lanes.verify(k)  # y_0 = target(newest): there are no drafts
        lanes.advance(0)  # window = [y_0]


METHOD = DraftMethod(name="none", title="plain decoding", help="plain decoding", strategy=PlainDecoding())
