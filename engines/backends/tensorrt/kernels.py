"""Kernels that run between the plans: random numbers of a pass, draft trees, and a next window without a drafter."""

from __future__ import annotations

from collections.abc import Mapping

from ....plugins.graph_contract import CANDIDATES, NEXT, NEXT_SKIPPED, PATH, WINDOW
from ....plugins.ops.close_up import SPEC as CLOSE_UP
from ....plugins.ops.grow_tree import SPEC as GROW_TREE
from ....plugins.ops.numbers_at import SPEC as NUMBERS_AT
from ....plugins.ops.placeholder_draft import SPEC as PLACEHOLDER_DRAFT
from .device import Device
from .memory import Addresses, Block, EntryStack, WindowSizes, itemsize

_LAYOUT = {"row_ids": "int64", "row_is_real": "bool", "emit_rows": "int64"}


def choose_numbers(device: Device, table: int, length: int, tensors: Addresses, sizes: WindowSizes) -> None:
    """Gather ``uniform``, the random numbers of the positions that this window can emit, from f32 [B, ``length``]."""
    pointers = (table, tensors["start"], tensors["window_len"], tensors["draft_len"], tensors["uniform"])
    dims = {"B": sizes.rows, "N": length}
    device.launch(NUMBERS_AT, pointers, dims, {"columns": sizes.emitted})


def close_up(device: Device, entries: EntryStack, start: int, tensors: Addresses, sizes: WindowSizes) -> None:
    """Move the entries of every row's accepted path to where those of a chain would be.

    ``start`` is the address of the positions of window column 0, i64 [B].
    """
    dims = {"N": entries.buffers, "P": entries.rows, "H": entries.heads, "T": entries.positions, "W": entries.size}
    pointers = (entries.address, start, tensors[PATH], entries.address)
    device.launch(CLOSE_UP, pointers, {**dims, "B": sizes.rows, "E": sizes.emitted}, {})


def grow_trees(
    device: Device, following: Addresses, candidates: Addresses, num_candidates: int, sizes: WindowSizes
) -> None:
    """Replace the drafts of the next windows by trees, of ``num_candidates`` candidates for each position."""
    ids = following[NEXT[0]]
    pointers = (ids, *(candidates[name] for name in CANDIDATES), ids, following[NEXT_SKIPPED])
    dims = {"B": sizes.rows, "E": sizes.emitted, "D": sizes.emitted - 1, "C": num_candidates}
    device.launch(GROW_TREE, pointers, dims, {})


class NewestToken:
    """The next window without a drafter: only the newest token, after all committed tokens.

    It uses the outputs of ``PlaceholderDraft`` for the newest token and the next start. That op does not support K = 0,
    so there is one more emission column than plain decoding has, and its lengths are ignored; the host knows the right
    ones.
    """

    def __init__(self, device: Device, largest: WindowSizes) -> None:
        self._device = device
        rows, width = largest.rows, largest.columns + largest.emitted - 2
        counts = {"row_ids": rows * width, "row_is_real": rows * width, "emit_rows": rows * (largest.emitted - 1)}
        self._layout = Block(device, {name: count * itemsize(_LAYOUT[name]) for name, count in counts.items()})

    def enqueue(self, tensors: Mapping[str, int], sizes: WindowSizes) -> None:
        """Write ``next_input_ids`` [B,1] and ``next_start`` (and next lengths, which are unused)."""
        pointers = [tensors[name] for name in (*WINDOW, "tokens", "num_tokens")]
        pointers += [self._layout[name] for name in _LAYOUT]
        pointers += [tensors[name] for name in NEXT]
        dims = {"B": sizes.rows, "S": sizes.columns, "E": sizes.emitted}
        self._device.launch(PLACEHOLDER_DRAFT, pointers, dims, {"mask_token_id": 0})
