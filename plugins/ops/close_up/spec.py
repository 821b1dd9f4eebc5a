"""``CloseUp``: move the entries of an accepted path to the positions that they would have in a chain."""

from __future__ import annotations

from ...limits import Bound
from ...op_spec import Kernel, Operand, OpSpec
from .body import body
from .reference import close_up

SPEC = OpSpec(
    name="CloseUp",
    doc="""Move the entries of each row's path together, in place, in a stack of N buffers of one shape.

Window column c has its entry at position start + c. The entry of the path's column i moves to position start +
path[0] + i, up to the first -1; positions outside the buffer are skipped. The columns of a path are ascending, so no
entry is overwritten before it has moved, and a chain moves nothing. Entries are any bytes: keys and values of caches,
or features of a window, whose buffers begin at position 0.""",
    inputs=(
        Operand(
            "entries", ("N", "P", "H", "T", "W"), ("int8",), "entries of W bytes, by buffer, row, head and position"
        ),
        Operand("start", ("B",), ("int64",), "position of window column 0"),
        Operand("path", ("B", "E"), ("int32",), "ascending window columns, then -1, of the first rows"),
    ),
    outputs=(
        Operand(
            "closed", ("N", "P", "H", "T", "W"), ("int8",), "entries, with the path's entries moved", aliases="entries"
        ),
    ),
    reference=close_up,
    body=body,
    bounds=(Bound(("B",), "{B} paths do not fit {P} rows", maximum="P"),),
    # About one thread for each 16 bytes of an entry: of few heads in many caches, or of many features in one buffer.
    kernel=Kernel(entry="close_up", blocks="N+15", per="B", threads=128, scalars=("N", "P", "H", "T", "W", "B", "E")),
)
