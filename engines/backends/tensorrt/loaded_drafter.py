"""A drafter on the GPU: its plan, its caches for every slot, and what its passes are bound to.

A backend has the engine's own drafter, and can load others, which share the target. Requests refer to a
``DrafterHandle``. When the last one is gone, the engine's thread frees the memory between two passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....plugins.graph_contract import CANDIDATES, NEXT, NEXT_SKIPPED
from ...folder.records import FURTHER, PREFILL
from .chain import PlanChain
from .loaded_graphs import Pass, Plan, further_profile
from .memory import Addresses, Caches, Memory, Sizer, Span, scratch_block, tensor_block

_OUTPUTS = ("draft_logits", "draft_ids")  # large outputs, which only the next step reads


class PlanDrafter:
    """A drafter's plan, memory and passes. ``number`` tells those of a backend apart; 0 is the engine's own.

    ``following`` are the next windows that it writes in rounds which several drafters share, and ``outputs`` its large
    outputs. ``chain`` and ``prompt_chain`` are those of an autoregressive drafter, ``prompt_passes`` its passes over
    chunks of prompts.
    """

    def __init__(self, number: int, plan: Plan, sizer: Sizer, memory: Memory, scratch: Span) -> None:
        """Allocate its memory; its contexts use ``scratch``, or memory of their own if they need more."""
        device, part = memory.device, plan.part
        self.number, self.plan, self.sizer = number, plan, sizer
        self.caches = Caches(device, part, memory.slots, memory.cache_length, sizer.wide)
        outputs = (*_OUTPUTS, *CANDIDATES) if part.names_candidates else _OUTPUTS
        self.outputs: Addresses = scratch_block(device, sizer, outputs, memory.largest).addresses
        self.following: Addresses = tensor_block(device, sizer, (*NEXT, NEXT_SKIPPED), memory.largest[0]).addresses
        needed = plan.scratch_bytes()
        self.scratch: Span = scratch if needed <= scratch[1] else (device.allocate(needed), needed)
        self.chain = PlanChain(device, sizer, memory.slots) if part.is_autoregressive else None
        self.prompt_chain = PlanChain(device, sizer, 1) if part.is_autoregressive else None
        self.prompt_passes: dict[str, Pass] = {"drafter": plan.context(PREFILL, *self.scratch)}
        if part.is_autoregressive:
            self.prompt_passes[FURTHER] = plan.context(further_profile(part, 1), *self.scratch)


@dataclass(frozen=True, eq=False)
class DrafterHandle:
    """A drafter as requests refer to it; ``key`` is that of its cache entries."""

    key: str
    loaded: PlanDrafter
