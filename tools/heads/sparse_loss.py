"""Cross-entropy against a few likely tokens, computed with its gradients in one pass over the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 1024
ROWS_AT_ONCE_ON_GPU = 16_384


class SparseCrossEntropy(torch.autograd.Function):
    """sum_r ( mass_r * logsumexp(z_r) - sum_n share[r, n] * z_r[likely[r, n]] ) with z = hidden @ weight.T.

    mass_r is the sum of share[r]. The logits of all rows never exist at once: each part of the rows computes its loss
    and gradients before the next, which saves several passes over [R, V] numbers in memory.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, likely: Tensor, share: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Map hidden [R, H], weight [V, H], likely int64 [R, N], share [R, N] to loss [] and first choices int64 [R].

        `dtype`: the type of the products.
        """
        low = weight.to(dtype)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        loss = hidden.new_zeros(())
        first = []
        chunk_rows = ROWS_AT_ONCE if hidden.device.type == "cpu" else ROWS_AT_ONCE_ON_GPU
        for start in range(0, len(hidden), chunk_rows):
            part = slice(start, start + chunk_rows)
            rows, ids, wanted = hidden[part].to(dtype), likely[part], share[part]
            logits = (rows @ low.T).float()
            first.append(logits.argmax(-1))
            peak = logits.logsumexp(-1, keepdim=True)
            mass = wanted.sum(-1, keepdim=True)
            loss += (mass * peak).sum() - (wanted * logits.gather(-1, ids)).sum()
            slope = logits.sub_(peak).exp_().mul_(mass).scatter_add_(-1, ids, -wanted).to(dtype)
            grad_hidden[part] = (slope @ low).to(hidden.dtype)
            grad_weight += (slope.T @ rows).to(weight.dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        choices = torch.cat(first)
        ctx.mark_non_differentiable(choices)
        return loss, choices

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad * grad_hidden, grad * grad_weight, None, None, None
