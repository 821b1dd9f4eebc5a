"""``Backend`` on TensorRT or TensorRT-RTX plans.

Tokens arrive one round late, so a round waits for the host only if the host drafts or chooses tokens.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem, UsageError
from ....plugins.graph_contract import POLICY
from ...folder.checks import check_gpu
from ...folder.graph_tensors import check_graph
from ...folder.manifest import Manifest
from ...folder.records import PREFILL, VERIFY, Part
from ...policy.drafts_per_round import spaced_counts
from ...requests.params import SamplingParams, policy_of
from ...running.request import Drafter
from ...running.token_choice import TokenChoice
from ..base import Chunk, KeptEntries, RunBetween, Steps
from ..profiling import IN_PREFILL, IN_ROUND, EngineProfile, Profiler, phase, ranged
from .device import CudaDevice, Device, find_gpu
from .kept_positions import KeptMemory, KeptPositions, position_bytes
from .kept_rounds import ANY_LENGTH, KeptRound, KeptRounds, Numbers
from .lanes import Drafters, PlanLanes
from .loaded_drafter import DrafterHandle, PlanDrafter
from .loaded_graphs import Plan, Runtime, load_product, profile_of
from .memory import Caches, Memory, Sizer, WindowSizes, itemsize
from .pinned import DeferredEmission, Staging, WideReader
from .prefill import PlanPrompt
from .reach import Reach, lengths_of

KERNELS = "plugins"  # folder of compiled kernels inside the engine folder
_OWN_K = 2  # K of kept rounds beyond those that policies share: the build's, and one that a call names


def load(
    folder: Path, manifest: Manifest, product: str, num_slots: int, profiler: Profiler | None = None
) -> TensorRTBackend:
    """Return the backend of an engine folder whose files were checked against its manifest.

    Raises ``UsageError`` for more slots than the plans support. Raises ``EnvironmentProblem`` if the machine cannot run
    them: no GPU, another GPU, another version, or a plan that TensorRT rejects.
    """
    check_slots(manifest, num_slots)
    check_gpu(manifest.backend, find_gpu(manifest.backend.name))
    trt = load_product(product, manifest)
    from ....plugins.kernels.pack import read_pack
    from ....plugins.tensorrt.register import register

    packs = (read_pack(folder / KERNELS),)
    register(trt, packs=packs)
    return TensorRTBackend(folder, manifest, num_slots, CudaDevice(packs), trt, profiler)


def check_slots(manifest: Manifest, num_slots: int) -> None:
    """Raise ``UsageError`` for more rows than the plans were built for."""
    max_rows = min(profile_of(part, VERIFY).rows[-1] for part in manifest.parts.values())
    if num_slots > max_rows:
        raise UsageError(
            f"max_batch_size must be at most {max_rows}, not {num_slots}",
            why=f"the plans of this engine were built for batches of at most {max_rows}",
            fix=f"load the engine with max_batch_size {max_rows}, or rebuild it with --max-batch-size {num_slots}",
        )


class TensorRTBackend:
    """Runs the plans on the single stream of ``device``; ``trt`` is the module of either product.

    The first time, a round is enqueued step by step, which initializes what it needs. The second time, it is captured
    in a CUDA graph: one for each K, number of rows and cache length that is read. Loading an engine captures the rounds
    of every K that its policy may choose. Rounds of further K, which calls may name, replace the least recently used
    ones. Of rounds that wait for the host, each pass is captured by itself.
    """

    lag = 1
    prepares_rounds = True
    keeps_exactly = False  # windows of other widths run other kernels, which round differently

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        num_slots: int,
        device: Device,
        trt: Any,
        profiler: Profiler | None = None,
    ) -> None:
        self.manifest, self.num_slots, self._device, self._profiler = manifest, num_slots, device, profiler
        self._folder, self._runtime = folder, Runtime(trt, device, profiler)
        plans = {component: self._plan(component, part, manifest) for component, part in manifest.parts.items()}
        verify, prefill = (_largest(manifest, name) for name in (VERIFY, PREFILL))
        self._most_drafts, self.prefill_columns = min(verify.columns, verify.emitted) - 1, prefill.columns
        self.scored_columns = min(prefill.columns, prefill.emitted)
        decode = WindowSizes(num_slots, verify.columns, verify.emitted)
        one = WindowSizes(1, prefill.columns, prefill.emitted)
        self._memory = memory = Memory(device, manifest, num_slots, (decode, one))
        size = max(plan.scratch_bytes() for plan in plans.values())
        self._scratch = scratch = (device.allocate(size) if size else 0, size)
        self._own = PlanDrafter(0, plans["drafter"], memory.sizer, memory, scratch) if manifest.drafter else None
        self._numbers = itertools.count(1)
        self._others = 0  # loaded drafters beside the engine's own
        self._unused: deque[tuple[PlanDrafter, list[int]]] = deque()  # with the addresses of their memory
        lengths = lengths_of(manifest.parts.values(), manifest.shapes.cache_length)
        self._reach = Reach(lengths, num_slots)
        self._reader = WideReader(device, memory.sizer.wide)
        max_drafts, num_buffers = self._most_drafts, self.lag + 1
        self._lanes = PlanLanes(
            memory, plans["target"], self._own, self._reach, max_drafts, scratch, num_buffers, self._reader
        )
        self._prompts = PlanPrompt(memory, plans["target"], self._lanes, self._reach, one, scratch, self._reader)
        self._staging = Staging(device, (memory.numbers_length + len(POLICY)) * itemsize("float32"))
        self._kept = KeptMemory(device)
        self.kept_bytes = position_bytes(self._caches(0))
        self._policies = [policy_of(SamplingParams()) for _ in range(num_slots)]
        counts = len(spaced_counts(self._most_drafts)) + _OWN_K
        self._kinds = counts * len(self._lanes.row_sizes) * (len(lengths) + 1)  # of rounds with one drafter
        self._rounds = KeptRounds(device, capacity=self._kinds)

    def begin(self) -> None:
        """Upload windows in which every slot is idle."""
        self._lanes.begin()

    def warm(self, steps: Steps, k: int, drafter: Drafter | None = None) -> None:
        """Run and capture the rounds of a new K, for every number of rows and cache length, and wait for them."""
        self._check(k)
        loaded = self._loaded(drafter)
        drafters = (loaded,) if loaded else ()
        for rows, positions in itertools.product(self._lanes.row_sizes, self._reach.lengths):
            if self._rounds.of((steps, k, rows, positions, _numbers_of(drafters))).has_run:
                continue
            with self._reach.at_least(positions):
                self._lanes.prepare(k)
                prepared = self._run(steps, k, rows, drafters, replay=True)
                self._device.record().wait()
                self._capture(prepared, steps, k)

    def load_drafter(self, manifest: Manifest, between: RunBetween) -> Drafter:
        """Deserialize the plan of another drafter; the engine's thread then allocates its memory between two passes.

        Another thread must not: the stream may be recording a round.
        """
        part = manifest.drafter
        if part is None:
            raise ValueError("the manifest has no drafter")
        plan = self._plan("drafter", part, manifest)
        self._require_sizes(part)
        return between(lambda: self._place(plan, manifest))

    def _place(self, plan: Plan, manifest: Manifest) -> DrafterHandle:
        self._free_unused()
        with self._device.lease() as addresses:
            number = next(self._numbers)
            loaded = PlanDrafter(number, plan, Sizer(manifest), self._memory, self._scratch)
        handle = DrafterHandle(plan.part.origin.revision, loaded)
        # Whoever drops the last reference to it may be in another thread, or in a pass.
        weakref.finalize(handle, self._unused.append, (loaded, addresses)).atexit = False
        self._count(1)
        return handle

    def _free_unused(self) -> None:
        """Free the memory of drafters that nobody refers to any more."""
        while self._unused:
            loaded, addresses = self._unused.popleft()
            self._rounds.drop_drafter(loaded.number)  # waits
            loaded.prompt_passes.clear()
            self._device.free(addresses)
            self._count(-1)

    def _count(self, more: int) -> None:
        """Make room for rounds of each drafter alone, and of as many kinds with several."""
        self._others += more
        self._rounds.capacity = self._kinds * (1 + 2 * self._others)

    def _loaded(self, drafter: Drafter | None) -> PlanDrafter | None:
        if drafter is None:
            return self._own
        if not isinstance(drafter, DrafterHandle):
            raise TypeError(f"cannot draft with a {type(drafter).__name__}: it comes from another backend")
        return drafter.loaded

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        numbers: np.ndarray,
        choice: TokenChoice | None = None,
        drafter: Drafter | None = None,
        *,
        drafts: bool = True,
    ) -> None:
        """Upload the slot's policy and its table of random numbers, padded with zeros."""
        self._free_unused()
        self._lanes.assign(slot, self._loaded(drafter) if drafts else None)
        self._lanes.choices[slot] = choice
        self._policies[slot] = policy = policy_of(params)
        length, size = self._memory.numbers_length, itemsize("float32")
        with self._staging.block() as block:
            table, rest = block[: length * size].view(np.float32), block[length * size :]
            table[: len(numbers)], table[len(numbers) :] = numbers[:length], 0
            self._device.upload(self._memory.numbers_of(slot), table)
            for index, (name, value) in enumerate(policy.items()):
                place = rest[index * size : (index + 1) * size]
                place[:] = value.view(np.uint8)
                self._device.upload(self._memory.policy[name] + slot * size, place)

    def prompt(self, slot: int, chunk: Chunk, steps: Steps, k: int) -> None:
        """Upload a chunk of a prompt and enqueue the steps over it, with the prefill profile."""
        with phase(self._profiler, IN_PREFILL):
            self._prompts.feed(slot, chunk, self._policies[slot])
            steps(self._prompts, k)

    @ranged("copy prefix")
    def keep(self, slot: int, start: int, end: int) -> KeptEntries:
        """Enqueue the copy of positions of the slot's caches to page-locked memory."""
        return self._kept.keep(self._caches(slot), slot, start, end)

    @ranged("copy prefix")
    def restore(self, slot: int, kept: Sequence[KeptEntries]) -> None:
        """Enqueue the copies back into the slot's caches."""
        for each in kept:
            if not isinstance(each, KeptPositions):
                raise TypeError(f"cannot restore a {type(each).__name__}: it comes from another backend")
            self._kept.restore(self._caches(slot), slot, each)

    def _caches(self, slot: int) -> list[Caches]:
        """Return the caches that a slot uses: the target's, and those of its drafter."""
        drafter = self._lanes.drafter(slot)
        return [self._memory.caches, *([drafter.caches] if drafter else [])]

    def first(self, slot: int) -> DeferredEmission:
        """Fetch the emission of the last prompt's last chunk."""
        del slot  # the last prompt's tokens have one location for all slots
        return self._prompts.emission()

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> DeferredEmission:
        """Replay the captured round of this K or enqueue its steps, and fetch its emission."""
        self._check(k)
        self._lanes.limits = limits
        with phase(self._profiler, IN_ROUND):
            self._free_unused()
            if replay:
                self._lanes.prepare(k)
            self._run(steps, k, self._lanes.rows_needed, self._lanes.drafters_needed, replay=replay)
        return self._lanes.deferred_emission()

    def retire(self, slot: int) -> None:
        """Upload an idle window for the slot."""
        self._lanes.retire(slot)

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return f32 [len,V] after each of ``ids``, from passes of as many columns as can emit."""
        width = self._most_drafts + 1
        policy = self._checked_slot()
        logits = []
        for start in range(0, len(ids), width):
            piece = ids[start : start + width]
            # E is K + 1; the other columns are treated as drafts.
            self._prompts.feed(0, Chunk(piece, start, -1), policy, draft_len=len(piece) - 1)
            self._prompts.verify(self._most_drafts)
            address, vocab = self._memory.scratch["logits"], self.manifest.shapes.vocab_size
            logits.append(self._reader.read(address, width, vocab)[: len(piece)])
        return np.concatenate(logits)

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """Return f32 [K,Vd] of the drafter pass that ends a prefill of ``ids``."""
        policy, width = self._checked_slot(), self.prefill_columns
        for start in range(0, len(ids), width):
            end = start + width
            following = ids[end] if end < len(ids) else -1
            self._prompts.feed(0, Chunk(ids[start:end], start, following), policy)
            self._prompts.verify(num_speculative_tokens)
            self._prompts.draft(num_speculative_tokens)
        if self._own is None:
            raise ValueError("the engine has no drafter")
        address, width = self._own.outputs["draft_logits"], self.manifest.shapes.draft_vocab_size
        if self._own.prompt_chain is None:
            return self._reader.read(address, num_speculative_tokens, width)
        logits = [self._reader.read(address, 1, width)]
        for _ in range(num_speculative_tokens - 1):
            self._prompts.extend()
            logits.append(self._reader.read(address, 1, width))
        return np.concatenate(logits)

    def end_profile(self) -> EngineProfile:
        """Return the times that TensorRT reported for each layer."""
        profiler, self._profiler = self._profiler or Profiler(), None
        return profiler.profile()

    def _run(self, steps: Steps, k: int, rows: int, drafters: Drafters, *, replay: bool) -> KeptRound:
        # A round that waits finds out what it reads only when it verifies, so its passes are kept for any length. Which
        # slots of a round have which of several drafters differs, so only its passes are captured.
        positions, is_captured = self._lanes.positions if replay else ANY_LENGTH, replay and len(drafters) <= 1
        prepared = self._rounds.of((steps, k, rows, positions, _numbers_of(drafters)))
        self._lanes.turn_to(rows, drafters, prepared.passes, waits=not is_captured)
        if is_captured and prepared.has_run:
            self._capture(prepared, steps, k)
        if prepared.graph is None:
            steps(self._lanes, k)
            prepared.has_run = True
        else:
            prepared.graph.replay()
            self._lanes.advanced(prepared.drafts_after, prepared.grown_after)
        return prepared

    def _capture(self, prepared: KeptRound, steps: Steps, k: int) -> None:
        """Capture a round that has run before, if a CUDA graph supports it."""
        if prepared.graph is None and self._lanes.is_capturable():
            prepared.graph = self._device.capture(lambda: steps(self._lanes, k))
            prepared.drafts_after, prepared.grown_after = self._lanes.num_draft_columns, self._lanes.grown

    def _plan(self, component: str, part: Part, manifest: Manifest) -> Plan:
        """Load the plan of a half of the engine that ``manifest`` describes."""
        path = self._folder / part.file
        plan = self._runtime.load(path, component, part)
        check_graph(path, component, part, manifest.shapes, Sizer(manifest).wide, *plan.tensors())
        return plan

    def _require_sizes(self, part: Part) -> None:
        """Raise ``EnvironmentProblem`` for a drafter whose plan covers less than the passes of this engine."""
        verify, prefill = (_sizes_of(part, name) for name in (VERIFY, PREFILL))
        needed = WindowSizes(self.num_slots, self._most_drafts + 1, self._most_drafts + 1)
        covers = all(getattr(verify, each) >= getattr(needed, each) for each in ("rows", "columns", "emitted"))
        reads = [each.positions for each in part.plan.profiles if each.positions] if part.plan else []
        lengths = self._reach.lengths
        covers &= all(fewest <= lengths[0] and lengths[-1] <= longest for fewest, _, longest in reads)
        if not covers or prefill.columns < self.prefill_columns:
            raise EnvironmentProblem(
                f"the plan of {part.file} does not fit the other plans of the engine",
                why="this plan covers fewer rows, drafts or columns than the other plans, or other cache lengths",
                fix="remove the drafter and add it again",
            )

    def _check(self, k: int) -> None:
        if k > self._most_drafts:
            raise UsageError(
                f"num_speculative_tokens must be at most {self._most_drafts}, not {k}",
                why="the plans of this engine were built for fewer drafts per round",
                fix="choose a smaller K, or rebuild with a larger --num-speculative-tokens",
            )

    def _checked_slot(self) -> dict[str, np.ndarray]:
        """Set up slot 0 for greedy decoding while nothing runs."""
        self._lanes.begin()
        return policy_of(SamplingParams())


def _largest(manifest: Manifest, name: str) -> WindowSizes:
    """Return the sizes that the profile of that name covers in every plan."""
    found = [_sizes_of(part, name) for part in manifest.parts.values()]
    return WindowSizes(*(min(getattr(each, field) for each in found) for field in ("rows", "columns", "emitted")))


def _sizes_of(part: Part, name: str) -> WindowSizes:
    profile = profile_of(part, name)
    return WindowSizes(profile.rows[-1], profile.columns[-1], profile.emitted[-1])


def _numbers_of(drafters: Drafters) -> Numbers:
    return tuple(sorted(each.number for each in drafters))
