"""Select the rows that one training pass of the drafter computes (conditional drop), and what each row attends to."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_rows(
    length: int, depths: int, keep: float, least: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return anchors and depths, int64 [R] each, of the rows kept from a window with `length` real rows.

    Depth 0 keeps every anchor. Each deeper level keeps a random subset of the level before, so that every row's chain
    of shallower placeholders is present. R depends only on the arguments, so that the step can be compiled once.
    """
    device = generator.device
    kept = torch.arange(length, device=device)
    anchors, levels = [kept], [torch.zeros_like(kept)]
    for depth in range(1, depths):
        inside = kept[kept + depth < length]
        wanted = int((length - depths) * max(keep**depth, least))
        kept = inside[torch.randperm(len(inside), generator=generator, device=device)[:wanted].sort().values]
        anchors.append(kept)
        levels.append(torch.full_like(kept, depth))
    return torch.cat(anchors), torch.cat(levels)


class RowAttention:
    """Attention in training: real rows up to the anchor, and the placeholders of the row's own chain up to its depth.

    This matches inference, where everything before a placeholder is committed and only one chain exists. Keys form two
    groups, the real rows and the few of the row's own chain, because attention over all rows would cost several times
    as much.
    """

    def __init__(self, anchor: Tensor, depth: Tensor, length: int, depths: int):
        """Take anchor and depth, int64 [R], from `sample_rows` for a window with `length` real rows."""
        self.length = length
        # place[d - 1, a]: the row of the placeholder of depth d of anchor a (0 if it was dropped: never read).
        rows = torch.arange(len(anchor), device=anchor.device)
        place = rows.new_zeros(depths - 1, length)
        place[depth[length:] - 1, anchor[length:]] = rows[length:]
        self.chain = place[:, anchor].T  # [R, depths - 1]
        real = rows[None, :length] <= anchor[:, None]
        own = torch.arange(1, depths, device=anchor.device)[None, :] <= depth[:, None]
        self.mask = torch.cat([real, own], 1)  # [R, length + depths - 1]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        real, own = slice(self.length), self.chain
        return attend_real_and_own(q, k[:, :, real], v[:, :, real], k[:, :, own], v[:, :, own], self.mask)


class ChainAttention:
    """The same for a head that drafts one token per pass, with the rows of earlier passes kept.

    Pass 0 holds the real rows; each later pass holds rows for some of the anchors of the previous pass.
    """

    def __init__(self) -> None:
        self.anchors: list[Tensor] = []
        self.layers: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.places: list[Tensor] = []
        self.mask = torch.empty(0)

    def begin(self, anchor: Tensor) -> None:
        """Start a pass of rows with these anchors, int64 [R] in ascending order."""
        self.anchors.append(anchor)
        self.places = [torch.searchsorted(earlier, anchor) for earlier in self.anchors[1:]]
        real = torch.arange(len(self.anchors[0]), device=anchor.device)[None, :] <= anchor[:, None]
        self.mask = torch.cat([real, real.new_ones(len(anchor), len(self.places))], 1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        passes = self.layers.setdefault(layer, [])
        passes.append((k, v))
        k_real, v_real = passes[0]
        if not self.places:
            empty = k_real[:, :, :, None][:, :, :, :0]
            return attend_real_and_own(q, k_real, v_real, empty, empty, self.mask)
        k_own, v_own = (
            torch.stack([kv[part][:, :, place] for kv, place in zip(passes[1:], self.places, strict=True)], 3)
            for part in (0, 1)
        )
        return attend_real_and_own(q, k_real, v_real, k_own, v_own, self.mask)


def attend_real_and_own(
    q: Tensor, k_real: Tensor, v_real: Tensor, k_own: Tensor, v_own: Tensor, mask: Tensor
) -> Tensor:
    """Attend to two groups of keys: real rows, shared by all rows, and each row's own chain.

    q [B, heads, R, D]; k_real, v_real [B, groups, L, D]; k_own, v_own [B, groups, R, C, D]; mask bool [R, L + C], true
    where a row attends -> [B, heads, R, D].
    """
    batch, heads, rows, dim = q.shape
    groups, length = k_real.shape[1:3]
    q = q.view(batch, groups, heads // groups, rows, dim) * dim**-0.5
    to_real = q.flatten(2, 3) @ k_real.transpose(-1, -2)
    to_own = (q[..., None, :] * k_own[:, :, None]).sum(-1)  # [B, groups, heads / groups, R, C]
    scores = torch.cat([to_real.view(*q.shape[:-1], length), to_own], -1).float()
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1).to(v_real.dtype)
    from_real = weights[..., :length].flatten(2, 3) @ v_real
    from_own = (weights[..., length:, None] * v_own[:, :, None]).sum(-2)
    return (from_real.view_as(q) + from_own).view(batch, heads, rows, dim)
