"""TensorRT plans: deserialised once, then an execution context for each shape that runs."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....plugins.errors import EnvironmentProblem
from ....plugins.number_types import tensorrt_name
from ....plugins.tensorrt import errors as plugin_errors
from ....plugins.tensorrt.import_tensorrt import Product, load
from ...folder.checks import REBUILD, check_runtime
from ...folder.graph_tensors import FoundTensor, Tensors
from ...folder.manifest import Manifest
from ...folder.records import ONE, PREFILL, VERIFY, Part, Profile
from .device import Device

Shape = tuple[int, ...]


def load_product(name: Product, manifest: Manifest) -> Any:
    """The module of either product. Raises ``EnvironmentProblem`` for another version than the plans' own."""
    trt = load(name, parser=False)
    check_runtime(manifest.backend, {name: trt.__version__})
    return trt


class Runtime:
    """Deserialises plans. ``trt`` is the module of either product, our plugins registered."""

    def __init__(self, trt: Any, device: Device) -> None:
        self.trt, self.device = trt, device
        self._logger = _logger(trt)
        self._runtime = trt.Runtime(self._logger)

    def load(self, path: Path, name: str, part: Part) -> Plan:
        """Deserialise the plan of one half.

        Raises ``EnvironmentProblem`` when TensorRT refuses it, with the logger's words.
        """
        self._logger.messages.clear()
        plugin_errors.clear()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise EnvironmentProblem(
                f"{path} does not load",
                why=self._why(),
                fix=f"see `peagle-compile doctor`, or {REBUILD} on this machine",
            )
        return Plan(self, engine, name, part)

    def refused(self, what: str) -> EnvironmentProblem:
        """The error for a call that TensorRT said no to, with its reasons, which are forgotten."""
        problem = EnvironmentProblem(
            what,
            why=self._why(),
            fix="see `peagle-compile doctor`; if the GPU is out of memory, load with a smaller max_batch_size",
        )
        self._logger.messages.clear()  # they are not the reason of what may fail next
        plugin_errors.clear()
        return problem

    def _why(self) -> str:
        """What our own plugins said, which TensorRT only reports as a failure, and what its logger was told."""
        ours = plugin_errors.last()
        reasons = [*([f"{ours.what} ({ours.why})"] if ours else []), *self._logger.messages]
        return " | ".join(reasons) or "TensorRT does not say why"


def _logger(trt: Any) -> Any:
    """A logger that keeps the last complaints: TensorRT returns None or False and tells the reason nowhere else."""

    class Messages(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()
            self.messages: deque[str] = deque(maxlen=4)

        def log(self, severity: Any, message: str) -> None:
            """Called by TensorRT, from any thread."""
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.messages.append(message.strip())

    return Messages()


class Plan:
    """The plan of one half, target or drafter, deserialised."""

    def __init__(self, runtime: Runtime, engine: Any, name: str, part: Part) -> None:
        self.runtime, self.engine, self.name = runtime, engine, name
        self.part = part

    def tensors(self) -> tuple[Tensors, Tensors]:
        """The inputs and outputs, as TensorRT knows them."""
        engine = self.engine
        found: tuple[dict[str, FoundTensor], dict[str, FoundTensor]] = ({}, {})
        for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
            is_input = engine.get_tensor_mode(name) == self.runtime.trt.TensorIOMode.INPUT
            dims = tuple(None if dim < 0 else int(dim) for dim in engine.get_tensor_shape(name))
            found[not is_input][name] = FoundTensor(tensorrt_name(engine.get_tensor_dtype(name)), dims)
        return found

    def scratch_bytes(self) -> int:
        """Device memory that a context needs while it runs, whatever the profile."""
        profiles = range(self.engine.num_optimization_profiles)
        return max(int(self.engine.get_device_memory_size_for_profile_v2(index)) for index in profiles)

    def context(self, profile: str, scratch: int, scratch_size: int) -> Pass:
        """Make a pass at the profile of that name; all run in turn on one stream, so they share ``scratch``."""
        trt = self.runtime.trt
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):  # TensorRT-RTX compiles kernels as it runs
            config = self.engine.create_runtime_config()
            config.set_execution_context_allocation_strategy(strategy)
            if profile != PREFILL:  # one shape, captured once: it must be the right kernel from the start
                eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
                config.dynamic_shapes_kernel_specialization_strategy = eager
            context = self.engine.create_execution_context(runtime_config=config)
        else:
            context = self.engine.create_execution_context(strategy)
        if context is None:
            raise self.runtime.refused(f"TensorRT makes no context for the {self.name}")
        if scratch_size:
            context.set_device_memory(scratch, scratch_size)
        index = profile_index(self.part, profile)
        if not context.set_optimization_profile_async(index, self.runtime.device.stream):
            raise self.runtime.refused(f"the {self.name} does not take its profile {profile!r}")
        return Pass(self, context)


def profile_index(part: Part, name: str) -> int:
    """The index of the profile of that name in the plan."""
    names = [profile.name for profile in _profiles(part)]
    if name not in names:
        raise EnvironmentProblem(f"a plan has no profile {name!r}", why=f"it has {', '.join(names)}", fix=REBUILD)
    return names.index(name)


def round_profile(part: Part, rows: int) -> str:
    """The name of the profile for a round of so many rows; plans of earlier builds have one for all."""
    return ONE if rows == 1 and any(profile.name == ONE for profile in _profiles(part)) else VERIFY


def profile_of(part: Part, name: str) -> Profile:
    """The profile of that name: the sizes that it covers."""
    return _profiles(part)[profile_index(part, name)]


def _profiles(part: Part) -> tuple[Profile, ...]:
    if part.plan is None:
        raise EnvironmentProblem(f"{part.file} is not described as a plan", fix=REBUILD)
    return part.plan.profiles


class Pass:
    """One execution context: bind, then enqueue as often as wished. A captured pass is not bound again."""

    def __init__(self, plan: Plan, context: Any) -> None:
        self._plan, self._context = plan, context

    def bind(self, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        """Set the shapes of all inputs and the addresses of all tensors; other entries are ignored."""
        refused = self._plan.runtime.refused
        part = self._plan.part
        for name in part.inputs:
            if not self._context.set_input_shape(name, shapes[name]):
                raise refused(f"the {self._plan.name} does not take {name} of shape {shapes[name]}")
        for name in (*part.inputs, *part.outputs):
            if not self._context.set_tensor_address(name, addresses[name]):
                raise refused(f"the {self._plan.name} does not take the memory of {name}")
        try:
            unbound = self._context.infer_shapes()
        except RuntimeError as error:
            raise refused(f"the {self._plan.name} does not take these shapes") from error
        if unbound:
            raise refused(f"the {self._plan.name} still wants {', '.join(unbound)}")

    def enqueue(self) -> None:
        """Enqueue one run, after everything that was enqueued before."""
        if not self._context.execute_async_v3(self._plan.runtime.device.stream):
            raise self._plan.runtime.refused(f"the {self._plan.name} does not run")

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold it. TensorRT before its RTX edition does not tell, and then it can."""
        ask = getattr(self._context, "is_stream_capturable", None)
        return ask is None or bool(ask(self._plan.runtime.device.stream))
