"""Fine-grained FP8: a scale for each block of rows and columns. Despite the name ``scale_inv``, it multiplies."""

from __future__ import annotations

from ....plugins.problems import Problems
from .base import Format, Settings, Stored, View
from .scaled import Block, Shape, scaled_view


def _block_size(settings: Settings) -> Block | None:
    match settings.get("weight_block_size"):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None


def _view(stored: Stored, settings: Settings, problems: Problems) -> View:
    rows, columns = _block_size(settings) or (1, 1)

    def block(weight: Shape, scale: Shape) -> Block | None:
        return (rows, columns) if scale == (-(-weight[0] // rows), -(-weight[1] // columns)) else None

    return scaled_view(
        stored,
        problems,
        suffix="_scale_inv",
        input_scale="activation_scale",
        others=(),
        block=block,
        layout=f"each FP8 weight has a weight_scale_inv with one number for {rows} x {columns} weights",
    )


FP8_BLOCKS = Format(
    "fp8-blocks", lambda settings: settings.get("quant_method") == "fp8" and _block_size(settings) is not None, _view
)
