"""Time and memory of the expensive steps of a build, from recorded rates; nothing is measured here.

Only values called ``least`` are bounds. The comment at each rate names the command that measured it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...plugins.number_formats import AFFINE, NUMBER_FORMATS, keeps_blocks
from ...plugins.tensorrt.products import TENSORRT_RTX
from ..console.printing import size

if TYPE_CHECKING:  # `build --from` needs none of the packages that trace
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from ..precision.recipes import Recipe

# Seconds for a number on one processor, from a checkpoint in BF16 that is in the page cache: `make bench-rounding`.
# Several processors take less. For its codes and scales each number format has them (`plugins/number_formats`).
READ = 0.4e-9
FIT = 52e-9  # a scale and a least value for each block

# Additions and multiplications a second of one idle core with AVX-512 in a calibrated layer of Qwen3-Coder-30B,
# attention and observers included: 390 tokens a second of 56 million weights (`benchmarks/calibration.py`).
CALIBRATED_BY_A_CORE = 44e9

# `make bench-export` writes 120 MB/s in FP16 and 187 MB/s in FP32 (docs/build-performance.md); this is below both, on
# the safe side.
WRITTEN_BYTES_PER_SECOND = 80e6

# The process that builds a plan with TensorRT-RTX 1.7: its peak in one piece for dense layers, by the bytes of the
# weights, mapped pages of the graph's file included. Of routed experts it was 2.3 (`make bench-aot`).
BUILDER_PEAK = 3.07
# Mapped pages are given up when memory is short, the rest is not: in a control group of this share of the weights the
# first case of `make bench-aot` was killed, in one of 1.76 times it was built (docs/tensorrt.md has the command).
BUILDER_MIN = 0.95
# Bytes of a plan by those of its weights, at least: 0.98 with `make bench-aot`.
PLAN_MIN = 0.95
# Seconds of TensorRT-RTX for a layer and for a byte of weights: `make bench-aot`. Full TensorRT was never measured.
BUILD_LAYER = 1.05
BUILD_BYTE = 3.6e-9
_MEASURED = TENSORRT_RTX.name

_FP32 = 4
_LAYERS = "layers"


def duration(seconds: float) -> str:
    """Format seconds."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@dataclass(frozen=True)
class Calibration:
    """The samples of a calibration: ``tokens`` at most, each through ``experts`` of every layer's, on a ``device``."""

    tokens: int
    experts: int = 1
    device: str = "cpu"

    def share(self, weight: RoledWeight) -> float:
        """Return the share of a weight that each token is multiplied with."""
        return min(self.experts / weight.shape[0], 1.0) if weight.role == "experts" else 1.0


@dataclass(frozen=True)
class CalibrationWork:
    """The cost of a calibration on its ``device``: ``bytes`` of the largest layer in FP32, and ``operations``."""

    bytes: int
    tokens: int
    operations: float
    device: str = "cpu"

    @property
    def is_local(self) -> bool:
        """True if it uses this machine's memory and processors."""
        return self.device == "cpu"

    @classmethod
    def of(cls, census: Iterable[RoledWeight], calibration: Calibration) -> CalibrationWork:
        """Compute the cost from the weights of a target."""
        layers: Counter[str] = Counter()
        passed = 0.0  # weights that a token meets
        for weight in census:
            if layer := layer_of(weight.name):
                layers[layer] += weight.count
                passed += weight.count * calibration.share(weight)
        tokens = calibration.tokens
        return cls(_FP32 * max(layers.values(), default=0), tokens, 2 * passed * tokens, calibration.device)

    def describe(self) -> str:
        """Describe operations and memory; the time is given only at the recorded rate, as it depends on the machine."""
        hours = self.operations / CALIBRATED_BY_A_CORE / 3600
        rate = f"{CALIBRATED_BY_A_CORE / 1e9:.0f} GFLOP/s that an idle core with AVX-512 reached"
        time = f"{hours:.2g} hours of one core at the {rate} (benchmarks/calibration.py)"
        whose = "memory" if self.is_local else f"{self.device}'s memory"
        time = time if self.is_local else f"the speed of {self.device} was not measured"
        return (
            f"at most {self.tokens:,} tokens, {self.operations:.1e} operations: {time}; about {size(self.bytes)} of "
            f"{whose} for the largest layer in FP32; --scales uses saved ranges instead of calibrating"
        )


