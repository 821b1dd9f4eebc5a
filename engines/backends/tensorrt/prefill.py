"""Prompts: one row at a time, in chunks, on that row's slice of every cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...requests.params import POLICY
from .contract import ITEMSIZE, NEXT, WINDOW, Sizes
from .decode import emitted_columns
from .drafting import PlainAdvance, choose_numbers
from .memory import Memory, tensor_block
from .pinned import Staging
from .plans import PREFILL, Plan

_INPUTS = (*WINDOW, "forced_next", *POLICY)
_RESULTS = ("uniform", "tokens", "num_tokens", *NEXT)


class Prefill:
    """Both passes at the prefill profile, bound anew for every chunk; ``largest`` is what the profile covers."""

    def __init__(self, memory: Memory, target: Plan, drafter: Plan, largest: Sizes, scratch: tuple[int, int]) -> None:
        device, contract = memory.device, memory.contract
        self._memory, self._device, self.largest = memory, device, largest
        self._plans = {"target": target, "drafter": drafter}
        self._passes = {name: plan.context(PREFILL, *scratch) for name, plan in self._plans.items()}
        self._inputs = tensor_block(device, contract, _INPUTS, largest)
        self._results = tensor_block(device, contract, _RESULTS, largest)
        self._staging = Staging(device, self._inputs.size)
        self._plain = PlainAdvance(device, Sizes(1, largest.columns, emitted_columns(0)))
        self.tensors = {**memory.scratch.addresses, **self._inputs.addresses, **self._results.addresses}

    def run(
        self,
        slot: int,
        ids: Sequence[int],
        start: int,
        k: int,
        *,
        policy: Mapping[str, np.ndarray],
        draft_len: int = 0,
        forced_next: int = -1,
    ) -> None:
        """Enqueue one window of one slot: the target, then the drafter if ``k``, else the plain next window.

        Results are in ``tensors`` until the next call.
        """
        sizes = Sizes(1, len(ids), emitted_columns(k))
        self._upload(
            ids, {"start": start, "window_len": len(ids), "draft_len": draft_len, "forced_next": forced_next}, policy
        )
        table = self._memory.numbers_of(slot)
        choose_numbers(self._device, table, self._memory.numbers_length, self.tensors, sizes)
        self._enqueue("target", slot, sizes)
        if k:
            self._enqueue("drafter", slot, sizes)
        else:
            self._plain.enqueue(self.tensors, sizes)

    def _enqueue(self, half: str, slot: int, sizes: Sizes) -> None:
        cache_shapes, cache_addresses = self._memory.caches[half].row(slot)
        shapes = self._memory.contract.shapes(self._plans[half].part.inputs, sizes)
        run = self._passes[half]
        run.bind({**shapes, **cache_shapes}, {**self.tensors, **cache_addresses})
        run.enqueue()

    def _upload(self, ids: Sequence[int], numbers: Mapping[str, int], policy: Mapping[str, np.ndarray]) -> None:
        with self._staging.block() as image:
            for name, value in {"input_ids": np.asarray(ids, np.int64), **policy}.items():
                raw = value.view(np.uint8)
                at = self._inputs.offsets[name]
                image[at : at + raw.size] = raw
            for name, number in numbers.items():
                at = self._inputs.offsets[name]
                wide = name in ("start", "forced_next")
                size = ITEMSIZE["i64" if wide else "i32"]
                image[at : at + size].view(np.int64 if wide else np.int32)[:] = number
            self._device.upload(self._inputs.base, image)
