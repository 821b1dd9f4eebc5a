"""The EAGLE-3 drafter (arXiv 2503.01840), ready to trace: one graph for every pass of a round.

The first pass covers the committed tokens, with the target's features. Each further pass has one column: the last
drafted token, with the drafter's own hidden state at that token's row as its feature. A column takes its feature from
``aux_hidden`` if this input has a column for it, else from ``draft_hidden``: in a further pass, ``aux_hidden`` has no
columns and ``fc`` is skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..targets.semantic_patches import Window, take_columns
from .drafter_layers import DrafterModules

_NO_MASK_TOKEN = 0  # in unused rows


class AutoregressiveDrafter(DrafterModules):
    """The drafter's graph: from the target's window and outputs to one draft and the next window.

    That window holds the newest token and the draft; with ``next_draft_hidden`` it is the input of a further pass.
    """

    def forward(
        self,
        input_ids: Tensor,
        start: Tensor,
        window_len: Tensor,
        draft_len: Tensor,
        tokens: Tensor,
        num_tokens: Tensor,
        aux_hidden: Tensor,
        draft_hidden: Tensor,
        k_cache: list[Tensor],
        v_cache: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Return ``draft_ids`` i32 [B,1], ``next_*`` (2 columns, and the hidden state [B,H]), logits and new caches.

        ``aux_hidden`` is [B,S,A*Ht] or [B,0,A*Ht]; if empty, ``draft_hidden`` [B,H] is the feature of the one column.
        """
        row_ids, _, emit, newest, next_start, next_len, next_drafts = torch.ops.peagle.placeholder_draft(
            input_ids, start, window_len, draft_len, tokens, num_tokens, _NO_MASK_TOKEN
        )
        batch, columns = input_ids.shape
        rows = torch.arange(columns, device=start.device)
        features = torch.cat([self.project(aux_hidden), draft_hidden[:, None]], 1)
        x = take_columns(features, rows.expand(batch, -1))
        window = Window(start, start[:, None] + rows, None, list(k_cache), list(v_cache))
        x = take_columns(self.run_layers(x, row_ids[:, :columns], window), emit[:, :1])
        normed = self.norm(x)
        drafts, logits = self.draft_from(normed)
        hidden = normed if self.spec.norm_output else x
        return (
            drafts.to(torch.int32),
            torch.cat([newest[:, None], drafts], 1),
            next_start,
            next_len.clamp(max=2),
            next_drafts.clamp(max=1),
            logits,
            hidden[:, 0],
            window.k_caches,
            window.v_caches,
        )
