"""Which form routed experts take in a graph for TensorRT: its own layer, or dense, every one of them on every token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.errors import UsageError

if TYPE_CHECKING:
    from ...graphs.targets import Family

FORMS = ("layer", "dense")
_COSTS = "all of them are read and computed in every pass, not only those a token has"


def as_asked(lowering: Lowering, asked: str | None) -> Lowering:
    """The lowering with experts in the form that ``--experts`` names; None leaves it to the model.

    Raises ``UsageError`` for a form that does not exist, or that the lowering does not have.
    """
    if asked is None:
        return lowering
    if asked not in FORMS:
        raise UsageError(f"--experts {asked} does not exist", why=f"it is {' or '.join(FORMS)}", fix="leave it out")
    if not lowering.is_tensorrt:
        raise UsageError(
            f"--experts {asked} cannot be had with {lowering.backend}",
            why="it chooses between two forms for TensorRT",
            fix="leave it out",
        )
    if asked == "layer" and not lowering.has_expert_layer:
        raise UsageError(
            "--experts layer cannot be had there",
            why="TensorRT has a layer of routed experts from version 11 on, and code for it on SM 10.x (b200) alone",
            fix="leave it out: experts are dense there; or export --for tensorrt-sm100",
        )
    return TENSORRT if asked == "dense" and lowering.has_expert_layer else lowering


def suited(lowering: Lowering, asked: str | None, family: Family) -> tuple[Lowering, list[str]]:
    """The lowering for a model, whose experts the layer may not compute; and what to say of it."""
    if asked is not None or not lowering.has_expert_layer or not family.own_swiglu:
        return lowering, []
    said = (
        f"routed experts are dense: {_COSTS}. TensorRT's own layer is not known to compute their SwiGLU "
        f"({family.own_swiglu}); --experts layer takes it all the same"
    )
    return TENSORRT, [said]
