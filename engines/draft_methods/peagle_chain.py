"""P-EAGLE (arXiv 2602.01469): the target verifies K drafts in one pass, and the drafter makes the next K in one pass.

A round has three steps over the lanes of a backend, and none waits for the host:

    y_0 .. y_a     = target(newest, draft_1 .. draft_k)       verify all drafts at once; accept those that agree
    draft_1 .. k   = drafter(y_0 .. y_a, [mask] * (k - 1))    draft at once; target features for committed tokens
    newest, drafts = y_a, draft_1 .. draft_k                  the next window

Column j of the target's pass decides its token y_j exactly as plain decoding would, and a draft is accepted if it
equals that token. A round therefore emits the a accepted drafts and one more token, and the text is the target's own
for any drafts. Nothing is rolled back: caches are never cleared, the start of the next window decides which entries are
valid, and later writes overwrite rejected ones.
"""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod, Passes


class ParallelDrafting:
    """P-EAGLE's rounds. K may change; a round with fewer drafts than the last one made verifies the first of them.

    With K = 0 nothing is drafted, but the drafter must still read every committed column: it attends to all of them,
    and a gap would degrade its drafts for the rest of the text. The lanes defer them to the drafter's next pass.
    """

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round whose window is a prompt chunk, all of it committed.

        If no drafts follow, defer it for the drafter.
        """
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft and lay out the next windows; emits between 1 and ``k`` + 1 tokens per row."""
        lanes.verify(k)
        if k:
            lanes.draft(k)
        else:
            lanes.defer()
        lanes.advance(k)


METHOD = DraftMethod(
    name="peagle-chain",
    title="P-EAGLE, chain drafts",
    help="a P-EAGLE head with a chain of drafts instead of a tree",
    strategy=ParallelDrafting(),
    passes=Passes.ONE,
    variant_of="peagle",
)
