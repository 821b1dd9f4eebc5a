"""EAGLE-3 (arXiv 2503.01840): the target verifies K drafts in one pass; the drafter needs one pass per draft.

    y_0 .. y_a   = target(newest, draft_1 .. draft_k)                verify all drafts at once; accept those that agree
    draft_1, h_1 = drafter(y_0 .. y_a; the target's features)        target features for committed tokens
    draft_j, h_j = drafter(draft_j-1; h_j-1)                         one column, with the drafter's own hidden state
    window       = y_a, draft_1 .. draft_k

Further passes write to the caches like the first one. For tokens that are kept, the first pass of the next round writes
the entries again, with the target's features. Other entries lie behind them and are overwritten before they are read.
"""

from __future__ import annotations

from .lanes import Lanes
from .record import DraftMethod, Passes


class AutoregressiveDrafting:
    """EAGLE-3's rounds. K may change between rounds; with K = 0 the committed columns are deferred for the drafter."""

    enqueues_only = True

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round whose window is a prompt chunk, all of it committed.

        If no drafts follow, defer it for the drafter.
        """
        self.round(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft k times and lay out the next windows; emits between 1 and ``k`` + 1 tokens per row."""
        lanes.verify(k)
        if k:
            lanes.draft(k)
            for _ in range(k - 1):
                lanes.extend()
        else:
            lanes.defer()
        lanes.advance(k)


METHOD = DraftMethod(
    name="eagle3",
    title="EAGLE-3",
    help="an EAGLE-3 head",
    note="one drafter pass per draft",
    strategy=AutoregressiveDrafting(),
    passes=Passes.ONE_PER_DRAFT,
    vllm_names=("eagle3", "eagle"),
)
