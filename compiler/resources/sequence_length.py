"""The default of ``--max-seq-len`` on TensorRT: the length that model and GPU memory allow, up to a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..checkpoints.target_and_drafter import USUAL_LENGTH, Inputs
from ..console.printing import size
from ..hardware.gpus import GPUS, find_gpu, is_architecture, sm_name, sm_number
from ..hardware.machine import LocalGpu, inspect_machine
from ..request.build_plan import BuildPlan
from .gpu_memory import RESERVE
from .pass_tensors import PassTensors, pass_tensors
from .speed.target_work import position_bytes
from .workload import Workload, workload_of

if TYPE_CHECKING:
    from ...graphs.targets import TargetSpec

# Longer texts are rare, every fourfold length adds kinds of rounds to capture on load, and heads are trained on shorter
# ones.
MAX_DEFAULT_LENGTH = 32_768
_STEP = 1024
_MIB = 2**20


@dataclass(frozen=True)
class SequenceLength:
    """A default length in tokens, and the reason for it."""

    tokens: int
    why: str

    @property
    def note(self) -> str:
        """The length and the reason, in a line."""
        return f"max_seq_len is {self.tokens:,}: {self.why}; --max-seq-len sets another length"


@dataclass(frozen=True)
class _Memory:
    name: str
    bytes: int


def with_length(plan: BuildPlan, inputs: Inputs) -> BuildPlan:
    """Return the plan of a build or an export from its checkpoints, with a default length if none was requested."""
    if not _decides(plan):
        return plan
    target = inputs.target
    length = default_length(plan, target.spec, target.family.text(target.config), workload_of(plan, inputs))
    return replace(plan, max_seq_len=length.tokens)


def decided_length(plan: BuildPlan, spec: TargetSpec, text: Mapping[str, Any], workload: Workload) -> SequenceLength:
    """Return the length of a dry run: the requested one, or what ``with_length`` chooses; the reason may be empty."""
    return default_length(plan, spec, text, workload) if _decides(plan) else SequenceLength(plan.max_seq_len, "")


def _decides(plan: BuildPlan) -> bool:
    """Return True for plans of a length that nobody asked for. Engines for CPUs keep the usual length.

    They allocate, or at least claim, the whole caches of every request that they are loaded for.
    """
    return plan.request.sizes.max_seq_len is None and plan.lowering.is_tensorrt and bool(plan.platform.gpus)


def default_length(plan: BuildPlan, spec: TargetSpec, text: Mapping[str, Any], workload: Workload) -> SequenceLength:
    """Return the longest length at which ``max_batch_size`` requests fit into the GPU with the least memory.

    At most ``MAX_DEFAULT_LENGTH``, and no less than the usual length, even if that does not fit.
    """
    usual, longest = (min(each, spec.max_position_embeddings) for each in (USUAL_LENGTH, MAX_DEFAULT_LENGTH))
    memory = _least_memory(plan)
    if memory is None:
        return SequenceLength(usual, f"the memory of {', '.join(plan.platform.gpus)} is unknown")
    drafts = plan.speculation.max_num_speculative_tokens
    tensors = pass_tensors(spec, text, workload, rows=plan.max_batch_size, num_speculative_tokens=drafts)
    token = position_bytes(spec.caches, workload.recipe.kv_cache)
    if workload.head:
        token += position_bytes(workload.head.caches, workload.recipe.cache_type("drafter"))
    weights = workload.bytes
    free = int(memory.bytes * (1 - RESERVE)) - weights - tensors.logits
    fitting = _longest(free, plan, token, tensors)
    memory_text = f"{size(memory.bytes)} of {memory.name} alongside {size(weights)} of weights"
    requests = f"{plan.max_batch_size} requests" if plan.max_batch_size > 1 else "one request"
    if fitting >= longest == spec.max_position_embeddings:
        return SequenceLength(longest, "the model's maximum")
    if fitting >= longest:
        return SequenceLength(longest, f"the largest default; the model allows {spec.max_position_embeddings:,}")
    if fitting > usual:
        return SequenceLength(fitting, f"{requests} of this length fit into {memory_text}")
    return SequenceLength(usual, f"{requests} of a greater length would not fit into {memory_text}")


def _longest(free: int, plan: BuildPlan, token: int, tensors: PassTensors) -> int:
    """Return the greatest multiple of ``_STEP`` tokens whose caches and largest pass take no more than ``free``."""
    low, high = 0, MAX_DEFAULT_LENGTH // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        length = replace(plan, max_seq_len=middle * _STEP).cache_length
        taken = plan.max_batch_size * token * length + tensors.scratch_bytes(length)
        low, high = (middle, high) if taken <= free else (low, middle - 1)
    return low * _STEP


def _least_memory(plan: BuildPlan) -> _Memory | None:
    """Return the memory of the smallest GPU that the plan is for; None if one of them is unknown."""
    gpus = plan.request.backend.gpus
    if not gpus:
        here = [gpu for gpu in inspect_machine().gpus if sm_name(gpu.sm) in plan.platform.gpus]
        if local := [each for gpu in here if (each := _of_local(gpu))]:
            return min(local, key=lambda each: each.bytes)
    found = [_of_name(name) for name in gpus or plan.platform.gpus]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.bytes) if len(known) == len(found) else None


def _of_name(name: str) -> _Memory | None:
    """Return the memory of a GPU, or of the smallest known one of an architecture."""
    if not is_architecture(name):
        gpu = find_gpu(name)
        return _Memory(gpu.name, gpu.memory_bytes)
    alike = [gpu for gpu in GPUS.values() if gpu.sm == sm_number(name)]
    smallest = min(alike, key=lambda gpu: gpu.memory_bytes, default=None)
    return _Memory(smallest.name, smallest.memory_bytes) if smallest else None


def _of_local(gpu: LocalGpu) -> _Memory | None:
    """Return the memory that the driver reports, such as ``183359 MiB``."""
    number, _, unit = gpu.memory.partition(" ")
    return _Memory(gpu.name, int(number) * _MIB) if number.isdecimal() and unit == "MiB" else None
