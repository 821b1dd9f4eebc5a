"""What becomes FP8 and what stays as it is, decided from names and shapes before anything is calibrated."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....graphs.names import LM_HEAD, cache_name, layer_prefix, module_of, weight_name
from ....plugins.errors import BuildError, UsageError
from ....plugins.problems import listed
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.target import Target
from ...precision.calibration.saved_ranges import Scales
from ...precision.exclude_patterns import excluded
from .modelopt_config import listed_modules

_WEIGHT = ".weight"
_CACHES = {"k": "k_proj.k_scale", "v": "v_proj.v_scale"}
_EXPERTS = ".experts"
_ONE_ELSEWHERE = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


@dataclass(frozen=True)
class QuantizedMatrix:
    """One stored matrix, or the stacked ones of all experts, that becomes FP8.

    What enters it is ``inputs[range]``, of its ``expert`` if it belongs to one.

    ``together`` are the matrices that take the largest magnitude of them all for their scale, itself among them.
    """

    key: str
    range: str
    expert: int | None
    together: tuple[str, ...]

    @property
    def module(self) -> str:
        """What the matrix belongs to; of stacked ones, themselves."""
        return module_of(self.key)

    @property
    def stacked(self) -> bool:
        """Whether it is a parameter of its module that has another name than ``weight``."""
        return not self.key.endswith(_WEIGHT)

    @property
    def weight_scale(self) -> str:
        """The name of the scale of its numbers."""
        return f"{self.key}_weight_scale" if self.stacked else f"{self.key}_scale"

    @property
    def input_scale(self) -> str:
        """The name of the scale of what enters it."""
        return f"{self.module}_input_scale" if self.stacked else f"{self.module}.input_scale"

    def input_amax(self, scales: Scales) -> float:
        """The calibrated range of what enters it."""
        ranges = scales.inputs[self.range]
        return float(ranges.max() if self.expert is None else ranges[self.expert])


@dataclass(frozen=True)
class CacheScale:
    """The scale of one layer's cached keys or values: its range in ``Scales.caches``, and the tensor it lies beside."""

    range: str
    beside: str


@dataclass(frozen=True)
class Worklist:
    """``matrices`` by stored name, ``caches`` by the name of their scale; ModelOpt's list of what stays wide.

    ``warnings`` are about who cannot read it.
    """

    matrices: Mapping[str, QuantizedMatrix]
    caches: Mapping[str, CacheScale]
    exclude_modules: Sequence[str]
    warnings: Sequence[str]


def make_worklist(target: Target, patterns: Sequence[str] = (), *, kv_cache: bool = False) -> Worklist:
    """Every linear and expert matrix but the head's, without those that ``patterns`` name.

    Raises ``BuildError`` for a checkpoint that is quantised already, that is not what its configuration describes, or
    that has matrices which the format has no place for; ``UsageError`` for a pattern that names nothing.
    """
    checkpoint, sources = target.checkpoint, target.sources
    if checkpoint.gguf:
        raise BuildError(
            f"{checkpoint.source} is a GGUF file, and ModelOpt's FP8 is written beside safetensors",
            why="what is not rounded is copied as the checkpoint has it",
            fix="build from it as it is, with any --precision, or quantise the safetensors of the model",
        )
    if checkpoint.format != "plain":
        raise BuildError(
            f"{checkpoint.folder} is quantised already ({checkpoint.format})",
            why="rounding rounded weights again adds a second error to the first",
            fix="build from it as it is, or quantise a BF16, FP16 or FP32 checkpoint of the model",
        )
    target.check()
    candidates: list[QuantizedMatrix] = []
    turned = set[str]()
    ranges = target.skeleton.range_shapes.inputs
    for name in (name for name in ranges if name != weight_name(LM_HEAD)):
        pieces = sources.pieces(name, target.skeleton.shapes[name])
        stored = [tuple(map(sources.key, piece.keys)) for piece in pieces]
        turned |= {sources.key(key) for piece in pieces if piece.how == "transpose" for key in piece.keys}
        candidates += _matrices(name, stored, experts=bool(ranges[name]))
    out = excluded({matrix.module: target.family.canonical(matrix.module) for matrix in candidates}, patterns)
    matrices = {matrix.key: matrix for matrix in candidates if matrix.module not in out}
    if not matrices:
        raise UsageError("--exclude leaves nothing to quantise", fix="exclude less")
    _check(matrices.values(), checkpoint, turned)
    wide = {module_of(sources.key(weight_name(LM_HEAD)))} | {
        key.removesuffix(_WEIGHT)
        for key, shape in checkpoint.shapes.items()
        # embedding, routers, what the towers of multimodal models have; stacked biases belong to their weights
        if key not in matrices and len(shape) > 1 and not key.endswith("bias")
    }
    modules = [matrix.module for matrix in matrices.values()]
    caches = _cache_scales(target) if kv_cache else {}
    return Worklist(matrices, caches, listed_modules(wide, modules), _torn_apart(modules, out))


def _torn_apart(narrow: Iterable[str], wide: Iterable[str]) -> list[str]:
    """A warning of what others multiply as one matrix and is quantised in part: they know one type for it."""
    torn = sorted({*map(_as_one, narrow)} & {*map(_as_one, wide)})
    if not torn:
        return []
    return [
        f"{listed(torn)}: some of these matrices are FP8 and some wide, which TensorRT-LLM and vLLM cannot read, for "
        "they multiply them as one; exclude all of them or none, or build from it with peagle-compile only"
    ]


def _as_one(module: str) -> str:
    """What others multiply a matrix within: the experts of a layer, q with k and v, gate with up."""
    layer, experts, _ = module.partition(f"{_EXPERTS}.")
    if experts:
        return f"{layer}{_EXPERTS}"
    parent, _, name = module.rpartition(".")
    return next((f"{parent}.{'/'.join(names)}" for names in _ONE_ELSEWHERE if name in names), module)


def _matrices(name: str, stored: Sequence[tuple[str, ...]], *, experts: bool) -> list[QuantizedMatrix]:
    """The stored matrices of one graph weight: itself, or two or one for each expert."""
    return [
        QuantizedMatrix(key, name, index if experts and len(stored) > 1 else None, together)
        for index, together in enumerate(stored)
        for key in together
    ]


def _check(matrices: Iterable[QuantizedMatrix], checkpoint: Checkpoint, turned: Container[str]) -> None:
    """Raise ``BuildError`` naming what is neither a matrix with a name of its own nor experts of ``[E, in, out]``."""
    others = [
        matrix.module
        for matrix in matrices
        if len(checkpoint.shapes[matrix.key]) != 2 + matrix.stacked or (matrix.stacked and matrix.key not in turned)
    ]
    if others:
        raise BuildError(
            f"{len(others)} tensors of {checkpoint.folder} cannot be written in ModelOpt's FP8: {listed(others)}",
            why="how it stores such tensors is not known",
            fix="leave them wide with --exclude '*.experts.*', which still quantises attention",
        )


def _cache_scales(target: Target) -> dict[str, CacheScale]:
    """Scales beside the projections, where others look for them; a layer without a value projection has both too."""
    scales: dict[str, CacheScale] = {}
    for layer in range(target.spec.num_layers):
        beside = target.sources.key(weight_name(f"{layer_prefix(layer)}self_attn.k_proj"))
        attention = beside.removesuffix(f"k_proj{_WEIGHT}")
        for kind, name in _CACHES.items():
            scales[f"{attention}{name}"] = CacheScale(cache_name(kind, layer), beside)
    return scales
