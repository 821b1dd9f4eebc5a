"""The largest tensors of a pass on a GPU, which lie beside weights and caches: scores, copies of caches, logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..precision.recipes import Recipe
from ..request.build_plan import CHUNK
from .weight_bytes import bytes_of

if TYPE_CHECKING:
    from ...graphs.targets import TargetSpec
    from ...graphs.targets.weight_roles import RoledWeight

TENSORS = "scores or copied keys and values of a layer, and logits"
_SOFTMAX = 4  # bytes of a score in FP32, beside the one in the type of the model
_SINKS = ".sinks"  # the end of the name of a weight, which says that a layer's attention has them


@dataclass(frozen=True)
class PassTensors:
    """Bytes of the largest tensors of one layer, whose memory the next layer uses again, and of the logits.

    Scores and copies grow with the length of the caches: ``scores`` and ``copies`` are bytes per position.
    """

    scores: int
    copies: int
    logits: int

    def bytes(self, cache_length: int) -> int:
        """Return the bytes of a pass that reads whole caches of this length; a layer has scores or copies."""
        return self.layer_bytes(cache_length) + self.logits

    def layer_bytes(self, cache_length: int) -> int:
        """Return the bytes of the largest layer."""
        return max(self.scores, self.copies) * cache_length


def pass_tensors(
    spec: TargetSpec,
    text: Mapping[str, Any],
    census: Collection[RoledWeight],
    recipe: Recipe,
    *,
    rows: int,
    num_speculative_tokens: int,
) -> PassTensors:
    """Return the tensors of a target configured by ``text``, in rounds of ``rows`` rows and in prompt chunks.

    Attention that TensorRT does not fuse has its scores in memory, twice: in the type of the model and in FP32. Fused
    attention reads a copy of the layer's keys and values, with more dimensions if it has sinks.
    """
    from ...graphs.lowering.tensorrt.attention import fused_size

    width, verified = int(bytes_of(recipe.wide)), rows * (num_speculative_tokens + 1)
    has_softcap = bool(text.get("attn_logit_softcapping"))
    has_sinks = any(weight.name.endswith(_SINKS) for weight in census)
    sizes = [fused_size(cache.head_dim, has_sinks=has_sinks, has_softcap=has_softcap) for cache in spec.caches]
    columns = max(CHUNK, verified)
    heads = int(text["num_attention_heads"])
    copied = (cache.heads * (size or cache.head_dim) for cache, size in zip(spec.caches, sizes, strict=True))
    return PassTensors(
        scores=0 if all(sizes) else heads * columns * (width + _SOFTMAX),
        copies=2 * rows * width * max(copied),
        logits=verified * spec.vocab_size * width,
    )
