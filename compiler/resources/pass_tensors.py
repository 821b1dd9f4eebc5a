"""The largest tensors of a pass on a GPU: masks, scores or copies, new keys and values, logits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...plugins.number_formats import keeps_blocks
from ..request.build_plan import CHUNK
from .weight_bytes import bytes_of
from .workload import Workload

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.targets import CacheSpec, TargetSpec

TENSORS = (
    "masks, scores or copied keys and values of a layer, its dense experts, new keys and values of all layers, logits, "
    "and probabilities of drafts"
)
_WIDEST = 4  # bytes of a number in FP32, as which scores and probabilities are computed
_SINKS = ".sinks"  # the end of the name of a weight, which says that a layer's attention has them


@dataclass(frozen=True)
class PassTensors:
    """Bytes of the largest tensors of a target's or a drafter's pass, whichever needs more, and of the logits of both.

    ``masks``, ``scores`` and ``copies`` grow with the caches: they are bytes per position. All layers share the masks.
    Scores or copies, and then the outputs of dense ``experts``, are those of one layer: the next one uses their memory
    again. Layers with an attention window do not read whole caches: ``windowed`` has their bytes per position, masks
    included, by the positions that they read at most. ``logits`` stay until the next pass. ``at_end`` lies beside them
    after the last layer. ``fresh`` are the keys and values that a pass computes: those of all layers stay until its
    end, when one step writes them to the caches (docs/decisions/steps-of-plans.md).
    """

    masks: int
    scores: int
    copies: int
    experts: int
    logits: int
    at_end: int
    fresh: int
    windowed: Mapping[int, int] = field(default_factory=dict)

    def bytes(self, cache_length: int) -> int:
        """Return the bytes of a pass that reads whole caches of this length."""
        return self.logits + self.scratch_bytes(cache_length)

    def scratch_bytes(self, cache_length: int) -> int:
        """Return the bytes without the logits, in memory that all passes use in turn."""
        windowed = (size * min(read, cache_length) for read, size in self.windowed.items())
        layer = max(max(self.scores, self.copies) * cache_length, self.experts, *windowed)
        return self.fresh + max(self.masks * cache_length + layer, self.at_end)


@dataclass(frozen=True)
class _Attention:
    """The layers of a pass: their caches and attention windows, and the heads that TensorRT fuses or does not."""

    caches: Collection[CacheSpec]
    windows: Collection[int]
    heads: int
    has_sinks: bool = False
    has_softcap: bool = False

    def position_bytes(self, rows: int, columns: int, width: int) -> tuple[int, int, int]:
        """Return the bytes per position of a mask, scores and copies, for so many columns of all ``rows`` together.

        Scores are in memory twice, in the type of the model and in FP32. With sinks, copies have more dimensions.
        """
        from ...graphs.lowering.tensorrt.attention import fused_size

        sizes = [
            (cache, fused_size(cache.head_dim, has_sinks=self.has_sinks, has_softcap=self.has_softcap))
            for cache in self.caches
        ]
        return (
            columns * width if sizes else 0,
            0 if all(size for _, size in sizes) else self.heads * columns * (width + _WIDEST),
            2 * rows * width * max((cache.heads * (size or cache.head_dim) for cache, size in sizes), default=0),
        )

    def fresh_bytes(self, columns: int, width: int) -> int:
        """Return the bytes of the keys and values of so many columns in all layers."""
        return 2 * columns * width * sum(cache.heads * cache.head_dim for cache in self.caches)

    def of_window(self, window: int) -> _Attention:
        """Return only the layers with this attention window."""
        pairs = zip(self.caches, self.windows, strict=True)
        caches = [cache for cache, other in pairs if other == window]
        return replace(self, caches=caches, windows=[window] * len(caches))

    def windowed_bytes(self, rows: int, columns: int, width: int) -> dict[int, int]:
        """Return the bytes per position of layers with an attention window, by the positions that they read at most."""
        every = {
            window: self.of_window(window).position_bytes(rows, columns, width) for window in {*self.windows} - {0}
        }
        return {window + CHUNK: mask + max(scores, copies) for window, (mask, scores, copies) in every.items()}


def pass_tensors(
    spec: TargetSpec, text: Mapping[str, Any], workload: Workload, *, rows: int, num_speculative_tokens: int
) -> PassTensors:
    """Return the tensors of a target configured by ``text`` and of its head, if that is known.

    Passes are rounds of ``rows`` rows or prompt chunks. The last logits of a target with a soft cap are in memory
    before and after it; a head for draft trees has the probabilities of its whole vocabulary in FP32.
    """
    recipe, head = workload.recipe, workload.head
    width, drafts = int(bytes_of(recipe.wide)), max(num_speculative_tokens, 1)  # a plan emits two columns at least
    columns = max(CHUNK, rows * (num_speculative_tokens + 1))
    target = _Attention(
        spec.caches,
        spec.windows,
        int(text["num_attention_heads"]),
        has_sinks=any(weight.name.endswith(_SINKS) for weight in workload.census),
        has_softcap=bool(text.get("attn_logit_softcapping")),
    )
    needs = [(target, columns)]
    logits = rows * (drafts + 1) * spec.vocab_size * width
    capped, drafted, probable = logits if text.get("final_logit_softcapping") else 0, 0, 0
    if head and num_speculative_tokens:
        needs.append(_of_head(head, rows, num_speculative_tokens))
        drafted = rows * drafts * head.draft_vocab_size
        probable = drafted * _WIDEST if head.strategy == "parallel" else 0
    full = [part.of_window(0).position_bytes(rows, max_rows, width) for part, max_rows in needs]
    masks, scores, copies = (max(each) for each in zip(*full, strict=True))
    windowed: dict[int, int] = {}
    for part, max_rows in needs:
        for read, size in part.windowed_bytes(rows, max_rows, width).items():
            windowed[read] = max(size, windowed.get(read, 0))
    fresh = max(part.fresh_bytes(max_rows, width) for part, max_rows in needs)
    experts = _dense_experts(spec, workload) * columns
    return PassTensors(masks, scores, copies, experts, logits + drafted * width, max(capped, probable), fresh, windowed)


def _of_head(head: DrafterSpec, rows: int, drafts: int) -> tuple[_Attention, int]:
    """Return a head's layers and columns; with all drafts in one pass, it has a placeholder for each but one."""
    more = drafts - 1 if head.strategy == "parallel" else 0
    columns = max(CHUNK + more, rows * (drafts + 1 + more))
    return _Attention(head.caches, head.windows, head.num_heads), columns


def _dense_experts(spec: TargetSpec, workload: Workload) -> int:
    """Return the bytes of what all experts of a layer compute for a column; 0 if only those that it uses do.

    Of each expert, what its first matmul returns and what the gating makes of it, or that and the final output.
    """
    stacks = [weight.shape for weight in workload.census if weight.role == "experts"]
    if not stacks or workload.lowering.has_expert_layer or keeps_blocks(workload.recipe.experts):
        return 0
    inner = min(math.prod(shape[1:]) for shape in stacks) // spec.hidden_size
    return int(
        max(shape[0] for shape in stacks) * max(3 * inner, inner + spec.hidden_size) * bytes_of(workload.recipe.wide)
    )
