"""``Backend`` on TensorRT or TensorRT-RTX plans.

Tokens arrive one round late, so no round waits for the host, unless that drafts or chooses tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....plugins.errors import UsageError
from ....plugins.graph_contract import POLICY
from ....plugins.tensorrt.import_tensorrt import Product
from ...folder.checks import check_gpu
from ...folder.graph_tensors import check_graph
from ...folder.manifest import Manifest
from ...folder.records import PREFILL, VERIFY
from ...policy.drafts_per_round import spaced_counts
from ...requests.params import SamplingParams, policy_of
from ...running.request import Drafter
from ...running.token_choice import TokenChoice
from ..base import Chunk, KeptEntries, Steps
from ..profiling import IN_PREFILL, IN_ROUND, EngineProfile, Profiler, phase, ranged
from .device import CudaDevice, Device, find_gpu
from .kept_positions import KeptMemory, KeptPositions
from .kept_rounds import ANY_LENGTH, KeptRound, KeptRounds
from .lanes import PlanLanes
from .loaded_graphs import Plan, Runtime, load_product, profile_of
from .memory import Memory, Sizer, WindowSizes, itemsize
from .pinned import DeferredEmission, Staging, WideReader
from .prefill import PlanPrompt
from .reach import Reach, lengths_of

KERNELS = "plugins"  # folder of compiled kernels inside the engine folder
_OWN_K = 2  # K of kept rounds beyond those that policies share: the build's, and one that a call names


def load(
    folder: Path, manifest: Manifest, product: Product, num_slots: int, profiler: Profiler | None = None
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
    most = min(profile_of(part, VERIFY).rows[-1] for part in manifest.parts.values())
    if num_slots > most:
        raise UsageError(
            f"max_batch_size must be at most {most}, not {num_slots}",
            why=f"the plans of this engine were built for batches of at most {most}",
            fix=f"load the engine with max_batch_size {most}, or rebuild it with --max-batch-size {num_slots}",
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
        runtime = Runtime(trt, device, profiler)
        plans: dict[str, Plan] = {}
        for half, part in manifest.parts.items():
            path, wide = folder / part.file, Sizer(manifest).wide
            plans[half] = runtime.load(path, half, part)
            check_graph(path, half, part, manifest.shapes, wide, *plans[half].tensors())
        verify, prefill = (_largest(manifest, name) for name in (VERIFY, PREFILL))
        self._most_drafts, self.prefill_columns = min(verify.columns, verify.emitted) - 1, prefill.columns
        self.scored_columns = min(prefill.columns, prefill.emitted)
        decode = WindowSizes(num_slots, verify.columns, verify.emitted)
        one = WindowSizes(1, prefill.columns, prefill.emitted)
        self._memory = memory = Memory(device, manifest, num_slots, (decode, one))
        size = max(plan.scratch_bytes() for plan in plans.values())
        scratch = (device.allocate(size) if size else 0, size)
        lengths = lengths_of(manifest.parts.values(), manifest.shapes.cache_length)
        self._reach = Reach(lengths, num_slots)
        self._reader = WideReader(device, memory.sizer.wide)
        most, places = self._most_drafts, self.lag + 1
        self._lanes = PlanLanes(memory, plans, self._reach, most, scratch, places, self._reader)
        self._prompts = PlanPrompt(memory, plans, self._lanes, self._reach, one, scratch, self._reader)
        self._staging = Staging(device, (memory.numbers_length + len(POLICY)) * itemsize("float32"))
        self._kept = KeptMemory(device, memory.caches)
        self.kept_bytes = self._kept.position_bytes
        self._policies = [policy_of(SamplingParams()) for _ in range(num_slots)]
        counts = len(spaced_counts(self._most_drafts)) + _OWN_K
        self._rounds = KeptRounds(device, most=counts * len(self._lanes.row_sizes) * (len(lengths) + 1))

    def begin(self) -> None:
        """Upload windows in which every slot is idle."""
        self._lanes.begin()

    def warm(self, steps: Steps, k: int) -> None:
        """Run and capture the rounds of a new K, for every number of rows and cache length, and wait for them."""
        self._check(k)
        for rows, positions in itertools.product(self._lanes.row_sizes, self._reach.lengths):
            if self._rounds.of((steps, k, rows, positions)).has_run:
                continue
            with self._reach.at_least(positions):
                self._lanes.prepare(k)
                kept = self._run(steps, k, rows, replay=True)
                self._device.record().wait()
                self._capture(kept, steps, k)

    def load_drafter(self, manifest: Manifest) -> Drafter:
        """Refuse: plans are built for one drafter. Raises ``UsageError``."""
        del manifest
        raise UsageError(
            f"no drafter can be loaded beside that of an engine for {self.manifest.backend.name}",
            why="only engines for ONNX Runtime can have several drafters",
            fix="build an engine with that drafter",
        )

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        numbers: np.ndarray,
        choice: TokenChoice | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """Upload the slot's policy and its table of random numbers, padded with zeros."""
        del drafter  # there are no others
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
        return self._kept.keep(slot, start, end)

    @ranged("copy prefix")
    def restore(self, slot: int, kept: Sequence[KeptEntries]) -> None:
        """Enqueue the copies back into the slot's caches."""
        for each in kept:
            if not isinstance(each, KeptPositions):
                raise TypeError(f"cannot restore a {type(each).__name__}: it comes from another backend")
            self._kept.restore(slot, each)

    def first(self, slot: int) -> DeferredEmission:
        """Fetch the emission of the last prompt's last chunk."""
        del slot  # the last prompt's tokens have one location for all slots
        return self._prompts.emission()

    def round(self, steps: Steps, k: int, *, replay: bool, limits: Sequence[int] = ()) -> DeferredEmission:
        """Replay the captured round of this K or enqueue its steps, and fetch its emission."""
        self._check(k)
        self._lanes.limits = limits
        with phase(self._profiler, IN_ROUND):
            if replay:
                self._lanes.prepare(k)
            self._run(steps, k, self._lanes.rows_needed, replay=replay)
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
        address, width = self._memory.scratch["draft_logits"], self.manifest.shapes.draft_vocab_size
        if self.manifest.drafter is None or not self.manifest.drafter.is_autoregressive:
            return self._reader.read(address, num_speculative_tokens, width)
        logits = [self._reader.read(address, 1, width)]
        for _ in range(num_speculative_tokens - 1):
            self._prompts.extend()
            logits.append(self._reader.read(address, 1, width))
        return np.concatenate(logits)

    def end_profile(self) -> EngineProfile:
        """Return what TensorRT reported of each layer."""
        profiler, self._profiler = self._profiler or Profiler(), None
        return profiler.profile()

    def _run(self, steps: Steps, k: int, rows: int, *, replay: bool) -> KeptRound:
        # A round that waits finds out what it reads only when it verifies, so its passes are kept for any length.
        kept = self._rounds.of((steps, k, rows, self._lanes.positions if replay else ANY_LENGTH))
        self._lanes.turn_to(rows, kept.passes, waits=not replay)
        if replay and kept.has_run:
            self._capture(kept, steps, k)
        if kept.graph is None:
            steps(self._lanes, k)
            kept.has_run = True
        else:
            kept.graph.replay()
            self._lanes.advanced(kept.drafts_after)
        return kept

    def _capture(self, kept: KeptRound, steps: Steps, k: int) -> None:
        """Capture a round that has run before, if a CUDA graph supports it."""
        if kept.graph is None and self._lanes.is_capturable():
            kept.graph = self._device.capture(lambda: steps(self._lanes, k))
            kept.drafts_after = self._lanes.num_draft_columns

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
    profiles = [profile_of(part, name) for part in manifest.parts.values()]
    return WindowSizes(*(min(getattr(p, field)[-1] for p in profiles) for field in ("rows", "columns", "emitted")))
