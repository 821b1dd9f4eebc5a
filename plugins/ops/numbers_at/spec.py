"""``NumbersAt``: read the random numbers of the positions that a window can emit."""

from __future__ import annotations

from ...limits import Bound, at_least_one
from ...op_spec import Attribute, Kernel, Operand, OpSpec
from .body import body
from .reference import numbers_at

SPEC = OpSpec(
    name="NumbersAt",
    doc="""Read each row's random numbers for the positions that this window can emit.

``numbers`` holds one number per absolute position, keyed by (seed, position), so that a loop on the device does not
need the host between rounds. Emission column j of a window is at position start + window_len - draft_len + j. Columns
past the end of the table, and all columns of an idle row, are 0. A negative start counts as 0; a draft_len outside
0..window_len - 1 or 0..columns - 1 counts as the nearest valid value.""",
    inputs=(
        Operand("numbers", ("B", "N"), ("float32",), "numbers in [0, 1) by absolute position"),
        Operand("start", ("B",), ("int64",), "absolute position of window column 0"),
        Operand("window_len", ("B",), ("int32",), "valid window columns; 0 marks an idle row"),
        Operand("draft_len", ("B",), ("int32",), "number of drafts at the end of the valid columns"),
    ),
    outputs=(Operand("uniform", ("B", "columns"), ("float32",), "the input uniform of AcceptPrefix"),),
    reference=numbers_at,
    body=body,
    attributes=(Attribute("columns", int, -1, "emission columns: E = K + 1; must be given", at_least_one),),
    bounds=(Bound(("N",), "numbers must have at least 1 column", minimum=1),),
    kernel=Kernel(entry="numbers_at", blocks="B", threads=64, scalars=("B", "N", "columns")),
)
