"""FP8 as llm-compressor stores it (compressed-tensors): one scale for a weight or for each of its rows."""

from __future__ import annotations

from ....plugins.problems import Problems
from .base import Format, Settings, Stored, View
from .scaled import Block, Shape, scaled_view

_FORMATS = ("float-quantized", "naive-quantized")


def _block(weight: Shape, scale: Shape) -> Block | None:
    columns = max(weight[1], 1)
    if scale in ((), (1,)):
        return max(weight[0], 1), columns
    return (1, columns) if scale == (weight[0], 1) else None


def _view(stored: Stored, _: Settings, problems: Problems) -> View:
    return scaled_view(
        stored,
        problems,
        suffix="_scale",
        input_scale="input_scale",
        others=(".k_scale", ".v_scale"),
        block=_block,
        layout="each FP8 weight has a weight_scale that is one number, or one for each row",
    )


def _matches(settings: Settings) -> bool:
    """Sparse or rotated weights are other models than the stored numbers say."""
    sparsity = settings.get("sparsity_config") or {}
    return (
        settings.get("quant_method") == "compressed-tensors"
        and settings.get("format") in _FORMATS
        and isinstance(sparsity, dict)
        and sparsity.get("format", "dense") == "dense"
        and not settings.get("transform_config")
    )


COMPRESSED_TENSORS_FP8 = Format("compressed-tensors-fp8", _matches, _view)
