"""Plain decoding: the target alone, a token a round. It is what every other strategy must give the text of."""

from __future__ import annotations

from ..backends.base import Lanes


class PlainDecoding:
    """Each round feeds the newest token and emits the next one. No drafter runs, whatever K is asked for."""

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run the target over a piece of a prompt, as a round whose window is that piece."""
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Emit one token."""
        lanes.verify(k)  # y_0 = target(newest): there are no drafts
        lanes.advance(0)  # window = [y_0]