@dataclass(frozen=True)
class BuilderWork:
    """The cost of the process in which ``product`` builds a plan: estimated peak bytes, minimum bytes and seconds.

    ``least_bytes`` and ``seconds`` are 0 for a product that was never measured.
    """

    product: str
    bytes: int
    least_bytes: int
    seconds: float

    @classmethod
    def of(cls, product: str, weight_bytes: int, layers: int) -> BuilderWork:
        """Compute the cost from the bytes of a plan's weights and its number of layers."""
        known = product == _MEASURED
        return cls(
            product=product,
            bytes=math.ceil(BUILDER_PEAK * weight_bytes),
            least_bytes=int(BUILDER_MIN * weight_bytes) if known else 0,
            seconds=BUILD_LAYER * layers + BUILD_BYTE * weight_bytes if known else 0.0,
        )

    def memory(self) -> str:
        """Describe the memory of the process and the origin of the figure."""
        known_minimum = f"; a build with {size(self.least_bytes)} ran out of memory" if self.least_bytes else ""
        return (
            f"about {size(self.bytes)} in a separate process, {BUILDER_PEAK} times the weights, as measured with "
            f"TensorRT-RTX{known_minimum or '; TensorRT was not measured'}"
        )

    def time(self) -> str:
        """Describe the build time, if it was measured."""
        if not self.seconds:
            return "the build time of TensorRT was not measured"
        return f"about {duration(self.seconds)}, from the single layers and the small stack of `make bench-aot`"


@dataclass(frozen=True)
class BuildWork:
    """The expensive steps of a build; None or 0 seconds for a step that it does not have.

    ``rounding_seconds`` are spent while weights are written, if the build quantizes them. ``builder`` is for TensorRT
    plans.
    """

    calibration: CalibrationWork | None
    rounding_seconds: float
    builder: BuilderWork | None

    def rows(self) -> list[tuple[str, str]]:
        """A row for each step, with the origin of its figures."""
        rows = [("  calibration", self.calibration.describe())] if self.calibration else []
        if self.rounding_seconds:
            time = f"about {duration(self.rounding_seconds)} while weights are written, on one processor"
            rows.append(("  rounding", f"{time} (`make bench-rounding`); less on several processors"))
        return rows + ([("  building", f"{self.builder.memory()}; {self.builder.time()}")] if self.builder else [])


def layer_of(name: str) -> str:
    """Return the layer of a weight, as a prefix of its name; empty if it is in none."""
    parts = name.split(".")
    return ".".join(parts[: parts.index(_LAYERS) + 2]) if _LAYERS in parts else ""


def needs_calibration(
    census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering, kept_blocks: Collection[str] = ()
) -> bool:
    """Return True if quantization needs calibration, not counting weights ``kept_blocks`` as in the checkpoint."""
    from ..precision.quantization_schemes import rounds_input, scheme_of
    from ..precision.weight_selection import Selection

    if recipe.calibrates_caches or not recipe.quantized_type:
        return recipe.calibrates_caches
    for weight in Selection.of_target(census, recipe).weights.values():
        if keeps_blocks(recipe.precision(weight.role)):
            continue
        how = scheme_of(recipe.precision(weight.role), lowering, weight)
        if how.packed == AFFINE and weight.name not in kept_blocks:
            return True
        if how.input is not None and not how.powers and rounds_input(recipe, weight.role):
            return True
    return False


def rounding_seconds(
    census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering, kept_blocks: Collection[str] = ()
) -> float:
    """Estimate the seconds of quantization.

    A weight with few scales is read twice, one with block scales once, and one that is ``kept_blocks`` not at all.
    """
    from ..precision.quantization_schemes import scheme_of
    from ..precision.weight_selection import Selection

    seconds = 0.0
    selected = Selection.of_target(census, recipe).weights if recipe.quantized_type else {}
    for weight in selected.values():
        kind = recipe.precision(weight.role)
        if weight.name not in kept_blocks and not keeps_blocks(kind):
            how = scheme_of(kind, lowering, weight)
            fit = FIT if how.packed == AFFINE else NUMBER_FORMATS[kind].rounding_seconds
            seconds += weight.count * ((1 if how.block else 2) * READ + fit)
    return seconds
