"""How a quantised checkpoint describes itself, in the words of ModelOpt's export (``nvidia-modelopt`` 0.47)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

QUANT_CONFIG = "hf_quant_config.json"
_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


def hf_quant_config(exclude_modules: Sequence[str], *, kv_cache: bool, version: str) -> dict[str, Any]:
    """The content of ``hf_quant_config.json``."""
    return {
        "producer": {"name": "peagle-compile", "version": version},
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8" if kv_cache else None,
            "exclude_modules": list(exclude_modules),
        },
    }


def quantization_config(described: dict[str, Any]) -> dict[str, Any]:
    """The entry of ``config.json`` that says the same as ``hf_quant_config`` in the layout of compressed-tensors."""
    quantization = described["quantization"]
    cache = {"kv_cache_scheme": dict(_FP8)} if quantization["kv_cache_quant_algo"] else {}
    return {
        "config_groups": {
            "group_0": {"input_activations": dict(_FP8), "weights": dict(_FP8), "targets": ["Linear"]},
        },
        "ignore": quantization["exclude_modules"],
        "quant_algo": quantization["quant_algo"],
        **cache,
        "producer": described["producer"],
        "quant_method": "modelopt",
    }
