"""Select the matrices that become FP8, from names and shapes, before anything is calibrated."""

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
_FUSED_ELSEWHERE = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


@dataclass(frozen=True)
class QuantizedMatrix:
    """A stored matrix, or the stacked matrices of all experts, that becomes FP8.

    The range of its input is ``inputs[range]``, of its ``expert`` if it belongs to one. ``together`` are the matrices,
    including itself, whose scale is the largest magnitude of them all.
    """

    key: str
    range: str
    expert: int | None
    together: tuple[str, ...]

    @property
    def module(self) -> str:
        """Return the module of the matrix; stacked matrices are their own module."""
        return module_of(self.key)

    @property
    def stacked(self) -> bool:
        """Return True if the parameter has another name than ``weight``."""
        return not self.key.endswith(_WEIGHT)

    @property
    def weight_scale(self) -> str:
        """Return the name of the weight scale."""
        return f"{self.key}_weight_scale" if self.stacked else f"{self.key}_scale"

    @property
    def input_scale(self) -> str:
        """Return the name of the input scale."""
        return f"{self.module}_input_scale" if self.stacked else f"{self.module}.input_scale"

    def input_amax(self, scales: Scales) -> float:
        """Return the calibrated range of the input."""
        ranges = scales.inputs[self.range]
        return float(ranges.max() if self.expert is None else ranges[self.expert])


@dataclass(frozen=True)
class CacheScale:
    """The scale of one layer's cached keys or values: its range in ``Scales.caches``, and the tensor it lies beside."""

    range: str
    projection: str


@dataclass(frozen=True)
class Worklist:
    """Selected ``matrices`` by stored name, ``caches`` by the name of their scale, and ModelOpt's excluded modules.

    ``warnings`` name runtimes that cannot read the result.
    """

    matrices: Mapping[str, QuantizedMatrix]
    caches: Mapping[str, CacheScale]
    exclude_modules: Sequence[str]
    warnings: Sequence[str]


def make_worklist(target: Target, patterns: Sequence[str] = (), *, kv_cache: bool = False) -> Worklist:
    """Select every linear and expert matrix except the LM head and those that ``patterns`` match.

    Raises ``BuildError`` for a checkpoint that is already quantized, does not match its configuration, or has matrices
    that the format cannot hold; ``UsageError`` for a pattern that matches nothing.
    """
    checkpoint, sources = target.checkpoint, target.sources
    if checkpoint.gguf:
        raise BuildError(
            f"{checkpoint.source} is a GGUF file, but ModelOpt's FP8 format requires safetensors",
            why="tensors that are not quantized are copied unchanged",
            fix="build from the file directly with any --precision, or quantize the model's safetensors checkpoint",
        )
    if checkpoint.format != "plain":
        raise BuildError(
            f"{checkpoint.folder} is already quantized ({checkpoint.format})",
            why="quantizing it again would add a second rounding error",
            fix="build from this checkpoint directly, or quantize a BF16, FP16 or FP32 checkpoint of the model",
        )
    target.check()
    candidates: list[QuantizedMatrix] = []
    transposed = set[str]()
    ranges = target.skeleton.range_shapes.inputs
    for name in (name for name in ranges if name != weight_name(LM_HEAD)):
        pieces = sources.pieces(name, target.skeleton.shapes[name])
        stored = [tuple(map(sources.key, piece.keys)) for piece in pieces]
        transposed |= {sources.key(key) for piece in pieces if piece.how == "transpose" for key in piece.keys}
        candidates += _matrices(name, stored, experts=bool(ranges[name]))
    out = excluded({matrix.module: target.family.canonical(matrix.module) for matrix in candidates}, patterns)
    matrices = {matrix.key: matrix for matrix in candidates if matrix.module not in out}
    if not matrices:
        raise UsageError("--exclude leaves nothing to quantize", fix="exclude fewer modules")
    _check(matrices.values(), checkpoint, transposed)
    wide = {module_of(sources.key(weight_name(LM_HEAD)))} | {
        key.removesuffix(_WEIGHT)
        for key, shape in checkpoint.shapes.items()
        # embedding, routers, towers of multimodal models; stacked biases belong to their weights
        if key not in matrices and len(shape) > 1 and not key.endswith("bias")
    }
    modules = [matrix.module for matrix in matrices.values()]
    caches = _cache_scales(target) if kv_cache else {}
    return Worklist(matrices, caches, listed_modules(wide, modules), _partly_quantized(modules, out))


def _partly_quantized(narrow: Iterable[str], wide: Iterable[str]) -> list[str]:
    """Return a warning if matrices that other runtimes fuse are only partly quantized: a fused matrix has one type."""
    mixed = sorted({*map(_fused_group, narrow)} & {*map(_fused_group, wide)})
    if not mixed:
        return []
    return [
        f"only some of the matrices in {listed(mixed)} are FP8: TensorRT-LLM and vLLM fuse these matrices and "
        "cannot read the checkpoint; exclude all of them or none, or use the checkpoint only with peagle-compile"
    ]


def _fused_group(module: str) -> str:
    """Return the group that other runtimes fuse a matrix into: the experts of a layer, q with k and v, gate with up."""
    layer, experts, _ = module.partition(f"{_EXPERTS}.")
    if experts:
        return f"{layer}{_EXPERTS}"
    parent, _, name = module.rpartition(".")
    return next((f"{parent}.{'/'.join(names)}" for names in _FUSED_ELSEWHERE if name in names), module)


def _matrices(name: str, stored: Sequence[tuple[str, ...]], *, experts: bool) -> list[QuantizedMatrix]:
    """Return the stored matrices of one graph weight: itself, or one or two for each expert."""
    return [
        QuantizedMatrix(key, name, index if experts and len(stored) > 1 else None, together)
        for index, together in enumerate(stored)
        for key in together
    ]


def _check(matrices: Iterable[QuantizedMatrix], checkpoint: Checkpoint, transposed: Container[str]) -> None:
    """Raise ``BuildError`` for tensors that are neither a matrix with its own name nor experts of ``[E, in, out]``."""
    others = [
        matrix.module
        for matrix in matrices
        if len(checkpoint.shapes[matrix.key]) != 2 + matrix.stacked or (matrix.stacked and matrix.key not in transposed)
    ]
    if others:
        raise BuildError(
            f"{len(others)} tensors of {checkpoint.folder} cannot be written in ModelOpt's FP8: {listed(others)}",
            why="peagle-compile does not know ModelOpt's layout for such tensors",
            fix="exclude them with --exclude '*.experts.*'; attention is still quantized",
        )


def _cache_scales(target: Target) -> dict[str, CacheScale]:
    """Return scales beside the projections, for other runtimes; a layer without a value projection has both too."""
    scales: dict[str, CacheScale] = {}
    for layer in range(target.spec.num_layers):
        projection = target.sources.key(weight_name(f"{layer_prefix(layer)}self_attn.k_proj"))
        attention = projection.removesuffix(f"k_proj{_WEIGHT}")
        for kind, name in _CACHES.items():
            scales[f"{attention}{name}"] = CacheScale(cache_name(kind, layer), projection)
    return scales
