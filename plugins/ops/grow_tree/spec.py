"""``GrowTree``: the likeliest paths through the candidates of all positions, as the drafts of a window."""

from __future__ import annotations

from ...graph_contract import DEEPEST, MAX_DRAFTS
from ...limits import Bound
from ...op_spec import Kernel, Operand, OpSpec
from .body import body
from .reference import grow_tree

SPEC = OpSpec(
    name="GrowTree",
    doc=f"""Write the tree of the K = E - 1 most likely paths through a drafter's candidates, after the newest token.

A draft at depth d is one of the candidates of position d - 1. The score of a path is the sum of its drafts' scores,
added in float32 from the newest token on; a score below -1e30, or NaN, counts as -1e30. Drafts are added one by one:
each is the best of the next candidates of every token that is already in the tree; of equal candidates, the one of the
earliest token is added. A prefix of the drafts is therefore the tree for a smaller K. No draft is deeper than
{DEEPEST}. If no candidate is left, the rest of the window stays unchanged, without a skipped column. Bit t of
``skipped`` says that a column does not descend from the earlier column t.

Source: the dynamic draft trees of EAGLE-2 (arXiv 2406.16858), for a drafter whose positions are independent.""",
    inputs=(
        Operand("window_ids", ("B", "E"), ("int64",), "the next windows; column 0 is the newest token"),
        Operand("candidate_ids", ("B", "D", "C"), ("int64",), "ids for each position, most likely first"),
        Operand("candidate_scores", ("B", "D", "C"), ("float32",), "log probabilities of the candidates"),
    ),
    outputs=(
        Operand("window_ids_out", ("B", "E"), ("int64",), "window_ids with the drafts", aliases="window_ids"),
        Operand("skipped", ("B", "E"), ("int64",), "bits of the earlier columns that each column does not see"),
    ),
    reference=grow_tree,
    body=body,
    bounds=(
        Bound(("E",), f"a window has at most {MAX_DRAFTS + 1} columns, not {{E}}", maximum=MAX_DRAFTS + 1),
        Bound(("D", "C"), "at least one candidate is required", minimum=1),
    ),
    kernel=Kernel(entry="grow_tree", blocks="B", threads=32, scalars=("B", "E", "D", "C")),
)
