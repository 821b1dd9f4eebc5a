"""TensorRT plans: deserialized once, with one execution context per shape."""

from __future__ import annotations

import functools
import logging
import mmap
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....plugins.errors import EnvironmentProblem
from ....plugins.number_types import tensorrt_name
from ....plugins.tensorrt import errors as plugin_errors
from ....plugins.tensorrt.import_tensorrt import load
from ...folder.checks import REBUILD, check_runtime
from ...folder.graph_tensors import FoundTensor, Tensors
from ...folder.manifest import Manifest
from ...folder.records import FURTHER, FURTHER_ONE, ONE, PREFILL, VERIFY, Part, Profile
from ..profiling import Profiler
from .device import CapturedGraph, Device

Shape = tuple[int, ...]
_NUMBER = re.compile(r"\d+")
_LOG = logging.getLogger("peagle.tensorrt")


def load_product(name: str, manifest: Manifest) -> Any:
    """Return the module of either product. Raises ``EnvironmentProblem`` if its version differs from the plans'."""
    trt = load(name, parser=False)
    check_runtime(manifest.backend, {name: trt.__version__})
    return trt


class Runtime:
    """Deserializes plans. ``trt`` is the module of either product, with the project's plugins registered.

    With a ``profiler``, passes report the times of their layers.
    """

    def __init__(self, trt: Any, device: Device, profiler: Profiler | None = None) -> None:
        self.trt, self.device, self.profiler = trt, device, profiler
        self._logger = _logger(trt.ILogger)
        self._runtime = trt.Runtime(self._logger)

    def load(self, path: Path, name: str, part: Part) -> Plan:
        """Deserialize the plan of one half.

        Raises ``EnvironmentProblem`` with the logger's messages if TensorRT rejects it.
        """
        self._logger.messages.clear()
        plugin_errors.clear()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise EnvironmentProblem(
                f"TensorRT cannot load {path}",
                why=self._why(),
                fix=f"run `peagle-compile doctor`, or {REBUILD} on this machine",
            )
        self._warn_of_other_gpu(name, part)
        return Plan(self, engine, name, part)

    def _warn_of_other_gpu(self, name: str, part: Part) -> None:
        """Log a warning if the plan was tuned on another GPU model; a partition of the same model does not count."""
        here, tuned_on = self.device.name.partition(" MIG ")[0], part.plan.tuned_on if part.plan else ""
        if tuned_on and tuned_on != here:
            _LOG.warning(
                "the plan of the %s was built on %s, but this GPU is %s. The plan runs, but may be slower than a plan "
                "that was built here, because TensorRT chooses kernels by timing them. To be sure, %s on this machine",
                name, tuned_on, here, REBUILD,
            )  # fmt: skip

    def refused(self, what: str) -> EnvironmentProblem:
        """Return the error for a failed TensorRT call, with the logged reasons, and clear those."""
        problem = EnvironmentProblem(
            what,
            why=self._why(),
            fix="run `peagle-compile doctor`; if the GPU is out of memory, load with a smaller max_batch_size",
        )
        self._logger.messages.clear()  # they do not explain the next failure
        plugin_errors.clear()
        return problem

    def _why(self) -> str:
        """Return the errors of the project's plugins, which TensorRT reports without details, and the logged
        messages."""
        plugin_error = plugin_errors.last()
        reasons = [*([f"{plugin_error.what} ({plugin_error.why})"] if plugin_error else []), *self._logger.messages]
        return " | ".join(reasons) or "TensorRT gave no reason"


@functools.cache
def _logger(base: Any) -> Any:
    """Return the logger of a product, one for all engines: it keeps the last errors, and logs warnings.

    TensorRT's calls fail without a reason. It keeps the first logger of a process, which must outlive that engine.
    """

    class Messages(base):
        def __init__(self) -> None:
            super().__init__()
            self.messages: deque[str] = deque(maxlen=4)

        def log(self, severity: Any, message: str) -> None:
            """Handle a message; TensorRT calls this from any thread."""
            if severity in (base.Severity.ERROR, base.Severity.INTERNAL_ERROR):
                self.messages.append(message.strip())
            elif severity == base.Severity.WARNING:
                _LOG.warning("TensorRT: %s", message.strip())

    return Messages()


