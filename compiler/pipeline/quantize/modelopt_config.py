"""Configuration of a quantized checkpoint, in the format of ModelOpt's export (``nvidia-modelopt`` 0.47)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


def hf_quant_config(exclude_modules: Sequence[str], *, kv_cache: bool, version: str) -> dict[str, Any]:
    """Return the content of ``hf_quant_config.json``."""
    return {
        "producer": {"name": "peagle-compile", "version": version},
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8" if kv_cache else None,
            "exclude_modules": list(exclude_modules),
        },
    }


def quantization_config(described: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of ``config.json``: ``hf_quant_config`` in the layout of compressed-tensors."""
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


def listed_modules(wide: Iterable[str], quantized: Iterable[str]) -> list[str]:
    """Return ModelOpt's ``exclude_modules``: the shortest prefix of each ``wide`` module that no quantized one has.

    Prefixes end before a dot and are followed by ``*``. If ``a.b.1*`` would also match ``a.b.10``, it is ``a.b.1.*``.
    """
    ordered = sorted(quantized)
    return sorted({_shortest(name, ordered) for name in wide})


def _shortest(name: str, quantized: Sequence[str]) -> str:
    for dot in (at for at, letter in enumerate(name) if letter == "."):
        prefix = name[:dot]
        if not _begins_any(prefix, quantized):
            return f"{prefix}*"
        if prefix not in quantized and not _begins_any(f"{prefix}.", quantized):
            return f"{prefix}.*"
    return name


def _begins_any(prefix: str, ordered: Sequence[str]) -> bool:
    at = bisect_left(ordered, prefix)
    return at < len(ordered) and ordered[at].startswith(prefix)
