"""Compute a head's rows for a batch of lessons, with both methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from drafter_rows import ChainAttention, RowAttention, sample_rows
from torch import Tensor

from .head import Head


@dataclass(frozen=True)
class Rows:
    """Normed hidden states [B, R, H] of rows; row r belongs to anchor[r] and drafts depth[r] tokens further.

    The row is at position anchor + depth and learns the target's distribution after the following token.
    """

    hidden: Tensor
    anchor: Tensor
    depth: Tensor


def kept_anchors(length: int, depths: int, keep: float, least: float, generator: torch.Generator) -> list[Tensor]:
    """Return the anchors of each depth, int64, ascending; see `sample_rows`."""
    anchor, depth = sample_rows(length, depths, keep, least, generator)
    return [anchor[depth == level] for level in range(depths)]


def all_anchors(length: int, depths: int, device: torch.device) -> list[Tensor]:
    """Return every anchor whose row lies within the `length` real rows, for each depth."""
    return [torch.arange(max(0, length - depth), device=device) for depth in range(depths)]


def compute_rows(head: Head, ids: Tensor, aux: Tensor, anchors: list[Tensor]) -> Rows:
    """Map ids int64 [B, T], aux [B, T, .] to the rows of `anchors`, the first of which are all of 0 .. T - 2."""
    passes = (
        parallel_pass(head, ids, aux, anchors) if head.method == "peagle" else chained_passes(head, ids, aux, anchors)
    )
    depth = torch.cat([torch.full_like(kept, level) for level, kept in enumerate(anchors)])
    return Rows(torch.cat(list(passes), 1), torch.cat(anchors), depth)


def parallel_pass(head: Head, ids: Tensor, aux: Tensor, anchors: list[Tensor]) -> Iterator[Tensor]:
    """Compute all rows in one pass; deeper ones hold placeholders."""
    drafter, depths = head.drafter, len(anchors)
    length = len(anchors[0])
    anchor = torch.cat(anchors)
    depth = torch.cat([torch.full_like(kept, level) for level, kept in enumerate(anchors)])
    at = anchor + depth
    row_ids = torch.where(depth == 0, ids[:, 1:][:, at], drafter.config.ptd_token_id)
    blank = drafter.fc(drafter.mask_hidden).expand(len(ids), len(at) - length, -1)
    x = torch.cat([head.features(aux[:, :length]), blank], 1)
    yield drafter.norm(drafter.blocks(row_ids, x, at, RowAttention(anchor, depth, length, depths)))


def chained_passes(head: Head, ids: Tensor, aux: Tensor, anchors: list[Tensor]) -> Iterator[Tensor]:
    """Compute one pass per depth, from the text's own next token and the previous pass's output at the anchor.

    At inference the token is the drafted one; up to the first rejected draft, beyond which nothing counts, they are
    equal.
    """
    drafter = head.drafter
    x = head.features(aux[:, : len(anchors[0])])
    attend = ChainAttention()
    for depth, anchor in enumerate(anchors):
        if depth:
            x = x[:, torch.searchsorted(anchors[depth - 1], anchor)]
        attend.begin(anchor)
        x = drafter.blocks(ids[:, 1:][:, anchor + depth], x, anchor + depth, attend)
        yield drafter.norm(x)
