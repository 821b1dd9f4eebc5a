"""What a user can ask of precision: a recipe, what of it shall be otherwise, and how ranges are calibrated."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plugins.errors import UsageError
from ...plugins.number_formats import NUMBER_FORMATS, NumberFormat, quantized_formats
from ..console.option_fields import option, option_of

if TYPE_CHECKING:
    from .recipes import Recipe

FOLDER = "calibration"  # of an engine, an export or an FP8 checkpoint, for ``--scales``
FACTS = "scales.json"  # the file of such a folder that says what it holds
METHODS = ("max", "percentile", "mse")
CPU = "cpu"
DEVICES = (CPU, "cuda", "cuda:N")
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


def _names(which: Callable[[NumberFormat], bool]) -> str:
    """The names of the formats that the help says something of."""
    return ", ".join(each.name for each in NUMBER_FORMATS.values() if which(each))


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


_CALIBRATED = _names(lambda each: each.is_calibrated(tensorrt=False))
_CALIBRATED_ON_GPUS = _names(lambda each: each.is_calibrated(tensorrt=True) and not each.is_calibrated(tensorrt=False))
_CACHES = _names(lambda each: each.caches is not None and not each.caches.calibrated)
_CACHES_ON_GPUS = _names(lambda each: each.caches is not None and each.caches.calibrated)
_DRAFTERS = _names(lambda each: each.drafts(tensorrt=True))
_DRAFTERS_ON_CPUS = _names(lambda each: each.drafts(tensorrt=False) and not each.drafts(tensorrt=True))
_QUANTIZED = _or(each.name for each in quantized_formats())
_SCALES = f"name the folder {FOLDER}/ of an engine, an export or an FP8 checkpoint made here"


@dataclass(frozen=True)
class PrecisionAsked:
    """The recipe by its ``name``, and what of its table was asked for by itself; None keeps what the recipe says.

    ``exclude`` are patterns of modules.
    """

    name: str | None = option(
        "--precision",
        f"Recipe: {_or(NUMBER_FORMATS)}. {_CALIBRATED}, and {_CALIBRATED_ON_GPUS} for TensorRT, calibrate first.",
    )
    kv_cache: str | None = option(
        "--kv-cache-dtype",
        f"What keys and values are cached in: {_CACHES_ON_GPUS} (TensorRT); {_CACHES} (ONNX Runtime, with our "
        "kernels). (default: as the model computes)",
    )
    lm_head: str | None = option(
        "--lm-head-precision",
        f"Of the head's matrix: {_QUANTIZED}, or the wide type. (default: wide; int8 with int8 and int4 on ONNX "
        "Runtime)",
    )
    drafter: str | None = option(
        "--draft-precision",
        f"Of the drafter's matrices: {_DRAFTERS}, for onnxruntime {_DRAFTERS_ON_CPUS}, or the wide "
        "type. (default: wide; int8 with int8 and int4 on ONNX Runtime)",
    )
    exclude: tuple[str, ...] = option(
        "--exclude",
        "Modules of the target to leave wide, for example 'layers.0.*'. May be given several times.",
        (),
    )
    allow_wide: tuple[str, ...] = option(
        "--allow-wide",
        "Weights that may be stored in the recipe's type and multiplied wide where the GPU's layer of them does no "
        "more: experts. Every report then says so first. (default: none; such a build fails)",
        (),
        split=True,
    )

    def check(self) -> None:
        """Raise ``UsageError`` for weights that cannot be permitted to be multiplied wide."""
        from .recipes import ALLOWED_WIDE

        if unknown := [name for name in self.allow_wide if name not in ALLOWED_WIDE]:
            raise UsageError(
                f"--allow-wide {unknown[0]!r} names no weights that may be multiplied wide",
                why=f"it is for {', '.join(ALLOWED_WIDE)}",
                fix=f"--allow-wide {ALLOWED_WIDE[0]}, or leave it out; what shall be stored wide goes to --exclude",
            )

    @classmethod
    def recorded(cls, table: Mapping[str, str]) -> PrecisionAsked:
        """What asks for the table that a manifest records."""
        from .recipes import patterns

        allowed = tuple(filter(None, table.get("allow_wide", "").split(",")))
        return cls(table.get("recipe"), table.get("kv_cache"), table.get("lm_head"), table.get("drafter"),
                   patterns(table), allowed)  # fmt: skip

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with what was asked for by itself."""
        from .recipes import SHARE

        recipe = replace(recipe, allow_wide=self.allow_wide if recipe.quantized_type else ())
        asked = {"kv_cache": self.kv_cache, "lm_head": self.lm_head, "drafter": self.drafter}
        changed: dict[str, Any] = {name: kind for name, kind in asked.items() if kind and kind != getattr(recipe, name)}
        if not changed and not self.exclude:
            return recipe
        changes = [f"{name.replace('_', ' ')} in {kind}" for name, kind in changed.items()]
        changes += [f"{', '.join(self.exclude)} in {recipe.wide}"] if self.exclude else []
        result = replace(recipe, **changed, exclude=self.exclude, says=f"{recipe.says}; but {', '.join(changes)}")
        return replace(result, share=SHARE) if result.quantized_type else result