class Plan:
    """The deserialized plan of one half, target or drafter."""

    def __init__(self, runtime: Runtime, engine: Any, name: str, part: Part) -> None:
        self.runtime, self.engine, self.name = runtime, engine, name
        self.part = part
        self._layers = None if runtime.profiler is None else _layer_times(runtime.trt)

    def tensors(self) -> tuple[Tensors, Tensors]:
        """Return the inputs and outputs as TensorRT reports them."""
        engine = self.engine
        found: tuple[dict[str, FoundTensor], dict[str, FoundTensor]] = ({}, {})
        for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
            is_input = engine.get_tensor_mode(name) == self.runtime.trt.TensorIOMode.INPUT
            dims = tuple(None if dim < 0 else int(dim) for dim in engine.get_tensor_shape(name))
            found[not is_input][name] = FoundTensor(tensorrt_name(engine.get_tensor_dtype(name)), dims)
        return found

    def scratch_bytes(self) -> int:
        """Device memory that a running context needs, for any profile."""
        profiles = range(self.engine.num_optimization_profiles)
        return max(int(self.engine.get_device_memory_size_for_profile_v2(index)) for index in profiles)

    def context(self, profile: str, scratch: int, scratch_size: int) -> Pass:
        """Create a pass for the profile of that name.

        All passes run in turn on one stream, so they share ``scratch``.
        """
        trt = self.runtime.trt
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):  # TensorRT-RTX compiles kernels at run time
            config = self.engine.create_runtime_config()
            config.set_execution_context_allocation_strategy(strategy)
            if profile != PREFILL:  # a round has one shape and is captured once: wait for the specialized kernel
                eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
                config.dynamic_shapes_kernel_specialization_strategy = eager
            context = self.engine.create_execution_context(runtime_config=config)
        else:
            context = self.engine.create_execution_context(strategy)
        if context is None:
            raise self.runtime.refused(f"TensorRT cannot create an execution context for the {self.name}")
        if scratch_size:
            context.set_device_memory(scratch, scratch_size)
        if self._layers is not None:
            context.profiler = self._layers
        index = profile_index(self.part, profile)
        try:  # the bindings raise where the C++ call returns false
            context.set_optimization_profile_async(index, self.runtime.device.stream)
        except RuntimeError as error:
            raise self.runtime.refused(f"the {self.name} rejects its profile {profile!r}") from error
        return Pass(self, context)

    def report(self) -> None:
        """Give the layers of the pass that has just run to the profiler; TensorRT waits for a pass that it profiles."""
        if self._layers is not None and self.runtime.profiler is not None:
            layers = self._layers.take()
            profiler = self.runtime.profiler
            profiler.add(profiler.current, self.name, sum(ms for *_, ms in layers) / 1000, layers)

    @property
    def is_profiled(self) -> bool:
        """Return True if the layers of passes are timed."""
        return self._layers is not None


def _layer_times(trt: Any) -> Any:
    """Return a TensorRT profiler that keeps name, kind and milliseconds of the layers of a pass."""

    class Layers(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self._times: list[tuple[str, str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._times.append((layer_name, _NUMBER.sub("#", layer_name), float(ms)))

        def take(self) -> list[tuple[str, str, float]]:
            times, self._times = self._times, []
            return times

    return Layers()


def profile_index(part: Part, name: str) -> int:
    """Return the index of the profile of that name in the plan."""
    names = [profile.name for profile in _profiles(part)]
    if name not in names:
        raise EnvironmentProblem(
            f"a plan has no profile {name!r}", why=f"the profiles of the plan are {', '.join(names)}", fix=REBUILD
        )
    return names.index(name)


def round_profile(part: Part, rows: int) -> str:
    """Return the name of the profile for a round of ``rows`` rows; plans for a single row have one for all."""
    return ONE if rows == 1 and any(profile.name == ONE for profile in _profiles(part)) else VERIFY


def further_profile(part: Part, rows: int) -> str:
    """Return the name of the profile for a further pass of an autoregressive drafter over ``rows`` rows."""
    return FURTHER_ONE if rows == 1 and any(profile.name == FURTHER_ONE for profile in _profiles(part)) else FURTHER


def profile_of(part: Part, name: str) -> Profile:
    """Return the profile of that name, with the sizes that it covers."""
    return _profiles(part)[profile_index(part, name)]


def _profiles(part: Part) -> tuple[Profile, ...]:
    if part.plan is None:
        raise EnvironmentProblem(f"the manifest has no plan record for {part.file}", fix=REBUILD)
    return part.plan.profiles


class Pass:
    """One execution context: bind it once, then enqueue it any number of times.

    A captured pass must not be bound again.
    """

    def __init__(self, plan: Plan, context: Any) -> None:
        self._plan, self._context = plan, context
        self._graph: CapturedGraph | None = None  # of this pass alone
        self._has_run = False

    def bind(self, shapes: Mapping[str, Shape], addresses: Mapping[str, int]) -> None:
        """Set the shapes of all inputs and the addresses of all tensors; other entries are ignored."""
        refused = self._plan.runtime.refused
        part = self._plan.part
        for name in part.inputs:
            if not self._context.set_input_shape(name, shapes[name]):
                raise refused(f"the {self._plan.name} rejects {name} of shape {shapes[name]}")
        for name in (*part.inputs, *part.outputs):
            if not self._context.set_tensor_address(name, addresses[name]):
                raise refused(f"the {self._plan.name} rejects the address of {name}")
        try:
            unbound = self._context.infer_shapes()
        except RuntimeError as error:
            raise refused(f"the {self._plan.name} rejects these shapes") from error
        if unbound:
            raise refused(f"the {self._plan.name} has unbound inputs: {', '.join(unbound)}")

    def enqueue(self) -> None:
        """Enqueue one run after all previously enqueued work."""
        if not self._context.execute_async_v3(self._plan.runtime.device.stream):
            raise self._plan.runtime.refused(f"cannot run the {self._plan.name}")
        self._plan.report()

    def replay(self) -> None:
        """Enqueue one run, from the second time on as a CUDA graph of its own if that supports it.

        For rounds that are not captured themselves.
        """
        if self._graph is None and self._has_run and self.is_capturable:
            self._graph = self._plan.runtime.device.capture(self.enqueue)
        if self._graph is None:
            self.enqueue()
            self._has_run = True
        else:
            self._graph.replay()

    def release(self) -> None:
        """Drop the pass's own graph, before the context that it replays."""
        self._graph = None

    @property
    def is_capturable(self) -> bool:
        """Return True if a CUDA graph can capture the pass.

        Only TensorRT-RTX reports this; for TensorRT it is always true. None can if its layers are timed.
        """
        if self._plan.is_profiled:
            return False
        ask = getattr(self._context, "is_stream_capturable", None)
        return ask is None or bool(ask(self._plan.runtime.device.stream))
