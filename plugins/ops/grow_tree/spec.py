"""``GrowTree``: the likeliest paths through the candidates of all positions, as the drafts of a window."""

from __future__ import annotations

from ...graph_contract import DEEPEST, MAX_DRAFTS
from ...limits import Bound
from ...op_spec import Kernel, Operand, OpSpec
from .body import body
from .reference import grow_tree

SPEC = OpSpec(
    name="GrowTree",
    doc=f"""Write the tree of the K = E - 1 likeliest paths through a drafter's candidates behind the newest token.

A draft at depth d is one of the candidates of position d - 1, and the score of a path is the sum of those of its
drafts, added in float32 from the newest token on; a score below -1e30, or NaN, counts as that. Drafts come one by one:
each is the best of the next candidates of every token that is there, of equal ones that of the earliest token. So a
prefix of the drafts is the tree for a smaller K. No draft is deeper than {DEEPEST}; where no candidate is left, the
window stays as it is, without a skipped column. Bit t of ``skipped`` says that a column does not descend from the
earlier column t.

Source: the dynamic draft trees of EAGLE-2 (arXiv 2406.16858), for a drafter whose positions are independent.""",
    inputs=(
        Operand("window_ids", ("B", "E"), ("int64",), "the next windows; column 0 is the newest token"),
        Operand("candidate_ids", ("B", "D", "C"), ("int64",), "ids of each position, likeliest first"),
        Operand("candidate_scores", ("B", "D", "C"), ("float32",), "their log probabilities"),
    ),
    outputs=(
        Operand("window_ids_out", ("B", "E"), ("int64",), "window_ids with the drafts", aliases="window_ids"),
        Operand("skipped", ("B", "E"), ("int64",), "the earlier columns that each column does not see"),
    ),
    reference=grow_tree,
    body=body,
    bounds=(
        Bound(("E",), f"a window has at most {MAX_DRAFTS + 1} columns, not {{E}}", most=MAX_DRAFTS + 1),
        Bound(("D", "C"), "there must be a candidate", least=1),
    ),
    kernel=Kernel(entry="grow_tree", blocks="B", threads=32, scalars=("B", "E", "D", "C")),
)
