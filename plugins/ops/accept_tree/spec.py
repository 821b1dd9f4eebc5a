"""``AcceptTree``: select the tokens that a verify pass over a draft tree emits."""

from __future__ import annotations

from ...op_spec import Kernel, Operand, OpSpec
from ..accept_prefix import SPEC as ACCEPT_PREFIX
from .body import body
from .cpu_cases import cpu_cases
from .reference import accept_tree

SPEC = OpSpec(
    name="AcceptTree",
    doc="""Sample each column's token as AcceptPrefix does, and follow the drafts that agree through a tree.

Emission column j holds the target's logits after window column c0 + j, c0 = window_len - 1 - draft_len, and y_j is
sampled from them with uniform[:, j]. Columns at one depth of the tree get the same number. Drafts are the columns
after c0, parents before children. The parent of a draft is the last earlier draft that its row of ``ancestors`` names,
or column c0 if the row names none: committed columns are ancestors of all drafts, and later columns of none.

The row starts at column c0. At each column, it moves to the first child whose token is the y of this column, else to
the first child that the lossy policy tolerates; if there is neither, it ends. It emits the drafts on its path, and the
y of the last column. ``path`` names the window columns of the path, c0 first, so token i follows column path[i]. With
the strictly lower triangle, a chain, the tokens are those of AcceptPrefix. Without tolerance, the text for a given
``uniform`` equals the text without drafts, for any tree.

Source: the trees of SpecInfer (arXiv 2305.09781) and EAGLE (arXiv 2401.15077), with one sampled token per column.""",
    inputs=(
        *ACCEPT_PREFIX.inputs,
        Operand("ancestors", ("B", "S", "S"), ("bool",), "true if column s of the window sees column t"),
    ),
    outputs=(
        *ACCEPT_PREFIX.outputs,
        Operand("path", ("B", "E"), ("int32",), "the window column before each emitted token, then -1"),
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
