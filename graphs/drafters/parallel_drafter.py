"""The P-EAGLE drafter, ready to trace: one pass over the rows built by ``PlaceholderDraft`` (paper section 3.1).

Real rows combine the embedding of the NEXT token with the target's features at their own position; placeholder rows use
the mask token and ``mask_hidden``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..targets.semantic_patches import RotaryTable, Window, take_columns
from . import DrafterSpec
from .drafter_layers import DrafterModules


class ParallelDrafter(DrafterModules):
    """The drafter's graph: from the target's window and outputs to K drafts and the next window."""

    def __init__(self, spec: DrafterSpec, rotary: RotaryTable) -> None:
        super().__init__(spec, rotary)
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, len(spec.taps) * spec.target_hidden_size))

    def forward(
        self,
        input_ids: Tensor,
        start: Tensor,
        window_len: Tensor,
        draft_len: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        aux_hidden: Tensor,
        k_cache: list[Tensor],
        v_cache: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Return ``draft_ids`` i32 [B,K], ``next_*`` (the next window), ``draft_logits`` [B,K,Vd], new caches."""
        row_ids, is_real, emit, newest, next_start, next_len, next_drafts = torch.ops.peagle.placeholder_draft(
            input_ids, start, window_len, draft_len, tokens, num_tokens, self.spec.mask_token_id
        )
        batch, width = input_ids.shape
        rows = torch.arange(row_ids.shape[1], device=start.device)
        features = torch.cat([self.project(aux_hidden), self.project(self.mask_hidden).expand(batch, -1, -1)], 1)
        x = take_columns(features, torch.where(is_real, rows, width))
        window = Window(start, start[:, None] + rows, None, list(k_cache), list(v_cache))
        x = self.run_layers(x, row_ids, window)
        drafts, logits = self.draft_from(self.norm(take_columns(x, emit)))
        next_ids = torch.cat([newest[:, None], drafts], 1)
        return (
            drafts.to(torch.int32),
            next_ids,
            next_start,
            next_len,
            next_drafts,
            logits,
            window.k_caches,
            window.v_caches,
        )
