"""A stand-in for the module ``tensorrt_rtx``: the calls that the runtime makes, with ONNX Runtime or another library.

A "plan" is a file that names an ONNX graph of the lowering ``tensorrt`` and its profiles; running it runs that graph on
the memory that was bound by address, when the device gets to it. It refuses what TensorRT refuses: shapes outside of
the profile, addresses that are not aligned, tensors that were not bound.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import json
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnxruntime

from peagle.engines.backends.tensorrt.device import ALIGNMENT
from peagle.engines.folder.records import Profile
from peagle.plugins.graph_contract import PROFILE_FIELDS
from peagle.plugins.number_types import BY_NAME
from tests.engines.backends.host_device import HostDevice

DTYPES = {
    "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float)": "float32", "tensor(float16)": "float16",
    "tensor(float8e4m3fn)": "float8e4m3fn",
}  # fmt: skip
_FP8 = "float8e4m3fn"
VERSION = "0.0.1"
LAYER_TIMES = (("layers.0.mlp", 2.0), ("layers.1.mlp", 4.0), ("head", 1.0))  # milliseconds, of any pass
Run = Callable[[Mapping[str, tuple[int, ...]], Mapping[str, int]], None]


class GraphTensor(NamedTuple):
    """An input or output: its type, and its sizes or their names."""

    dtype: str
    shape: tuple[int | str, ...]


class LoadedGraph(Protocol):
    """The graph of a plan, as the library that runs it has loaded it."""

    inputs: Mapping[str, GraphTensor]
    outputs: Mapping[str, GraphTensor]

    def context(self) -> Run:
        """Return what enqueues a run over inputs of these shapes, with all tensors at these addresses."""
        ...


def write_plan(path: Path, graph: Path, profiles: tuple[Profile, ...]) -> None:
    """The file that ``Runtime`` takes for a plan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"graph": str(graph), "profiles": [asdict(profile) for profile in profiles]}))


