"""What a checkpoint says about its quantisation, in ``config.json`` and in ModelOpt's own file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....plugins.problems import Problems
from .base import Settings

_KEYS = ("quantization_config", "compression_config")  # the latter by early versions of compressed-tensors
_TELLING = ("quant_method", "quant_algo", "format", "weight_block_size", "transform_config", "sparsity_config")


def declared(config: Mapping[str, Any], modelopt: Mapping[str, Any], problems: Problems) -> Settings:
    """The settings of the quantisation, empty for none. ``modelopt`` is the content of hf_quant_config.json."""
    text = config.get("text_config")
    places = (config, text if isinstance(text, Mapping) else {})
    entry: Any = next((found for place in places for key in _KEYS if (found := place.get(key))), {})
    of_file = modelopt.get("quantization") or {}
    if not isinstance(entry, Mapping) or not isinstance(of_file, Mapping):
        problems.add(
            f"{problems.subject} has a description of its quantisation that is not an object",
            fix="use the config.json and hf_quant_config.json that belong to the weights",
        )
        return {}
    nested = entry.get("quantization")
    settings = {**nested, **entry} if isinstance(nested, Mapping) else dict(entry)
    if not of_file.get("quant_algo") and not of_file.get("kv_cache_quant_algo"):
        return settings
    stated = {key: value for key, value in of_file.items() if value is not None}
    both = {"quant_method": "modelopt", **stated, **settings}
    if both["quant_method"] != "modelopt" or both.get("quant_algo") != of_file.get("quant_algo"):
        problems.add(
            f"{problems.subject}: config.json and hf_quant_config.json describe different quantisations",
            why=f"{describe(settings)} and {describe(of_file)}",
            fix="use the config.json and hf_quant_config.json that belong to the weights",
        )
    return both


def describe(settings: Settings) -> str:
    """The entries that tell one format from another."""
    told = [f"{key} {settings[key]!r}" for key in _TELLING if settings.get(key)]
    return ", ".join(told)[:200] or "no quant_method"
