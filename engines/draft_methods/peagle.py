"""P-EAGLE with a tree of drafts: the K likeliest nodes of what the drafter's positions make together, in one pass.

    y at every node   = target(newest, node_1 .. node_K)       each node sees its own path, and is verified behind it
    y_0 .. y_a        = the path on which every node is the token that its parent's y says; and the last y
    candidates        = drafter(y_0 .. y_a, [mask] * (K - 1))  several for each position, all in one pass
    newest, nodes     = y_a, the K likeliest paths             the next window

A chain of K drafts is one of the trees of K nodes, and as a rule not the best: a second choice of the first position is
likelier than the fourth draft in a row. Node y is drawn as plain decoding would at its position, so the text is the
same. Where a backend or a request knows no trees, the drafts are the chain.
"""

from __future__ import annotations

from .lanes import Lanes
from .peagle_chain import ParallelDrafting
from .record import DraftMethod, Passes


class TreeDrafting:
    """P-EAGLE's rounds over trees, whose K may differ: a smaller one verifies the likeliest of the nodes there are."""

    enqueues_only = True

    def __init__(self) -> None:
        self._chains = ParallelDrafting()

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round over a piece of a prompt; the first drafts are a chain."""
        self._chains.prompt(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft and lay out the next windows; emits between 1 and ``k`` + 1 tokens a row."""
        lanes.verify(k)
        if k:
            lanes.branch(k)
        else:
            lanes.hold()
        lanes.advance(k)


METHOD = DraftMethod(
    name="peagle",
    title="P-EAGLE",
    help="the P-EAGLE head that is known for the target",
    strategy=TreeDrafting(),
    passes=Passes.ONE,
    trees=True,
    vllm_names=("eagle3", "eagle"),
)
