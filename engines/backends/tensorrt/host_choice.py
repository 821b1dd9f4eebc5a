"""Rows whose tokens the host chooses: their logits are read between two passes, and their tokens written back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...running.token_choice import TokenChoice
from .memory import Memory, WindowSizes, itemsize
from .pinned import Staging, WideReader

_ID, _TOKEN, _NUMBER = itemsize("int64"), itemsize("int32"), itemsize("float32")


class HostChoice:
    """Replaces a row's emission by the choice of the host, which waits for the target's pass.

    Only the logits of rows with a host choice are copied, one row at a time. ``max_drafts`` is the maximum number of
    emission columns.
    """

    def __init__(self, memory: Memory, max_drafts: int, reader: WideReader) -> None:
        device = memory.device
        self._device, self._memory, self._reader = device, memory, reader
        self._ids, self._uniform = device.pinned((max_drafts,), np.int64), device.pinned((max_drafts,), np.float32)
        self._tokens, self._count = device.pinned((max_drafts,), np.int32), device.pinned((1,), np.int32)
        self._staging = Staging(device, (max_drafts + 1) * _TOKEN)

    def drafts(self, ids: int, count: int) -> list[int]:
        """Wait for ``count`` drafts at the address ``ids`` and return them."""
        if not count:
            return []
        self._device.download(self._ids[:count], ids)
        self._device.record().wait()
        found: list[int] = self._ids[:count].tolist()
        return found

    def replace(
        self, row: int, choice: TokenChoice, tensors: Mapping[str, int], sizes: WindowSizes, count: int
    ) -> None:
        """Replace the emission of the pass over windows of these sizes in ``row``, which ends with ``count`` drafts.

        The window begins with its newest token if it has drafts.
        """
        columns, emitted, vocab = count + 1, sizes.emitted, self._memory.sizer.vocab_size
        tokens, counts = tensors["tokens"] + row * emitted * _TOKEN, tensors["num_tokens"] + row * _TOKEN
        self._device.download(self._uniform[:columns], tensors["uniform"] + row * emitted * _NUMBER)
        self._device.download(self._tokens[:columns], tokens)
        self._device.download(self._count, counts)
        drafts = self.drafts(tensors["input_ids"] + (row * sizes.columns + 1) * _ID, count)
        width = vocab * itemsize(self._memory.sizer.wide)
        logits = self._reader.read(tensors["logits"] + row * emitted * width, columns, vocab)
        own = self._tokens[: self._count[0]].tolist()
        chosen = choice.emit(logits, drafts, self._uniform[:columns], own)
        with self._staging.block() as block:
            image = block.view(np.int32)
            image[0], image[1 : columns + 1] = len(chosen), -1
            image[1 : len(chosen) + 1] = chosen
            self._device.upload(counts, image[:1])
            self._device.upload(tokens, image[1 : columns + 1])
