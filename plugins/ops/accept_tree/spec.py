"""``AcceptTree``: select the tokens that a verify pass over a draft tree emits."""

from __future__ import annotations

from ...op_spec import Kernel, Operand, OpSpec
from ..accept_prefix import SPEC as ACCEPT_PREFIX
from .body import body
from .cpu_cases import cpu_cases
from .reference import accept_tree

SPEC = OpSpec(
    name="AcceptTree",
    doc="""Draw each column's token as AcceptPrefix does, and follow the drafts that agree through a tree.

Emission column j holds the target's logits after window column c0 + j, c0 = window_len - 1 - draft_len, and y_j is
drawn from them with uniform[:, j]; columns at one depth of the tree are given one number. Drafts are the columns behind
c0, parents before children. A draft hangs on the last earlier draft that its row of ``ancestors`` names, or on column
c0 where it names none: committed columns are ancestors of all, and later columns of none. From column c0 on, the row
goes to the first child that is the y of where it stands, else to the first that the lossy policy tolerates, else it
ends: it emits the drafts that it came by, and that y. ``path`` names the window columns that it came to, c0 first, so
token i follows column path[i]. With the strictly lower triangle, a chain, that is what AcceptPrefix emits; without
tolerance the text for a given ``uniform`` is that without drafts, whatever the tree.

Source: the trees of SpecInfer (arXiv 2305.09781) and EAGLE (arXiv 2401.15077), with one token drawn a column.""",
    inputs=(
        *ACCEPT_PREFIX.inputs,
        Operand("ancestors", ("B", "S", "S"), ("bool",), "whether column s of the window sees column t"),
    ),
    outputs=(
        *ACCEPT_PREFIX.outputs,
        Operand("path", ("B", "E"), ("int32",), "the window column before each of these tokens, then -1"),
    ),
    reference=accept_tree,
    body=body,
    cpu_cases=cpu_cases,
    kernel=Kernel(
        entry="accept_tree",
        blocks="B",
        threads=512,
        scalars=("B", "E", "S", "V"),
        typed_by="logits",
        cluster=8,
        headers=("own_tokens.cuh",),
    ),
)
