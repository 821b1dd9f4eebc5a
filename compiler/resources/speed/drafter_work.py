"""The work of a drafter's passes: of a known head, or of an assumed one if its checkpoint is not local."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....engines.draft_methods import DraftMethod
from ....engines.draft_methods.record import Passes
from ....graphs.drafters.drafter_spec import DrafterSpec
from ....graphs.drafters.tensor_layout import EMBEDDING, LM_HEAD, Parts
from ...precision.recipes import Recipe
from ..weight_bytes import bytes_of, head_weights
from .pass_work import GraphWork, PassWork
from .target_work import attention_work

if TYPE_CHECKING:
    from ....graphs.lowering import Lowering
    from ....graphs.targets import TargetSpec

# Layers of the published heads: P-EAGLE's (arXiv 2602.01469) and EAGLE-3's (arXiv 2503.01840).
_PARALLEL_LAYERS, _AUTOREGRESSIVE_LAYERS = 4, 1
# Kernels of a pass, counted in plans of TensorRT-RTX 1.7 for the bundled head.
_LAYER_KERNELS, _OTHER_KERNELS = 11, 12
_FIRST_COPIES, _FURTHER_COPIES = 2, 4  # on the device (``PlanChain``), after the first pass and around further ones


def drafter_work(head: DrafterSpec, recipe: Recipe, lowering: Lowering) -> GraphWork:
    """Return the work of a pass of ``head``, whose embedding is only looked up."""
    count, size = head_weights(head, recipe, lowering, (EMBEDDING,))
    in_head = math.prod(head.expected_shapes()[LM_HEAD])
    width = bytes_of(recipe.wide)
    return GraphWork(
        weights={"drafter": size},
        products={recipe.drafter: count - in_head},
        head_products={recipe.wide: in_head},
        wide=recipe.wide,
        attention=attention_work(head.caches, head.windows, recipe.cache_type("drafter"), head.num_heads),
        logit_bytes=int(head.draft_vocab_size * width),
        row_bytes=int(head.hidden_size * width),
        kernels=_LAYER_KERNELS * head.num_layers + _OTHER_KERNELS if lowering.is_tensorrt else 0,
        copies_cache=lowering.is_tensorrt,
    )


def assumed_head(
    spec: TargetSpec, text: Mapping[str, Any], parameters: int | None, *, parallel: bool = True
) -> tuple[DrafterSpec, str]:
    """Return a head as the published ones are built, for a target without one at hand, and a note that says so.

    Its layers have the widths of the target's. ``parameters``, if the head's card states them, determine its MLP.
    """
    layers = _PARALLEL_LAYERS if parallel else _AUTOREGRESSIVE_LAYERS
    head = DrafterSpec(
        hidden_size=spec.hidden_size,
        target_hidden_size=spec.hidden_size,
        intermediate_size=int(text["intermediate_size"]),
        num_heads=int(text["num_attention_heads"]),
        cache=spec.caches[0],
        vocab_size=spec.vocab_size,
        draft_vocab_size=spec.vocab_size,
        mask_token_id=0 if parallel else -1,
        rms_norm_eps=0.0,
        norm_before_residual=False,
        norm_output=False,
        taps=(0, 1, 2),
        windows=(0,) * layers,
        trained_depth=None,
        rope={},
        parts=Parts(layers, (), False, False, 0, parallel, False),
        strategy="parallel" if parallel else "autoregressive",
        shared=(),
        keys={},
    )
    words = f"assumed drafter: {layers} layer{'s' * (layers > 1)} as wide as the target's, with the whole vocabulary"
    if parameters is None:
        return head, words
    missing = parameters - sum(math.prod(shape) for shape in head.expected_shapes().values())
    inner = max(head.intermediate_size + round(missing / (3 * layers * spec.hidden_size)), 1)
    return replace(head, intermediate_size=inner), f"{words}, {parameters / 1e9:.1f} B parameters (its card)"


def drafter_passes(
    drafter: GraphWork | None, method: DraftMethod, k: int, context: int, rows: int = 1
) -> tuple[PassWork, ...]:
    """Return the passes of a drafter in a round with ``k`` drafts."""
    if drafter is None or not k:
        return ()
    if method.passes is Passes.ONE:  # K + 1 committed columns or placeholders, and K - 1 more placeholders
        return (drafter.over(2 * k, context, emitted=k, rows=rows),)
    first, further = drafter.over(k + 1, context, emitted=1, rows=rows), drafter.over(1, context, rows=rows)
    if drafter.kernels:
        first, further = (
            replace(each, kernels=each.kernels + copies)
            for each, copies in ((first, _FIRST_COPIES), (further, _FURTHER_COPIES))
        )
    return (first, *[further] * (k - 1))
