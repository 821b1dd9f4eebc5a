"""Write weights in the storage formats of published checkpoints, for tests and synthetic models.

    stored = encode("model.layers.0.mlp.up_proj.weight", values, "fp8-blocks")
    config["quantization_config"] = quantization_config("fp8-blocks")

The inverse is `compiler/checkpoints/formats/`. A `modelopt-fp8` checkpoint has `hf_quant_config()` beside its
config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from peagle.plugins.number_types import E4M3

_BLOCK = (128, 128)  # the usual block of fine-grained FP8
FORMATS = ("bf16", "mxfp4", "fp8-blocks", "modelopt-fp8", "compressed-tensors-fp8")

_FP8_MAX = E4M3.largest
_FP4_EDGES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # between 0, .5, 1, 1.5, 2, 3, 4 and 6


def encode(
    name: str,
    values: torch.Tensor | np.ndarray[Any, Any],
    format: str,
    *,
    block: tuple[int, int] | None = None,
    per_channel: bool = False,
    input_scale: float | None = None,
) -> dict[str, torch.Tensor]:
    """Return the stored tensors of one weight [out, in], or of one expert tensor.

    Expert tensors are [E, rows, cols] for `mxfp4` and [E, in, out] for `modelopt-fp8`, as in GPT-OSS. `block` is for
    `fp8-blocks` (default 128 x 128) and `compressed-tensors-fp8`, `per_channel` for the latter. An `input_scale` is
    calibrated elsewhere; ModelOpt always stores one, so it defaults to 1 there.
    """
    weight = torch.as_tensor(values).float()
    if format == "bf16":
        return {name: weight.bfloat16()}
    if format == "mxfp4":
        return _mxfp4(name, weight)
    if format == "fp8-blocks":
        rows, columns = block or _BLOCK
        codes, scale = _fp8(weight, rows, columns)
        extra = {} if input_scale is None else {_sibling(name, "activation_scale"): torch.tensor(input_scale)}
        return {name: codes, f"{name}_scale_inv": scale} | extra
    if format == "modelopt-fp8":
        matrix = weight.reshape(-1, weight.shape[-1])
        codes, scale = _fp8(matrix, *matrix.shape)
        names = (f"{name}_scale", _sibling(name, "input_scale"))
        if weight.ndim == 3:
            names = (f"{name}_weight_scale", f"{name}_input_scale")
        static = torch.tensor(1.0 if input_scale is None else input_scale)
        return {name: codes.reshape(weight.shape), names[0]: scale.reshape(()), names[1]: static}
    if format == "compressed-tensors-fp8":
        whole = (1 if per_channel else weight.shape[0], weight.shape[1])
        codes, scale = _fp8(weight, *(block or whole))
        extra = {} if input_scale is None else {_sibling(name, "input_scale"): torch.tensor([input_scale])}
        return {name: codes, f"{name}_scale": scale if per_channel or block else scale.reshape(1)} | extra
    raise ValueError(f"{format!r} is not one of {', '.join(FORMATS)}")


def quantization_config(
    format: str,
    *,
    block: tuple[int, int] | None = None,
    per_channel: bool = False,
    static: bool = False,
    kv_cache: bool = False,
    excluded: Sequence[str] = ("lm_head",),
) -> dict[str, Any]:
    """Return the entry `quantization_config` of config.json; empty for `bf16`.

    `static`: input scales are stored; `kv_cache`: scales of cached keys and values are stored.
    """
    if format == "bf16":
        return {}
    if format == "mxfp4":
        return {"quant_method": "mxfp4", "modules_to_not_convert": list(excluded)}
    if format == "fp8-blocks":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "static" if static else "dynamic",
            "weight_block_size": list(block or _BLOCK),
            "modules_to_not_convert": list(excluded),
        }
    eight = {"num_bits": 8, "type": "float"}
    cache = eight | {"dynamic": False} if kv_cache else None
    if format == "modelopt-fp8":
        tensor = eight | {"dynamic": False}
        return {
            "quant_method": "modelopt",
            "quant_algo": "FP8",
            "producer": {"name": "modelopt", "version": "0.40.0"},
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": tensor, "input_activations": tensor}},
            "ignore": list(excluded),
        } | ({"kv_cache_scheme": cache} if cache else {})
    if format == "compressed-tensors-fp8":
        weights = eight | {"strategy": "channel" if per_channel else "tensor", "symmetric": True, "dynamic": False}
        weights |= {"strategy": "block", "block_structure": list(block)} if block else {}
        inputs = eight | {"strategy": "tensor" if static else "token", "symmetric": True, "dynamic": not static}
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
            "ignore": list(excluded),
            "kv_cache_scheme": cache,
        }
    raise ValueError(f"{format!r} is not one of {', '.join(FORMATS)}")


def hf_quant_config(*, kv_cache: bool = False, excluded: Sequence[str] = ("lm_head",)) -> dict[str, Any]:
    """Return the content of hf_quant_config.json, which ModelOpt writes beside config.json."""
    quantization = {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8" if kv_cache else None,
        "exclude_modules": list(excluded),
    }
    return {"producer": {"name": "modelopt", "version": "0.40.0"}, "quantization": quantization}


def _fp8(weight: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of a matrix, and the scale [ceil(out / rows), ceil(in / columns)] of each block."""
    out, width = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -width % columns, 0, -out % rows))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    largest = blocks.abs().amax(dim=(1, 3))
    scale = torch.where(largest > 0, largest / _FP8_MAX, 1.0)
    codes = (blocks / scale[:, None, :, None]).clamp(-_FP8_MAX, _FP8_MAX).reshape(padded.shape)[:out, :width]
    return codes.contiguous().to(torch.float8_e4m3fn), scale


def _mxfp4(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Quantize blocks of 32 columns; the largest number of each block becomes 4 or 6."""
    blocks = weight.reshape(*weight.shape[:-1], weight.shape[-1] // 32, 32)
    exponent = torch.frexp(blocks.abs().amax(-1)).exponent.to(torch.int32) - 3
    exponent = exponent.clamp(-127, 127)
    magnitude = torch.bucketize(torch.ldexp(blocks.abs(), -exponent[..., None]), torch.tensor(_FP4_EDGES))
    codes = (magnitude + 8 * torch.signbit(blocks)).to(torch.uint8)
    return {
        f"{name}_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        f"{name}_scales": (exponent + 127).to(torch.uint8),
    }


def _sibling(weight: str, name: str) -> str:
    return f"{weight.removesuffix('.weight')}.{name}"
