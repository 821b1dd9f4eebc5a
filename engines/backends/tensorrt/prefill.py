"""Lanes of a prompt on TensorRT: one row at a time, in chunks, on that row's slice of every cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ....plugins.graph_contract import NEXT, PATH, POLICY, SKIPPED, TENSORS, WINDOW
from ...folder.records import FURTHER, PREFILL
from ..base import Chunk
from ..profiling import ranged
from .chain import bindings, further_sizes
from .host_choice import HostChoice
from .kernels import NewestToken, choose_numbers
from .lanes import PlanLanes, emitted_columns
from .loaded_drafter import PlanDrafter
from .loaded_graphs import Pass, Plan, Shape
from .memory import Addresses, Caches, Memory, WindowSizes, tensor_block
from .pinned import DeferredEmission, Readback, Staging, WideReader
from .reach import Reach

_INPUTS = (*WINDOW, "forced_next", *POLICY)
_RESULTS = ("uniform", "tokens", "num_tokens", PATH, *NEXT)


class PlanPrompt:
    """Enqueues both passes over the prompt chunk that ``feed`` uploaded, with the prefill profile.

    They are bound again for every chunk. ``largest`` are the sizes that the profile covers. Results are in ``tensors``
    until the next chunk.
    """

    def __init__(
        self,
        memory: Memory,
        target: Plan,
        slots: PlanLanes,
        reach: Reach,
        largest: WindowSizes,
        scratch: tuple[int, int],
        reader: WideReader,
    ) -> None:
        device, sizer = memory.device, memory.sizer
        self._memory, self._device, self._target, self._slots, self._reach = memory, device, target, slots, reach
        self._pass = target.context(PREFILL, *scratch)
        self._inputs = tensor_block(device, sizer, _INPUTS, largest)
        self._results = tensor_block(device, sizer, _RESULTS, largest)
        chain = tensor_block(device, sizer, (SKIPPED,), largest)  # zeros
        self._staging = Staging(device, self._inputs.size)
        self._newest = NewestToken(device, largest)
        self._readback = Readback(device, 1, largest.emitted, num_buffers=2)
        self._host, self._reader = HostChoice(memory, largest.emitted, reader), reader
        self._no_drafts = device.pinned((1,), np.int32)
        self._no_drafts[0] = 0
        self.tensors = {**memory.shared, **self._inputs.addresses, **self._results.addresses, **chain.addresses}
        self._slot, self._columns, self._end, self._k, self._reached = 0, 1, 1, 0, 1
        self._chunk = Chunk((), 0, -1)

    def feed(self, slot: int, chunk: Chunk, policy: Mapping[str, np.ndarray], draft_len: int = 0) -> None:
        """Upload ``chunk`` as the window; after the last chunk ``advance`` makes the slot active.

        All columns of a chunk with logprobs are emission columns; the emitted token is forced.
        """
        self._slot, self._columns, self._chunk = slot, len(chunk.ids), chunk
        self._end = chunk.start + self._columns
        if chunk.logprobs is not None:
            draft_len = self._columns - 1
        values = {
            "input_ids": chunk.ids, "start": chunk.start, "window_len": len(chunk.ids), "draft_len": draft_len,
            "forced_next": chunk.forced_next, **policy,
        }  # fmt: skip
        with self._staging.block() as image:
            for name, value in values.items():
                raw = np.atleast_1d(np.asarray(value, TENSORS[name].dtype)).view(np.uint8)
                at = self._inputs.offsets[name]
                image[at : at + raw.size] = raw
            self._device.upload(self._inputs.base, image)

    @ranged("verify and accept")
    def verify(self, k: int) -> None:
        """Enqueue the target over the chunk, on the slot's cache rows.

        Waits for it if the host reads its logits: for logprobs of the chunk, or to choose the token after the prompt.
        """
        self._k, logprobs, choice = k, self._chunk.logprobs, self._slots.choices[self._slot]
        sizes, table = self._sizes(), self._memory.numbers_of(self._slot)
        if logprobs is not None:
            sizes = replace(sizes, emitted=emitted_columns(self._columns - 1))
        choose_numbers(self._device, table, self._memory.numbers_length, self.tensors, sizes)
        self._bind(self._pass, self._memory.caches, self._memory.sizer.shapes(self._target.part.inputs, sizes))
        self._pass.enqueue()
        if logprobs is not None:
            logits = self._reader.read(self.tensors["logits"], self._columns, self._memory.sizer.vocab_size)
            logprobs.add(self._chunk.start, logits)
            self._device.upload(self._inputs["draft_len"], self._no_drafts)
        elif choice is not None and self._chunk.is_last:
            self._host.replace(0, choice, self.tensors, sizes, 0)

    @ranged("draft")
    def draft(self, k: int) -> None:
        """Enqueue the drafter over the chunk."""
        self._reached = self._reach.holding(self._end + k)
        if (drafter := self._slots.drafter(self._slot)) is not None:
            self._enqueue("drafter", drafter, WindowSizes(1, self._columns, k + 1, self._reached))
            if drafter.prompt_chain is not None:
                drafter.prompt_chain.lay_out(self.tensors[NEXT[0]], self.tensors[NEXT[1]], 1, k + 1)

    def draft_tree(self, k: int) -> None:
        """Draft a chain: the first drafts after a prompt do not fork."""
        self.draft(k)

    @ranged("draft")
    def extend(self) -> None:
        """Enqueue a further pass of an autoregressive drafter, if the result will be verified."""
        drafter = self._slots.drafter(self._slot)
        if drafter is not None and drafter.prompt_chain is not None and self._chunk.is_last:
            drafter.prompt_chain.feed(1)
            self._enqueue(FURTHER, drafter, further_sizes(1, self._reached))
            drafter.prompt_chain.take(1)

    def defer(self) -> None:
        """Enqueue the narrowest drafter pass, because the drafter must read every chunk."""
        self.draft(1)

    @ranged("copy windows")
    def advance(self, k: int) -> None:
        """Give the slot its first window after the last chunk."""
        if not k:
            self._newest.enqueue(self.tensors, self._sizes())
        if self._chunk.is_last:
            self._slots.place(self._slot, self.tensors, k, self._end)

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Ignore the drafts: only the drafter's drafts can follow a prompt."""

    def emission(self) -> DeferredEmission:
        """Fetch the emission, one row; reading it waits for the copy."""
        return self._readback.start(self.tensors, 1, emitted_columns(self._k), self._k + 1, (0,))

    def _sizes(self) -> WindowSizes:
        return WindowSizes(1, self._columns, emitted_columns(self._k), self._reach.holding(self._end))

    def _enqueue(self, kind: str, drafter: PlanDrafter, sizes: WindowSizes) -> None:
        """Enqueue a pass of the slot's drafter."""
        base, run = {**self.tensors, **drafter.outputs}, drafter.prompt_passes[kind]
        shapes, tensors = bindings(kind, drafter.plan.part, drafter.sizer, sizes, base, drafter.prompt_chain)
        self._bind(run, drafter.caches, shapes, tensors)
        run.enqueue()

    def _bind(self, run: Pass, caches: Caches, shapes: Mapping[str, Shape], tensors: Addresses | None = None) -> None:
        cache_shapes, cache_addresses = caches.row(self._slot)
        run.bind({**shapes, **cache_shapes}, {**(self.tensors if tensors is None else tensors), **cache_addresses})
