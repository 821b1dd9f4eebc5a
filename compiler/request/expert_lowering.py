"""The lowering of routed experts for TensorRT: its own layer, this project's ops, or dense (all experts per token)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.errors import UsageError
from ..hardware.gpus import MOE_LAYER_SMS, sm_name

if TYPE_CHECKING:
    from ...graphs.config_values import Config
    from ...graphs.targets import Family

ONE_SCALE = "layer-one-scale"  # of all experts, where TensorRT's layer does not take one for each
FORMS = ("layer", ONE_SCALE, "dense")
_COSTS = "every pass reads and computes all experts, not only the experts chosen for a token"


def lowering_with_experts(lowering: Lowering, requested: str | None) -> Lowering:
    """Return the lowering with experts in the form that ``--experts`` names; None leaves it to the model.

    A named form applies to experts in MXFP4 too, which are dequantized for it.

    Raises ``UsageError`` for an unknown form, or one that the lowering does not have.
    """
    if requested is None:
        return lowering
    if requested not in FORMS:
        raise UsageError(
            f"unknown --experts {requested}", why=f"the valid values are {', '.join(FORMS)}", fix="omit --experts"
        )
    if not lowering.is_tensorrt:
        raise UsageError(
            f"--experts {requested} does not work with {lowering.backend}",
            why="--experts selects a lowering for TensorRT",
            fix="omit --experts",
        )
    if requested != "dense" and not lowering.has_expert_layer:
        raise UsageError(
            f"--experts {requested} is not supported for this target",
            why="only TensorRT 11 and newer has a layer for routed experts, and only on "
            + ", ".join(map(sm_name, MOE_LAYER_SMS)),
            fix="omit --experts, or export for one of these GPUs with --for tensorrt-sm100",
        )
    return replace(
        TENSORRT if requested == "dense" else lowering, expert_blocks=(), experts_share_scale=requested == ONE_SCALE
    )


def select_expert_lowering(
    lowering: Lowering, requested: str | None, family: Family, config: Config, stored: str = ""
) -> tuple[Lowering, list[str]]:
    """Return the lowering for a model of a ``family`` with this ``config.json``, and notes.

    It is dense if neither TensorRT's layer nor this project's ops support the experts, which are ``stored`` in blocks
    of that type (``MXFP4``). Raises ``UsageError`` if the layer is requested, but cannot compute them.
    """
    if not lowering.has_expert_layer:
        return lowering, []
    if activation := family.other_activation(family.text(config)):
        why = f"TensorRT's own layer has no {activation}, the activation of this model's experts"
        if requested is not None:  # dense is another lowering
            raise UsageError(
                f"--experts {requested} is not supported for this model",
                why=why,
                fix="omit --experts; the experts are then dense",
            )
        return TENSORRT, [f"routed experts are dense: {_COSTS}. {why}"]
    if requested is not None or not family.own_swiglu or stored in lowering.expert_blocks:
        return lowering, []
    note = (
        f"routed experts are dense: {_COSTS}. TensorRT's own layer is not known to support this model's SwiGLU "
        f"({family.own_swiglu}); --experts layer uses that layer anyway"
    )
    return TENSORRT, [note]
