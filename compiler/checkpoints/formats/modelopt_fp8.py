"""FP8 as ModelOpt exports it: one scale for a weight, one for its input, and one each for cached keys and values.

Experts that a model keeps stacked in one parameter (GPT-OSS) are one weight: with one scale, and one for their inputs.
"""

from __future__ import annotations

from ....plugins.problems import Problems
from .base import Format, Settings, Stored, View
from .scaled import Block, Shape, scaled_view


def _block(weight: Shape, scale: Shape) -> Block | None:
    return (max(weight[0], 1), max(weight[1], 1)) if scale in ((), (1,)) else None


def _view(stored: Stored, _: Settings, problems: Problems) -> View:
    return scaled_view(
        stored,
        problems,
        suffix="_scale",
        input_scale="input_scale",
        others=(".k_scale", ".v_scale"),
        block=_block,
        layout="each FP8 weight has a weight_scale that is one number",
        stacks=True,
    )


def _matches(settings: Settings) -> bool:
    return settings.get("quant_method") == "modelopt" and settings.get("quant_algo") in ("FP8", None)


MODELOPT_FP8 = Format("modelopt-fp8", _matches, _view)
