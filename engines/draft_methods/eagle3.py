"""EAGLE-3 (arXiv 2503.01840): the target verifies K drafts in one pass, and the drafter makes a pass for each of them.

    y_0 .. y_a   = target(newest, draft_1 .. draft_k)                verify all drafts at once; accept those that agree
    draft_1, h_1 = drafter(y_0 .. y_a; the target's features)        real features for what was committed
    draft_j, h_j = drafter(draft_j-1; h_j-1)                         one column, the drafter's own state for a feature
    window       = y_a, draft_1 .. draft_k

Further passes write to the caches as the first does. What they wrote of tokens that stay is written again, with the
target's features, by the first pass of the next round; the rest lies behind it, and is overwritten before it is read.
"""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod, Passes


class AutoregressiveDrafting:
    """EAGLE-3's rounds, whose K may differ, as P-EAGLE's may; with K = 0 what is committed is held for the drafter."""

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round whose window is a piece of a prompt, all of it committed; with no drafts to follow it is held."""
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft k times and lay out the next windows; emits between 1 and ``k`` + 1 tokens a row."""
        lanes.verify(k)
        if k:
            lanes.draft(k)
            for _ in range(k - 1):
                lanes.extend()
        else:
            lanes.hold()
        lanes.advance(k)


METHOD = DraftMethod(
    name="eagle3",
    title="EAGLE-3",
    help="the EAGLE-3 head that is known for the target",
    note="a pass of the drafter for every draft",
    strategy=AutoregressiveDrafting(),
    passes=Passes.ONE_PER_DRAFT,
    vllm_names=("eagle3", "eagle"),
)
