"""P-EAGLE (arXiv 2602.01469): the target verifies K drafts in one pass, and the drafter makes the next K in one pass.

A round has three steps over the lanes of a backend, and none waits for the host:

    y_0 .. y_a     = target(newest, draft_1 .. draft_k)       verify all drafts at once; accept those that agree
    draft_1 .. k   = drafter(y_0 .. y_a, [mask] * (k - 1))    draft at once; real features for what was committed
    newest, drafts = y_a, draft_1 .. draft_k                  the next window

Column j of the target's pass decides its token y_j as plain decoding would, and a draft is accepted when it is that
token. So a round emits the a accepted drafts and one token more, and the text is the target's own for any drafts.

Nothing is rolled back: caches are never cleared, the start of the next window decides what counts, and later writes
overwrite what was rejected.
"""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod, Passes


class ParallelDrafting:
    """P-EAGLE's rounds, whose K may differ: one of fewer drafts than the last one made verifies the first of them.

    With K = 0 nothing is drafted, but the drafter must not miss what is committed: it attends to all of it, and a hole
    would spoil its drafts for as long as the text goes on. The lanes hold it for the drafter's next pass.
    """

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round whose window is a piece of a prompt, all of it committed; with no drafts to follow it is held."""
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft and lay out the next windows; emits between 1 and ``k`` + 1 tokens a row."""
        lanes.verify(k)
        if k:
            lanes.draft(k)
        else:
            lanes.hold()
        lanes.advance(k)


METHOD = DraftMethod(
    name="peagle-chain",
    title="P-EAGLE, drafts in a row",
    help="a P-EAGLE head, its drafts in a row and not a tree",
    strategy=ParallelDrafting(),
    passes=Passes.ONE,
    variant_of="peagle",
)
