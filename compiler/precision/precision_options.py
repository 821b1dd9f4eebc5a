"""User options for precision: a recipe and changes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...plugins.errors import UsageError
from ...plugins.number_formats import FP32, NUMBER_FORMATS, NumberFormat, quantized_formats
from ..console.option_fields import option

if TYPE_CHECKING:
    from .recipes import Recipe


def _names(which: Callable[[NumberFormat], bool]) -> str:
    """Join the names of the selected formats for a help text."""
    return ", ".join(each.name for each in NUMBER_FORMATS.values() if which(each))


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


_CALIBRATED = _names(lambda each: each.is_calibrated(tensorrt=False))
_CALIBRATED_ON_GPUS = _names(lambda each: each.is_calibrated(tensorrt=True) and not each.is_calibrated(tensorrt=False))
_FITTED = _names(lambda each: each.is_fitted)
_CACHES = _names(lambda each: each is FP32 or (each.caches is not None and not each.caches.calibrated))
_CACHES_ON_GPUS = _names(lambda each: each.caches is not None and each.caches.calibrated)
_DRAFTERS = _names(lambda each: each.drafts(tensorrt=True))
_DRAFTERS_ON_CPUS = _names(lambda each: each.drafts(tensorrt=False) and not each.drafts(tensorrt=True))
_AS_STORED = _names(lambda each: each.as_stored)
_INTEGERS = _or(each.name for each in NUMBER_FORMATS.values() if each.kernels)
_INTEGER_CACHES = _names(lambda each: each.caches is not None and bool(each.caches.default_of))
_QUANTIZED = _or(each.name for each in quantized_formats())


@dataclass(frozen=True)
class PrecisionOptions:
    """A recipe by ``name``, and changes to its table; None keeps the recipe's value.

    ``exclude`` are module patterns.
    """

    name: str | None = option(
        "--precision",
        f"Precision recipe: {_or(NUMBER_FORMATS)}. Builds calibrate {_CALIBRATED} on every backend, "
        f"{_CALIBRATED_ON_GPUS} on TensorRT, and {_FITTED} with this project's CPU kernels. {_AS_STORED} keeps the "
        "quantized blocks of a GGUF file, for this project's CPU kernels.",
    )
    kv_cache: str | None = option(
        "--kv-cache-dtype",
        f"Type of cached keys and values: {_CACHES_ON_GPUS} (TensorRT); {_CACHES} (ONNX Runtime with this project's "
        f"CPU kernels). (default: the compute type of the model; {_INTEGER_CACHES} with these kernels if --precision "
        f"is {_INTEGERS})",
    )
    lm_head: str | None = option(
        "--lm-head-precision",
        f"Type of the LM head: {_QUANTIZED}, or unquantized (the type of the model: fp32, fp16 or bf16). (default: "
        "unquantized; on ONNX Runtime, int8 if --precision is int8 or int4, and stored if --precision is stored)",
    )
    drafter: str | None = option(
        "--draft-precision",
        f"Type of the drafter's matrices: {_DRAFTERS}, unquantized (the type of the model) or, on ONNX Runtime only, "
        f"{_DRAFTERS_ON_CPUS}. (default: unquantized; on ONNX Runtime, int8 if --precision is int8, int4 or stored)",
    )
    exclude: tuple[str, ...] = option(
        "--exclude",
        "Modules of the target to leave unquantized, for example 'layers.0.*'. Can be repeated.",
        (),
    )
    allow_wide: tuple[str, ...] = option(
        "--allow-wide",
        "Weights that the GPU may dequantize to FP16 or BF16 for the matmul if it cannot compute in the "
        "recipe's type; the only value is experts. Every report then starts with the share of the weights that "
        "are multiplied in the recipe's type. (default: none; a build with such weights fails)",
        (),
        split=True,
    )

    def check(self) -> None:
        """Raise ``UsageError`` for weights that --allow-wide does not support."""
        from .recipes import ALLOWED_WIDE

        if unknown := [name for name in self.allow_wide if name not in ALLOWED_WIDE]:
            raise UsageError(
                f"--allow-wide does not support {unknown[0]!r}",
                why=f"the supported weights are {', '.join(ALLOWED_WIDE)}",
                fix=(
                    f"use --allow-wide {ALLOWED_WIDE[0]}, or omit the option; to leave weights unquantized, use "
                    "--exclude"
                ),
            )

    @classmethod
    def recorded(cls, table: Mapping[str, str]) -> PrecisionOptions:
        """Return the options that give the table recorded in a manifest."""
        from .recipes import patterns

        allowed = tuple(filter(None, table.get("allow_wide", "").split(",")))
        return cls(table.get("recipe"), table.get("kv_cache"), table.get("lm_head"), table.get("drafter"),
                   patterns(table), allowed)  # fmt: skip

    def of(self, recipe: Recipe) -> Recipe:
        """Return the recipe with these changes applied."""
        from .recipes import SHARE

        recipe = replace(recipe, allow_wide=self.allow_wide if recipe.quantized_type else ())
        requested = {"kv_cache": self.kv_cache, "lm_head": self.lm_head, "drafter": self.drafter}
        changed: dict[str, Any] = {
            name: kind for name, kind in requested.items() if kind and kind != getattr(recipe, name)
        }
        if not changed and not self.exclude:
            return recipe
        changes = [f"{name.replace('_', ' ')} in {kind}" for name, kind in changed.items()]
        changes += [f"{', '.join(self.exclude)} in {recipe.wide}"] if self.exclude else []
        result = replace(recipe, **changed, exclude=self.exclude, says=f"{recipe.says}; but {', '.join(changes)}")
        return replace(result, share=SHARE) if result.quantized_type else result
