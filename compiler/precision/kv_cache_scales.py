"""Quantized KV caches, and the scales of FP8 ones: from the checkpoint if it has them, else calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...graphs.names import cache_name, layer_prefix, weight_name
from ...plugins.errors import BuildError
from ...plugins.number_formats import NUMBER_FORMATS
from ...plugins.number_types import E4M3, scales_of
from ..checkpoints.formats.fp8_with_scales import read_scale
from ..checkpoints.target import Target
from .recipes import is_calibrated_cache

if TYPE_CHECKING:
    import onnx_ir as ir

    from .calibration.saved_ranges import Scales
    from .recipes import Recipe

_WHY, _FIX = "a cache must have a single scale per layer", "download the file again, or omit --kv-cache-dtype"
# Next to the projections in ModelOpt, or in the attention module in compressed-tensors.
_NAMES = {"k": ("k_proj.k_scale", "k_scale"), "v": ("v_proj.v_scale", "v_scale")}


@dataclass(frozen=True)
class LowPrecisionCaches:
    """Key and value caches in their own format ``kind``; calibrated ones have ``scales`` by cache.

    ``emulated`` rounds keys and values to the codes of calibrated caches but stores them wide, for ONNX Runtime.
    """

    kind: str
    scales: Mapping[str, float] = field(default_factory=dict)
    emulated: bool = False

    @classmethod
    def of(
        cls, component: str, recipe: Recipe, scales: Callable[[], Mapping[str, float]] = dict
    ) -> LowPrecisionCaches | None:
        """Return the caches of a half if a recipe quantizes them; FP8 ones use ``scales``."""
        kind = recipe.cache_type(component)
        if kind == recipe.wide:
            return None
        return cls(kind, scales()) if recipe.calibrates_caches else cls(kind)

    @property
    def is_calibrated(self) -> bool:
        """True if they are codes with measured scales."""
        return is_calibrated_cache(self.kind)

    @property
    def dtype(self) -> str:
        """The element type in graphs and manifests; empty for unquantized caches."""
        return "" if self.emulated else NUMBER_FORMATS[self.kind].number_type.name

    def rewrite(self, model: ir.Model) -> None:
        """Set the type of the caches of a semantic graph, in place."""
        from ...graphs.quantization import lower_cache_precision, quantize_caches, round_caches

        if not self.is_calibrated:
            lower_cache_precision(model, self.dtype)
        elif self.emulated:
            round_caches(model, self.scales)
        else:
            quantize_caches(model, self.scales)


def cache_scales(target: Target, ranges: Scales | None = None) -> dict[str, float]:
    """Return the scale of each cache by its name (``k_cache.0``).

    The checkpoint's own scales take precedence: they were measured with its weights. Raises ``BuildError`` unless every
    cache has a positive, finite scale.
    """
    scales = stored_cache_scales(target)
    if not scales and ranges is not None:
        scales = {name: float(scales_of(value, E4M3.largest)) for name, value in ranges.caches.items()}
    caches = {cache_name(kind, layer) for layer in range(target.spec.num_layers) for kind in "kv"}
    bad = sorted(name for name in caches if not 0 < scales.get(name, 0.0) < np.inf)
    if bad:
        raise BuildError(
            f"the FP8 KV cache of {target.folder} has no scale for {len(bad)} of its {len(caches)} tensors: {bad[0]}"
            + (", ..." if len(bad) > 1 else ""),
            why="keys and values are stored in E4M3 with one measured scale per layer",
            fix="calibrate (--scales reuses an earlier calibration), or omit --kv-cache-dtype",
        )
    return {name: scales[name] for name in sorted(caches)}


def stored_cache_scales(target: Target) -> dict[str, float]:
    """Return the checkpoint's scales; empty unless it has one for every cache.

    Raises ``BuildError`` for one that is not a positive number.
    """
    companions = target.checkpoint.companions
    if not any(name.endswith((".k_scale", ".v_scale")) for name in companions):
        return {}
    scales: dict[str, float] = {}
    for layer in range(target.spec.num_layers):
        key = target.sources.key(weight_name(f"{layer_prefix(layer)}self_attn.k_proj"))
        attention = key.removesuffix("k_proj.weight")
        for kind, names in _NAMES.items():
            stored = next((f"{attention}{name}" for name in names if f"{attention}{name}" in companions), None)
            if stored is not None:
                entry = companions[stored]
                if entry.shape not in ((), (1,)):
                    raise BuildError(f"{entry.file}: {stored} has shape {list(entry.shape)}", why=_WHY, fix=_FIX)
                scales[cache_name(kind, layer)] = read_scale(stored, entry, why=_WHY, fix=_FIX)
    return scales if len(scales) == target.spec.num_layers * len(_NAMES) else {}