@dataclass(frozen=True)
class CalibrationAsked:
    """Where calibrated ranges come from; ``scales`` is a folder of saved ones, in place of a calibration.

    None stands for the bundled samples, the method max, the CPU, and as many samples and tokens as the lowering needs
    (``calibration.default_limits``).
    """

    data: Path | None = option(
        "--calib-data",
        "JSON Lines to calibrate with: text, messages or input_ids in each line. (default: the bundled samples of "
        "code, chat and prose)",
    )
    method: str | None = option(
        "--calib-method", "How ranges of activations are chosen: max, percentile (99.99) or mse. (default: max)"
    )
    num_samples: int | None = option(
        "--calib-samples", "How many samples at most. (default: 128; 16 for onnxruntime)", least=1
    )
    max_length: int | None = option(
        "--calib-length", "Longest sample, in tokens. (default: 512; 128 for onnxruntime)", least=1
    )
    device: str | None = option(
        "--calib-device", "Where layers are computed while they are calibrated: cpu, cuda or cuda:N. (default: cpu)"
    )
    scales: Path | None = option(
        "--scales",
        "Ranges of an earlier calibration (the folder calibration/ of what it made), instead of a new one.",
    )

    def given(self) -> list[str]:
        """The flags of a calibration that were given."""
        called = {each.name: option_of(each).flag for each in fields(self) if each.name != "scales"}
        return [flag for name, flag in called.items() if getattr(self, name) is not None]

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        if self.method not in (None, *METHODS):
            raise UsageError(f"the method {self.method!r} does not exist", fix=f"it is one of {', '.join(METHODS)}")
        if self.device is not None and not _DEVICE.fullmatch(self.device):
            raise UsageError(
                f"--calib-device {self.device!r} is no device", fix=f"it is one of {', '.join(DEVICES)}, N from 0"
            )
        others = self.given()
        if self.scales is not None and others:
            raise UsageError(
                f"--scales does not go with {', '.join(others)}",
                why="saved ranges are used as they are, and nothing is calibrated",
                fix="leave one or the other out",
            )
        for flag, path in (("--calib-data", self.data), ("--scales", self.scales)):
            if path is not None and not os.path.exists(path):  # Path.exists raises for a name that is too long
                fix = _SCALES if path is self.scales else "name a JSON Lines file that is there"
                raise UsageError(f"{flag} {path} does not exist", fix=fix)
        if self.scales is not None and not os.path.isfile(self.scales / FACTS):
            below = self.scales / FOLDER
            raise UsageError(
                f"--scales {self.scales} holds no calibrated ranges",
                why=f"there is no {FACTS} in it",
                fix=f"use --scales {below}" if os.path.isfile(below / FACTS) else _SCALES,
            )
