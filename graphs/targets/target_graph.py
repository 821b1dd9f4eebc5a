"""The target's graph: a window of tokens in; accepted tokens and, if tapped, the drafter's features out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .semantic_patches import Window, semantic_ops


class TargetGraph(nn.Module):
    """Wraps a ``transformers`` causal LM in the graph contract (docs/architecture.md, 'The graph contract')."""

    def __init__(self, model: Any, taps: Sequence[int], patches: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.model = model
        self.taps, self.patches = tuple(taps), dict(patches)

    @contextmanager
    def _tapped(self) -> Iterator[list[Tensor]]:
        """Collect the residual stream entering each tap layer, in ascending order."""
        streams: list[Tensor] = []

        def hook(_: Any, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
            streams.append(args[0] if args else kwargs["hidden_states"])

        handles = [self.model.model.layers[i].register_forward_pre_hook(hook, with_kwargs=True) for i in self.taps]
        try:
            yield streams
        finally:
            for handle in handles:
                handle.remove()

    def forward(
        self,
        input_ids: Tensor,
        start: Tensor,
        window_len: Tensor,
        draft_len: Tensor,
        forced_next: Tensor,
        uniform: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        tolerance: Tensor,
        k_cache: list[Tensor],
        v_cache: list[Tensor],
    ) -> tuple[Tensor | list[Tensor], ...]:
        """Return ``tokens`` i32 [B,E], ``num_tokens`` i32 [B], ``aux_hidden`` [B,S,A*H], ``logits`` [B,E,V], caches.

        Without taps, there is no ``aux_hidden``.
        """
        width = input_ids.shape[1]
        positions = start[:, None] + torch.arange(width, device=start.device)
        first = (window_len - 1 - draft_len).to(torch.int64)
        columns = first[:, None] + torch.arange(uniform.shape[1], device=start.device)
        window = Window(start, positions, columns.clamp(0, width - 1), list(k_cache), list(v_cache))
        with semantic_ops(self.model, window, self.patches), self._tapped() as streams:
            logits = self.model(
                input_ids=input_ids, position_ids=positions, past_key_values=window, use_cache=True
            ).logits
        policy = (uniform, temperature, top_k, top_p, min_p, tolerance)
        tokens, num_tokens = torch.ops.peagle.accept_prefix(
            logits, input_ids, window_len, draft_len, forced_next, *policy
        )
        features = (torch.cat(streams, -1),) if streams else ()
        return (tokens, num_tokens, *features, logits, window.k_caches, window.v_caches)
