"""FP8 weights with scales, in the layouts of three programs.

Blocks (DeepSeek, Qwen): one scale per block of rows and columns; despite its name, ``scale_inv`` is a multiplier.
ModelOpt: one scale per weight, one for its input, and one each for cached keys and values; experts stacked in one
parameter (GPT-OSS) count as one weight. compressed-tensors (llm-compressor): one scale per weight, row or block.
"""

from __future__ import annotations

from functools import partial

from ....plugins.problems import Problems
from .base import Format, Settings, Stored, View
from .fp8_with_scales import Block, Shape, scaled_view

_CACHE_SCALES = (".k_scale", ".v_scale")
_COMPRESSED_TENSORS = ("float-quantized", "naive-quantized")


def _block_size(settings: Settings) -> Block | None:
    match settings.get("weight_block_size"):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None


def _whole(weight: Shape, scale: Shape) -> Block | None:
    return (max(weight[0], 1), max(weight[1], 1)) if scale in ((), (1,)) else None


def _whole_or_rows(weight: Shape, scale: Shape) -> Block | None:
    return _whole(weight, scale) or ((1, max(weight[1], 1)) if scale == (weight[0], 1) else None)


def _blocks(size: Block, weight: Shape, scale: Shape) -> Block | None:
    rows, columns = size
    return size if scale == (-(-weight[0] // rows), -(-weight[1] // columns)) else None


def _block_structure(settings: Settings) -> Block | None:
    """Return the block size of the weights, a list or text such as 128x128; None if none or several are declared."""
    groups = settings.get("config_groups")
    found = set()
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("strategy") == "block":
            declared = weights.get("block_structure")
            sizes = declared.split("x") if isinstance(declared, str) else declared if isinstance(declared, list) else []
            numbers = [int(text) if (text := str(size).strip()).isdecimal() else 0 for size in sizes]
            found.add(tuple(numbers))
    match list(found):
        case [(int(rows), int(columns))] if rows > 0 and columns > 0:
            return rows, columns
    return None


def _in_blocks(stored: Stored, settings: Settings, problems: Problems) -> View:
    rows, columns = _block_size(settings) or (1, 1)

    return scaled_view(
        stored,
        problems,
        suffix="_scale_inv",
        input_scale="activation_scale",
        others=(),
        block=partial(_blocks, (rows, columns)),
        layout=f"each FP8 weight has a weight_scale_inv with one number for {rows} x {columns} weights",
    )


def _of_modelopt(stored: Stored, _: Settings, problems: Problems) -> View:
    return scaled_view(
        stored,
        problems,
        suffix="_scale",
        input_scale="input_scale",
        others=_CACHE_SCALES,
        block=_whole,
        layout="each FP8 weight has a weight_scale that is one number",
        stacks=True,
    )


def _of_compressed_tensors(stored: Stored, settings: Settings, problems: Problems) -> View:
    size = _block_structure(settings)
    per_block = f", or one for {size[0]} x {size[1]} weights" if size else ""

    def block(weight: Shape, scale: Shape) -> Block | None:
        return _whole_or_rows(weight, scale) or (_blocks(size, weight, scale) if size else None)

    return scaled_view(
        stored,
        problems,
        suffix="_scale",
        input_scale="input_scale",
        others=_CACHE_SCALES,
        block=block,
        layout=f"each FP8 weight has a weight_scale that is one number, or one for each row{per_block}",
    )


def _is_in_blocks(settings: Settings) -> bool:
    return settings.get("quant_method") == "fp8" and _block_size(settings) is not None


def _is_of_modelopt(settings: Settings) -> bool:
    return settings.get("quant_method") == "modelopt" and settings.get("quant_algo") in ("FP8", None)


def _is_of_compressed_tensors(settings: Settings) -> bool:
    """Return True if the stored values are the model itself; sparse or rotated weights need further processing."""
    sparsity = settings.get("sparsity_config") or {}
    return (
        settings.get("quant_method") == "compressed-tensors"
        and settings.get("format") in _COMPRESSED_TENSORS
        and isinstance(sparsity, dict)
        and sparsity.get("format", "dense") == "dense"
        and not settings.get("transform_config")
    )


FP8_BLOCKS = Format("fp8-blocks", _is_in_blocks, _in_blocks)
MODELOPT_FP8 = Format("modelopt-fp8", _is_of_modelopt, _of_modelopt)
COMPRESSED_TENSORS_FP8 = Format("compressed-tensors-fp8", _is_of_compressed_tensors, _of_compressed_tensors)
