"""The work of a target's passes, from its weights, its configuration and its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....graphs.config_values import experts_per_token
from ....plugins.graph_contract import cache_width
from ....plugins.number_formats import NUMBER_FORMATS
from ...precision.recipes import EMBEDDING, LM_HEAD, Recipe
from ..weight_bytes import SCALES, WeightLine, bytes_of
from .pass_work import AttentionWork, Experts, GraphWork

if TYPE_CHECKING:
    import onnx_ir as ir

    from ....graphs.layer_trials import Trials
    from ....graphs.lowering import Lowering
    from ....graphs.targets import CacheSpec, TargetSpec
    from ....graphs.targets.weight_roles import RoledWeight

_EXPERTS, _OTHER = "experts", "other"


@dataclass(frozen=True)
class GraphCounts:
    """Counts of a lowered graph: its kernels on a GPU, and whether it computes all experts and copies caches.

    A graph for CPUs has no kernels here: its time is measured with those of one node.
    """

    kernels: int = 0
    is_dense: bool = False
    copies_cache: bool = False

    @classmethod
    def of_trials(
        cls, trials: Trials, census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering
    ) -> GraphCounts:
        """Extrapolate from trials, whose matrices are not quantized yet."""
        from .count_kernels import count_kernels

        found = cls._of(trials.base.lowered(lowering), census, lowering)
        if not lowering.is_tensorrt:
            return found
        quantized = {weight.name for weight in census if weight.role in recipe.quantized_roles}
        return replace(found, kernels=trials.count(lambda model: count_kernels(model, quantized), lowering))

    @classmethod
    def of_graph(cls, model: ir.Model, census: Sequence[RoledWeight], lowering: Lowering) -> GraphCounts:
        """Count in a finished graph."""
        from .count_kernels import count_kernels

        found = cls._of(model, census, lowering)
        return replace(found, kernels=count_kernels(model)) if lowering.is_tensorrt else found

    @classmethod
    def _of(cls, model: ir.Model, census: Sequence[RoledWeight], lowering: Lowering) -> GraphCounts:
        from .count_kernels import copies_caches, multiplies_every

        stacks = {weight.name for weight in census if weight.role == _EXPERTS}
        is_dense = bool(stacks) and multiplies_every(model, stacks)
        return cls(is_dense=is_dense, copies_cache=lowering.is_tensorrt and copies_caches(model))


def target_work(
    census: Sequence[RoledWeight],
    lines: Sequence[WeightLine],
    recipe: Recipe,
    spec: TargetSpec,
    text: Mapping[str, Any],
    counts: GraphCounts,
) -> GraphWork:
    """Return the work of a target with weights ``lines`` (``weight_lines``) and a decoder configured by ``text``."""
    read = [line for line in lines if line.role != SCALES and not (line.role == EMBEDDING and _has_head(lines))]
    scales = sum(line.bytes for line in lines if line.role == SCALES)
    quantized = {id(line): line.bytes for line in read if line.precision != recipe.wide}
    share = scales / max(sum(quantized.values()), 1)  # scales are counted with the weights that they belong to
    sizes: Counter[str] = Counter()
    for line in read:
        sizes[_role(line)] += line.bytes + round(quantized.get(id(line), 0) * share)
    weights = dict(sizes)
    width = bytes_of(recipe.wide)
    return GraphWork(
        weights={role: size for role, size in weights.items() if role != _EXPERTS},
        products=_products(read, lambda role: role not in (LM_HEAD, _OTHER, _EXPERTS)),
        head_products=_products(read, lambda role: role == LM_HEAD),
        wide=recipe.wide,
        attention=attention_work(spec.caches, spec.windows, recipe.kv_cache, int(text["num_attention_heads"])),
        logit_bytes=int(spec.vocab_size * width),
        row_bytes=int(spec.hidden_size * width),
        kernels=counts.kernels,
        copies_cache=counts.copies_cache,
        experts=_experts(census, read, weights.get(_EXPERTS, 0), text, counts.is_dense),
    )


def attention_work(
    caches: Sequence[CacheSpec], windows: Sequence[int], precision: str, heads: int
) -> tuple[AttentionWork, ...]:
    """Return the attention of layers with these caches, attention windows and query heads, by window."""
    alike: dict[int, list[CacheSpec]] = {}
    for cache, window in zip(caches, windows, strict=True):
        alike.setdefault(window, []).append(cache)
    return tuple(
        AttentionWork(position_bytes(group, precision), 4 * heads * sum(cache.head_dim for cache in group), window)
        for window, group in sorted(alike.items())
    )


def position_bytes(caches: Sequence[CacheSpec], precision: str) -> int:
    """Return the bytes of the keys and values of one position in all ``caches``."""
    kind = NUMBER_FORMATS[precision].number_type
    return sum(2 * cache.heads * kind.bytes(cache_width(cache.head_dim, kind.name)) for cache in caches)


def _has_head(lines: Sequence[WeightLine]) -> bool:
    """Return True if the LM head has weights of its own; otherwise the embedding is multiplied with too."""
    return any(line.role == LM_HEAD for line in lines)


def _role(line: WeightLine) -> str:
    return LM_HEAD if line.role == EMBEDDING else line.role


def _products(lines: Sequence[WeightLine], takes: Callable[[str], bool]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for line in lines:
        if takes(_role(line)):
            counts[line.precision] += line.count
    return dict(counts)


def _experts(
    census: Sequence[RoledWeight], lines: Sequence[WeightLine], size: int, text: Mapping[str, Any], dense: bool
) -> Experts | None:
    count = next((weight.shape[0] for weight in census if weight.role == _EXPERTS), 0)
    own = [line for line in lines if line.role == _EXPERTS]
    if not count or not own:
        return None
    chosen = int(experts_per_token(text) or count)
    kind = max(own, key=lambda line: line.bytes).precision
    return Experts(count, chosen, size, sum(line.count for line in own), kind, dense)
