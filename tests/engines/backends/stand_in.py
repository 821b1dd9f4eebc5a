"""A stand-in for the module ``tensorrt_rtx``: the calls that the runtime makes, on ONNX Runtime.

A "plan" is a file that names an ONNX graph of the lowering ``tensorrt`` and its profiles; running it runs that graph
through its function bodies, on the memory that was bound by address, when the device gets to it. It refuses what
TensorRT refuses: shapes outside of the profile, addresses that are not aligned, tensors that were not bound.
"""

from __future__ import annotations

import ctypes
import enum
import json
import math
import weakref
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
_FP8 = "tensor(float8e4m3fn)"
VERSION = "0.0.1"


def write_plan(path: Path, graph: Path, profiles: tuple[Profile, ...]) -> None:
    """The file that ``Runtime`` takes for a plan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"graph": str(graph), "profiles": [asdict(profile) for profile in profiles]}))


def quiet_session(graph: Path) -> Any:
    """ONNX Runtime on one thread; it warns of every float16 node that it does not fold."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def stand_in(device: HostDevice) -> Any:
    """What stands for the module; its plans run on ``device``."""

    class Module:
        __version__ = VERSION
        ILogger = _ILogger
        TensorIOMode = _TensorIOMode
        ExecutionContextAllocationStrategy = _Strategy

        @staticmethod
        def Runtime(logger: _ILogger) -> _Runtime:
            return _Runtime(logger, device)

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


class _Runtime:
    def __init__(self, logger: _ILogger, device: HostDevice) -> None:
        self._logger, self._device = logger, device

    def deserialize_cuda_engine(self, content: Any) -> _Engine | None:
        try:
            plan = json.loads(bytes(content))
        except ValueError:
            self._logger.refuse("Error Code 1: the plan's magic tag is wrong")
            return None
        return _Engine(plan, self._logger, self._device)


class _Engine:
    def __init__(self, plan: dict[str, Any], logger: _ILogger, device: HostDevice) -> None:
        self.session = quiet_session(Path(plan["graph"]))
        self.profiles = [Profile(**profile) for profile in plan["profiles"]]
        self.logger, self.device = logger, device
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.outputs = {o.name: o for o in self.session.get_outputs()}
        self.num_io_tensors = len(self.inputs) + len(self.outputs)
        self.num_optimization_profiles = len(self.profiles)
        self.contexts = weakref.WeakSet[_Context]()
        self.runs: list[tuple[str, int]] = []  # of what was enqueued or recorded: the profile and its rows

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> _TensorIOMode:
        return _TensorIOMode.INPUT if name in self.inputs else _TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        shape = {**self.inputs, **self.outputs}[name].shape
        return tuple(dim if isinstance(dim, int) else -1 for dim in shape)

    def get_tensor_dtype(self, name: str) -> SimpleNamespace:
        dtype = DTYPES[{**self.inputs, **self.outputs}[name].type]
        return SimpleNamespace(name=BY_NAME[dtype].tensorrt)

    def get_device_memory_size_for_profile_v2(self, index: int) -> int:
        return 1024 * (index + 1)

    def create_execution_context(self, strategy: _Strategy) -> _Context:
        return _Context(self, strategy)


class _Context:
    def __init__(self, engine: _Engine, strategy: _Strategy) -> None:
        self._engine, self._needs_memory = engine, strategy is _Strategy.USER_MANAGED
        self._profile: Profile | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        engine.contexts.add(self)

    def set_device_memory(self, memory: int, size: int) -> None:
        self._engine.device.view(memory, (size,), np.uint8)
        self._needs_memory = size < 2048

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == self._engine.device.stream
        self._profile = self._engine.profiles[index]
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        declared = self._engine.inputs[name].shape
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
        return [name for name in self._engine.inputs if name not in self._shapes]

    def execute_async_v3(self, stream: int) -> bool:
        engine = self._engine
        assert stream == engine.device.stream
        unbound = {*engine.inputs, *engine.outputs} - set(self._addresses)
        if unbound or self._needs_memory or self._profile is None:
            return engine.logger.refuse(f"not ready: {sorted(unbound)} have no address")
        engine.runs.append((self._profile.name, self._shapes["window_len"][0]))
        inputs = {
            name: engine.device.view(self._addresses[name], self._shapes[name], _numpy(value.type))
            for name, value in engine.inputs.items()
        }
        types, addresses = {name: value.type for name, value in engine.inputs.items()}, dict(self._addresses)

        def run() -> None:
            feeds = {name: _value(x, types[name]) for name, x in inputs.items()}
            for name, value in zip(engine.outputs, engine.session.run_with_ort_values(None, feeds), strict=True):
                array = _array(value)
                np.copyto(engine.device.view(addresses[name], array.shape, array.dtype), array)

        engine.device.enqueue(run)
        return True


def _numpy(dtype: str) -> str:
    return "uint8" if dtype == _FP8 else DTYPES[dtype]


def _value(x: np.ndarray, dtype: str) -> Any:
    """A tensor as ONNX Runtime has it; codes come as bytes."""
    if dtype == _FP8:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(x, 17)
    return onnxruntime.OrtValue.ortvalue_from_numpy(x)


def _array(value: Any) -> np.ndarray:
    """And back: codes as bytes."""
    if value.data_type() != _FP8:
        return np.asarray(value.numpy())
    count = math.prod(value.shape())
    raw = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint8).reshape(value.shape()).copy()
