"""The steps of a round that are kernels of ours by themselves, outside of both plans."""

from __future__ import annotations

from collections.abc import Mapping

from ....plugins.numbers_at import SPEC as NUMBERS_AT
from ....plugins.placeholder_draft import SPEC as PLACEHOLDER_DRAFT
from .contract import ITEMSIZE, Sizes
from .device import Device
from .memory import Addresses, Block

_LAYOUT = {"row_ids": "i64", "row_is_real": "bool", "emit_rows": "i64"}


def choose_numbers(device: Device, table: int, length: int, tensors: Addresses, sizes: Sizes) -> None:
    """Gather ``uniform``: the numbers of the positions that this window can emit, out of f32 [B, ``length``]."""
    pointers = (table, tensors["start"], tensors["window_len"], tensors["draft_len"], tensors["uniform"])
    dims = {"B": sizes.rows, "N": length}
    device.launch(NUMBERS_AT, pointers, dims, {"columns": sizes.emitted})


class PlainAdvance:
    """The next window without a drafter: the newest token, one column further.

    It is what ``PlaceholderDraft`` says of the newest token and the next start. That op knows no K = 0, so there is one
    emission column more than plain decoding has, and its lengths are not ours, which never change.
    """

    def __init__(self, device: Device, largest: Sizes) -> None:
        self._device = device
        rows, width = largest.rows, largest.columns + largest.emitted - 2
        counts = {"row_ids": rows * width, "row_is_real": rows * width, "emit_rows": rows * (largest.emitted - 1)}
        self._layout = Block(device, {name: count * ITEMSIZE[_LAYOUT[name]] for name, count in counts.items()})

    def enqueue(self, tensors: Mapping[str, int], sizes: Sizes) -> None:
        """Write ``next_input_ids`` [B,1] and ``next_start`` (and next lengths, which nobody reads)."""
        inputs = ("input_ids", "start", "window_len", "draft_len", "tokens", "num_tokens")
        outputs = ("next_input_ids", "next_start", "next_window_len", "next_draft_len")
        pointers = [tensors[name] for name in inputs]
        pointers += [self._layout[name] for name in _LAYOUT]
        pointers += [tensors[name] for name in outputs]
        dims = {"B": sizes.rows, "S": sizes.columns, "E": sizes.emitted}
        self._device.launch(PLACEHOLDER_DRAFT, pointers, dims, {"mask_token_id": 0})
