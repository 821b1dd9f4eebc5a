"""P-EAGLE with draft trees: the K most likely paths through the candidates of one drafter pass form a tree.

    y at every node = target(newest, node_1 .. node_K)       each node attends to its own path
    y_0 .. y_a      = the longest path of nodes that equal their parents' y, then the y of its last node
    candidates      = drafter(y_0 .. y_a, [mask] * (K - 1))  several per position, all in one pass
    newest, nodes   = y_a, the K likeliest paths             the next window

A chain of K drafts is one of the trees of K nodes, and usually not the best: the second choice for the first position
is more likely than the fourth draft in a row. The y of each node is sampled exactly as plain decoding would at its
position, so the text is the same. If a backend or a request does not support trees, the drafts form a chain.
"""

from __future__ import annotations

from .lanes import Lanes
from .peagle_chain import ParallelDrafting
from .record import DraftMethod, Passes


class TreeDrafting:
    """P-EAGLE's rounds over draft trees. K may change; a smaller K verifies the most likely of the existing nodes."""

    enqueues_only = True

    def __init__(self) -> None:
        self._chains = ParallelDrafting()

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a round over a prompt chunk; the first drafts form a chain."""
        self._chains.prompt(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Verify, draft and lay out the next windows; emits between 1 and ``k`` + 1 tokens per row."""
        lanes.verify(k)
        if k:
            lanes.draft_tree(k)
        else:
            lanes.defer()
        lanes.advance(k)


METHOD = DraftMethod(
    name="peagle",
    title="P-EAGLE",
    help="a P-EAGLE head",
    strategy=TreeDrafting(),
    passes=Passes.ONE,
    trees=True,
    vllm_names=("eagle3", "eagle"),
)
