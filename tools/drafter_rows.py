"""Which rows one training pass of the drafter computes (conditional drop), and what each row sees."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_rows(
    length: int, depths: int, keep: float, least: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Anchors and depths, int64 [R] each, of the rows kept from a window with `length` real rows.

    Depth 0 keeps every anchor.  Each deeper level keeps a random subset of the level before, so that every row's chain
    of shallower placeholders is present.  R depends on the arguments only, which lets the step be compiled once.
    """
    kept = torch.arange(length)
    anchors, levels = [kept], [torch.zeros(length, dtype=torch.int64)]
    for depth in range(1, depths):
        inside = kept[kept + depth < length]
        wanted = int((length - depths) * max(keep**depth, least))
        kept = inside[torch.randperm(len(inside), generator=generator)[:wanted].sort().values]
        anchors.append(kept)
        levels.append(torch.full((len(kept),), depth))
    return torch.cat(anchors), torch.cat(levels)


class RowAttention:
    """Attention in training: real rows up to the anchor, and the placeholders of the own chain up to the own depth.

    This is what a placeholder sees in use, where everything before it is committed and only one chain exists. Keys are
    taken as two groups, the real rows and the few of the own chain, because a square of all rows would be several times
    the work.
    """

    def __init__(self, anchor: Tensor, depth: Tensor, length: int, depths: int):
        """anchor, depth int64 [R] as `sample_rows` gives them, from a window with `length` real rows."""
        self.length = length
        # place[d - 1, a]: the row of the placeholder of depth d of anchor a (0 where it was dropped: never looked at).
        place = torch.zeros(depths - 1, length, dtype=torch.int64)
        place[depth[length:] - 1, anchor[length:]] = torch.arange(length, len(anchor))
        self.chain = place[:, anchor].T  # [R, depths - 1]
        real = torch.arange(length)[None, :] <= anchor[:, None]
        own = torch.arange(1, depths)[None, :] <= depth[:, None]
        self.mask = torch.cat([real, own], 1)  # [R, length + depths - 1]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, rows, dim = q.shape
        groups = k.shape[1]
        q = q.view(batch, groups, heads // groups, rows, dim) * dim**-0.5
        to_real = q.flatten(2, 3) @ k[:, :, : self.length].transpose(-1, -2)
        to_own = (q[..., None, :] * k[:, :, None, self.chain]).sum(-1)  # [B, groups, heads / groups, R, depths - 1]
        scores = torch.cat([to_real.view(*q.shape[:-1], self.length), to_own], -1).float()
        weights = scores.masked_fill(~self.mask, float("-inf")).softmax(-1).to(v.dtype)
        from_real = weights[..., : self.length].flatten(2, 3) @ v[:, :, : self.length]
        from_own = (weights[..., self.length :, None] * v[:, :, None, self.chain]).sum(-2)
        return (from_real.view_as(q) + from_own).view(batch, heads, rows, dim)