@functools.lru_cache(maxsize=8)
def quiet_session(graph: Path) -> Any:
    """One session of a graph, on one thread, for all plans of it; it warns of float16 nodes that it does not fold."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


Load = Callable[[Path, Any], LoadedGraph]  # from its file, for a device


class OnnxRuntimeGraph:
    """A graph that ONNX Runtime runs, its ops of this project through their function bodies."""

    def __init__(self, path: Path, device: HostDevice) -> None:
        self._session, self._device = quiet_session(path), device
        self.inputs: Mapping[str, GraphTensor] = {value.name: _tensor(value) for value in self._session.get_inputs()}
        self.outputs: Mapping[str, GraphTensor] = {value.name: _tensor(value) for value in self._session.get_outputs()}

    def context(self) -> Run:
        return self._enqueue

    def _enqueue(self, shapes: Mapping[str, tuple[int, ...]], addresses: Mapping[str, int]) -> None:
        inputs = {
            name: self._device.view(addresses[name], shapes[name], "uint8" if tensor.dtype == _FP8 else tensor.dtype)
            for name, tensor in self.inputs.items()
        }

        def run() -> None:
            feeds = {name: _value(x, self.inputs[name].dtype) for name, x in inputs.items()}
            for name, value in zip(self.outputs, self._session.run_with_ort_values(None, feeds), strict=True):
                array = _array(value)
                np.copyto(self._device.view(addresses[name], array.shape, array.dtype), array)

        self._device.enqueue(run)


def _tensor(value: Any) -> GraphTensor:
    return GraphTensor(DTYPES[value.type], tuple(value.shape))


def stand_in(device: Any, load: Load = OnnxRuntimeGraph) -> Any:
    """Return the stand-in for the module; its plans run on ``device``, as ``load`` loads their graphs."""

    class Module:
        __version__ = VERSION
        ILogger = _ILogger
        IProfiler = _IProfiler
        TensorIOMode = _TensorIOMode
        ExecutionContextAllocationStrategy = _Strategy

        @staticmethod
        def Runtime(logger: _ILogger) -> _Runtime:
            return _Runtime(logger, device, load)

    return Module


class _TensorIOMode(enum.Enum):
    INPUT, OUTPUT = 1, 2


class _Strategy(enum.Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class _ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR, ERROR, WARNING = range(3)

    def log(self, severity: Severity, message: str) -> None:
        raise NotImplementedError

    def refuse(self, message: str) -> bool:
        self.log(self.Severity.ERROR, message)
        return False


class _IProfiler:
    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError


class _Runtime:
    def __init__(self, logger: _ILogger, device: Any, load: Load) -> None:
        self._logger, self._device, self._load = logger, device, load

    def deserialize_cuda_engine(self, content: Any) -> _Engine | None:
        try:
            plan = json.loads(bytes(content))
        except ValueError:
            self._logger.refuse("Error Code 1: the plan's magic tag is wrong")
            return None
        profiles = [Profile(**profile) for profile in plan["profiles"]]
        return _Engine(self._load(Path(plan["graph"]), self._device), profiles, self._logger, self._device)


class _Engine:
    def __init__(self, graph: LoadedGraph, profiles: list[Profile], logger: _ILogger, device: Any) -> None:
        self.graph, self.profiles, self.logger, self.device = graph, profiles, logger, device
        self.tensors = {**graph.inputs, **graph.outputs}
        self.num_io_tensors, self.num_optimization_profiles = len(self.tensors), len(profiles)
        self.contexts = weakref.WeakSet[_Context]()
        self.runs: list[tuple[str, int]] = []  # of what was enqueued or recorded: the profile and its rows

    def get_tensor_name(self, index: int) -> str:
        return [*self.tensors][index]

    def get_tensor_mode(self, name: str) -> _TensorIOMode:
        return _TensorIOMode.INPUT if name in self.graph.inputs else _TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(dim if isinstance(dim, int) else -1 for dim in self.tensors[name].shape)

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=BY_NAME[self.tensors[name].dtype].tensorrt)

    def get_device_memory_size_for_profile_v2(self, index: int) -> int:
        return 1024 * (index + 1)

    def create_execution_context(self, strategy: _Strategy) -> _Context:
        return _Context(self, strategy)


class _Context:
    def __init__(self, engine: _Engine, strategy: _Strategy) -> None:
        self._engine, self._run = engine, engine.graph.context()
        self._needs_memory = strategy is _Strategy.USER_MANAGED
        self.profiler: _IProfiler | None = None
        self._profile: Profile | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        engine.contexts.add(self)

    def set_device_memory(self, memory: int, size: int) -> None:
        self._engine.device.view(memory, (size,), np.uint8)
        self._needs_memory = size < 2048

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == self._engine.device.stream
        if index >= len(self._engine.profiles):
            self._engine.logger.refuse(f"profile {index} of {len(self._engine.profiles)} does not exist")
            raise RuntimeError("Error in set optimization profile async.")  # as the bindings do
        self._profile = self._engine.profiles[index]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        declared = self._engine.tensors[name].shape
        if len(shape) != len(declared):
            return self._engine.logger.refuse(f"{name} has rank {len(declared)}")
        for dim, size in zip(declared, shape, strict=True):
            least, most = (dim, dim) if isinstance(dim, int) else self._range(dim)
            if not least <= size <= most:
                return self._engine.logger.refuse(f"{name}: {dim} = {size} is outside of {least}..{most}")
        self._shapes[name] = shape
        return True

    def _range(self, dim: str) -> tuple[int, int]:
        assert self._profile is not None
        sizes = getattr(self._profile, PROFILE_FIELDS[dim])
        return sizes[0], sizes[-1]

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if memory == 0 or memory % ALIGNMENT:
            return self._engine.logger.refuse(f"{name}: address {memory} is not aligned")
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine.graph.inputs if name not in self._shapes]

    def execute_async_v3(self, stream: int) -> bool:
        engine = self._engine
        assert stream == engine.device.stream
        unbound = set(engine.tensors) - set(self._addresses)
        if unbound or self._needs_memory or self._profile is None:
            return engine.logger.refuse(f"not ready: {sorted(unbound)} have no address")
        engine.runs.append((self._profile.name, self._shapes["window_len"][0]))
        self._run(dict(self._shapes), dict(self._addresses))
        if self.profiler is not None:
            engine.device.record().wait()  # like TensorRT; not possible in a captured pass
            for name, milliseconds in LAYER_TIMES:
                self.profiler.report_layer_time(name, milliseconds)
        return True


def _value(x: np.ndarray, dtype: str) -> Any:
    """A tensor as ONNX Runtime has it; codes come as bytes."""
    if dtype == _FP8:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x, 17)
    return onnxruntime.OrtValue.ortvalue_from_numpy(x)


def _array(value: Any) -> np.ndarray:
    """And back: codes as bytes."""
    if DTYPES[value.data_type()] != _FP8:
        return np.asarray(value.numpy())
    count = math.prod(value.shape())
    raw = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint8).reshape(value.shape()).copy()
