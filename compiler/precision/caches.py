"""The scales of FP8 key and value caches: those that a checkpoint carries, else calibrated ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graphs.names import cache_name, layer_prefix, weight_name
from ...graphs.targets import family_for
from ...graphs.targets.sources import Sources
from ...plugins.errors import BuildError
from ...plugins.numbers import E4M3, scales_of
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats.numbers import as_numbers, check_scales
from ..checkpoints.safetensors import read_rows

if TYPE_CHECKING:
    from .calibration import Scales

# Beside the projections, where ModelOpt has them, or of the attention itself, as compressed-tensors has them.
_NAMES = {"k": ("k_proj.k_scale", "k_scale"), "v": ("v_proj.v_scale", "v_scale")}


def cache_scales(checkpoint: Checkpoint, layers: int, ranges: Scales | None = None) -> dict[str, float]:
    """What a code counts for, by cache (``k_cache.0``), of a target with so many ``layers``.

    The checkpoint's own scales come first: whoever made it measured with the weights that it has. Raises ``BuildError``
    without a positive, finite scale for every cache.
    """
    found = stored_cache_scales(checkpoint, layers)
    if not found and ranges is not None:
        found = {name: float(scales_of(value, E4M3.largest)) for name, value in ranges.caches.items()}
    wanted = {cache_name(kind, layer) for layer in range(layers) for kind in "kv"}
    bad = sorted(name for name in wanted if not 0 < found.get(name, 0.0) < np.inf)
    if bad:
        raise BuildError(
            f"an FP8 KV cache of {checkpoint.folder} has no scale for {len(bad)} of {len(wanted)} caches: {bad[0]}"
            + (", ..." if len(bad) > 1 else ""),
            why="keys and values are stored in E4M3 with one scale a layer, which has to be measured",
            fix="calibrate (--scales names the result of an earlier calibration), or leave --kv-cache-dtype out",
        )
    return {name: found[name] for name in sorted(wanted)}


def stored_cache_scales(checkpoint: Checkpoint, layers: int) -> dict[str, float]:
    """Those in the checkpoint; none unless it has one for every cache. Raises ``BuildError`` for one that is none."""
    if not any(name.endswith((".k_scale", ".v_scale")) for name in checkpoint.companions):
        return {}
    sources = Sources(family_for(checkpoint.config), checkpoint.config, checkpoint.shapes)
    found = {}
    for layer in range(layers):
        attention = sources.key(weight_name(f"{layer_prefix(layer)}self_attn.k_proj")).removesuffix("k_proj.weight")
        for kind, names in _NAMES.items():
            for name in (f"{attention}{each}" for each in names):
                if name in checkpoint.companions:
                    found[cache_name(kind, layer)] = _number(checkpoint, name)
                    break
    return found if len(found) == layers * len(_NAMES) else {}


def _number(checkpoint: Checkpoint, name: str) -> float:
    entry = checkpoint.companions[name]
    if entry.shape not in ((), (1,)):
        raise BuildError(
            f"{entry.file}: {name} has shape {list(entry.shape)}",
            why="a cache has one scale for the whole layer",
            fix="download the file again, or leave --kv-cache-dtype out",
        )
    scales = as_numbers(entry.dtype, read_rows(name, entry, 0, 1)).astype(np.float32, copy=False)
    check_scales(name, entry, scales)
    return float(scales.reshape(-1)[0])
