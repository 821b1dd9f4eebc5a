"""Plans of TensorRT or TensorRT-RTX behind the ``Backend`` interface: tokens come one round late, no round waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....plugins.errors import UsageError
from ....plugins.tensorrt.module import Product
from ...folder.checks import check_gpu
from ...folder.manifest import Manifest
from ...requests.params import POLICY, SamplingParams, policy_of
from ..base import Chunk
from .contract import ITEMSIZE, NEXT, WINDOW, Sizes
from .decode import Decode, emitted_columns
from .device import CudaDevice, Device, find_gpu
from .memory import Memory
from .pinned import LateEmission, Readback, Staging
from .plans import PREFILL, VERIFY, Runtime, load_product, profile_of
from .prefill import Prefill

KERNELS = "plugins"  # the engine folder's pack of compiled kernels


def load(folder: Path, manifest: Manifest, product: Product, num_slots: int) -> TensorRTBackend:
    """The backend of an engine folder that was checked against its manifest.

    Raises ``UsageError`` for more slots than the plans cover, ``EnvironmentProblem`` for a machine that cannot run
    them: no GPU, another GPU, another version, a plan that TensorRT refuses.
    """
    check_slots(manifest, num_slots)
    check_gpu(manifest.backend, find_gpu())
    trt = load_product(product, manifest)
    from ....plugins.kernels.pack import read_pack
    from ....plugins.tensorrt.register import register

    packs = (read_pack(folder / KERNELS),)
    register(trt, packs=packs)
    return TensorRTBackend(folder, manifest, num_slots, CudaDevice(packs), trt)


def check_slots(manifest: Manifest, num_slots: int) -> None:
    """Refuse more rows than the plans were built for."""
    most = min(profile_of(part, VERIFY).rows[-1] for part in (manifest.target, manifest.drafter))
    if num_slots > most:
        raise UsageError(
            f"max_batch_size must be at most {most}, not {num_slots}",
            why="the plans of this engine were built for no more rows",
            fix=f"load it with {most}, or rebuild with --max-batch-size {num_slots}",
        )


class TensorRTBackend:
    """See ``Backend``. ``trt`` is the module of either product; ``device`` has the only stream there is."""

    lag = 1

    def __init__(self, folder: Path, manifest: Manifest, num_slots: int, device: Device, trt: Any) -> None:
        self.manifest, self.num_slots, self._device = manifest, num_slots, device
        runtime = Runtime(trt, device)
        self._target = runtime.load(folder / manifest.target.file, "target", manifest.target)
        self._drafter = runtime.load(folder / manifest.drafter.file, "drafter", manifest.drafter)
        verify, prefill = (_largest(manifest, name) for name in (VERIFY, PREFILL))
        self._most_drafts, self.prefill_columns = verify.emitted - 1, prefill.columns
        decode = Sizes(num_slots, verify.columns, verify.emitted)
        one = Sizes(1, prefill.columns, prefill.emitted)
        self._memory = Memory(device, manifest, num_slots, (decode, one))
        size = max(plan.scratch_bytes() for plan in (self._target, self._drafter))
        self._scratch = (device.allocate(size) if size else 0, size)
        self._prefill = Prefill(self._memory, self._target, self._drafter, one, self._scratch)
        self._readback = Readback(device, num_slots, verify.emitted, self.lag + 1)
        self._staging = Staging(device, (self._memory.numbers_length + len(POLICY)) * ITEMSIZE["f32"])
        self._policies = [policy_of(SamplingParams()) for _ in range(num_slots)]
        self._logits_bytes: np.ndarray | None = None  # page-locked memory is kept as long as the device
        self._decodes: dict[int, Decode] = {}
        self._decode = self._decode_for(manifest.speculation.num_speculative_tokens)

    def begin(self, num_speculative_tokens: int) -> None:
        """See ``Backend.begin``. The first time for a K runs and captures its round."""
        self._decode = self._decode_for(num_speculative_tokens)
        self._decode.park()

    def admit(self, slot: int, params: SamplingParams, numbers: np.ndarray) -> None:
        """See ``Backend.admit``."""
        self._policies[slot] = policy = policy_of(params)
        length, size = self._memory.numbers_length, ITEMSIZE["f32"]
        with self._staging.block() as block:
            table, rest = block[: length * size].view(np.float32), block[length * size :]
            table[: len(numbers)], table[len(numbers) :] = numbers[:length], 0
            self._device.upload(self._memory.numbers_of(slot), table)
            for index, (name, value) in enumerate(policy.items()):
                place = rest[index * size : (index + 1) * size]
                place[:] = value.view(np.uint8)
                self._device.upload(self._memory.policy[name] + slot * size, place)

    def prefill(self, slot: int, chunk: Chunk) -> None:
        """See ``Backend.prefill``."""
        k, run = self._decode.k, self._prefill
        run.run(slot, chunk.ids, chunk.start, k, policy=self._policies[slot], forced_next=chunk.forced_next)
        if chunk.is_last:
            following = {name: run.tensors[next_name] for name, next_name in zip(WINDOW, NEXT, strict=True)}
            self._decode.place(slot, following)

    def first(self, slot: int) -> LateEmission:
        """See ``Backend.first``."""
        del slot  # the last prompt's tokens lie in one place, whichever slot it went to
        return self._fetch(self._prefill.tensors, rows=1)

    def step(self) -> LateEmission:
        """See ``Backend.step``."""
        self._decode.run()
        return self._fetch(self._decode.tensors, rows=self.num_slots)

    def retire(self, slot: int) -> None:
        """See ``Backend.retire``."""
        self._decode.retire(slot)

    def target_logits(self, ids: Sequence[int]) -> np.ndarray:
        """See ``Backend.target_logits``; as many columns at a time as can emit."""
        width = self._most_drafts + 1
        policy = self._checked_slot()
        logits = []
        for start in range(0, len(ids), width):
            piece = ids[start : start + width]
            # E is K + 1 for the drafts that the other columns are taken for.
            self._prefill.run(0, piece, start, self._most_drafts, policy=policy, draft_len=len(piece) - 1)
            logits.append(self._logits("logits", width, self.manifest.shapes.vocab_size)[: len(piece)])
        return np.concatenate(logits)

    def draft_logits(self, ids: Sequence[int], num_speculative_tokens: int) -> np.ndarray:
        """See ``Backend.draft_logits``."""
        policy, width = self._checked_slot(), self.prefill_columns
        for start in range(0, len(ids), width):
            piece, end = ids[start : start + width], start + width
            known = ids[end] if end < len(ids) else -1
            self._prefill.run(0, piece, start, num_speculative_tokens, policy=policy, forced_next=known)
        return self._logits("draft_logits", num_speculative_tokens, self.manifest.shapes.draft_vocab_size)

    def _decode_for(self, k: int) -> Decode:
        if k > self._most_drafts:
            raise UsageError(
                f"num_speculative_tokens must be at most {self._most_drafts}, not {k}",
                why="the plans of this engine were built for no wider windows",
                fix="choose a smaller K, or rebuild with a larger --num-speculative-tokens",
            )
        if k not in self._decodes:
            self._decodes[k] = Decode(self._memory, self._target, self._drafter, k, self._scratch)
        return self._decodes[k]

    def _fetch(self, tensors: dict[str, int], rows: int) -> LateEmission:
        k = self._decode.k
        return self._readback.start(tensors["tokens"], tensors["num_tokens"], rows, emitted_columns(k), shown=k + 1)

    def _checked_slot(self) -> dict[str, np.ndarray]:
        """Slot 0, greedy, with nothing running."""
        self._decode.park()
        return policy_of(SamplingParams())

    def _logits(self, name: str, rows: int, width: int) -> np.ndarray:
        """f32 [rows, width] of what the last prefill pass left in the graphs' own type."""
        width_of = self._memory.contract.wide
        dtype = np.dtype(np.uint16 if width_of == "bfloat16" else width_of)
        size = rows * width * dtype.itemsize
        if self._logits_bytes is None or self._logits_bytes.size < size:
            self._logits_bytes = self._device.pinned((size,), np.uint8)
        raw = self._logits_bytes[:size].view(dtype).reshape(rows, width)
        self._device.download(raw, self._memory.scratch[name])
        self._device.record().wait()
        return (raw.astype(np.uint32) << 16).view(np.float32) if width_of == "bfloat16" else raw.astype(np.float32)


def _largest(manifest: Manifest, name: str) -> Sizes:
    """What the profile of that name covers in both plans."""
    profiles = [profile_of(part, name) for part in (manifest.target, manifest.drafter)]
    return Sizes(*(min(getattr(p, field)[-1] for p in profiles) for field in ("rows", "columns", "emitted")))
