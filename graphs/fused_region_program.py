"""The program of a ``FusedRegion`` node, as text: one line for each step, and a last one for the outputs.

This imports no library of graphs, so that commands which only read programs start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plugins.op_spec import DOMAIN
from ..plugins.ops import OPS
from .names import CONTRIB

if TYPE_CHECKING:
    import onnx

FUSED_REGION = "FusedRegion"
PROGRAM = "program"  # its attribute
NORM_OF_SUM = "SkipSimplifiedLayerNormalization"  # the only step that is an operator of ONNX Runtime's own


def steps_of(node: onnx.NodeProto) -> list[tuple[str, str]]:
    """Return domain and operator of every step of a ``FusedRegion``; empty for other nodes."""
    programs = [attribute.s.decode() for attribute in node.attribute if attribute.name == PROGRAM]
    if (node.domain, node.op_type) != (DOMAIN, FUSED_REGION) or not programs:
        return []
    domains = dict.fromkeys(OPS, DOMAIN) | {NORM_OF_SUM: CONTRIB}
    return [(domains.get(op, ""), op) for op in (line.split()[0] for line in programs[0].splitlines()[:-1])]
