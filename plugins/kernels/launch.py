"""Launch an op's kernel on a stream. No device memory is allocated, so a CUDA graph can capture the launch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import REPORT, BuildError, EnvironmentProblem
from ..op_spec import OpSpec
from .pack import Pack, obtain
from .sources import entries, kernel_of

_INT32 = range(-(2**31), 2**31)
_AGAIN = "rebuild the engine; in a checkout, run `make kernels`"
_FIRST_WITH_CLUSTERS = 90


@dataclass(frozen=True)
class Geometry:
    """Launch geometry: ``grid`` blocks of ``block`` threads, ``cluster`` blocks per cluster; grid 0 means no launch."""

    grid: int
    block: int
    cluster: int


def geometry(op: OpSpec, sm: int, dims: Mapping[str, int]) -> Geometry:
    """Return the launch geometry for a GPU and the op's dimension sizes. Raises ``BuildError`` for a negative size."""
    kernel = kernel_of(op)
    cluster = _cluster(op, sm)
    blocks = kernel.num_blocks(dims)
    if blocks < 0 or blocks * cluster not in _INT32:
        raise BuildError(
            f"{op.name}: cannot launch {blocks} blocks",
            why=f"their number is computed as {kernel.blocks}{f' per {kernel.per}' if kernel.per else ''}, with "
            + ", ".join(f"{name} = {size}" for name, size in dims.items()),
            fix=REPORT,
        )
    return Geometry(blocks * cluster, kernel.threads, cluster)


def _cluster(op: OpSpec, sm: int) -> int:
    return kernel_of(op).cluster if sm >= _FIRST_WITH_CLUSTERS else 1


def scalars(op: OpSpec, dims: Mapping[str, int], attributes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the kernel's int parameters in order. Raises ``BuildError`` naming one that is missing or not an int32."""
    values = []
    for name in kernel_of(op).scalars:
        value = dims.get(name, attributes.get(name))
        if type(value) is not int or value not in _INT32:
            raise BuildError(f"{op.name}: {name} must be a 32-bit integer, not {value!r}", fix=REPORT)
        values.append(value)
    return tuple(values)


def current_sm() -> int:
    """Return the compute capability of the current context's GPU (90 is 9.0).

    Raises ``EnvironmentProblem`` without one.
    """
    driver = load_driver()
    device = _checked(driver, driver.cuCtxGetDevice(), "there is no current CUDA context")
    attribute = driver.CUdevice_attribute
    major, minor = (
        _checked(driver, driver.cuDeviceGetAttribute(which, device), "cannot read the compute capability of the GPU")
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return int(major) * 10 + int(minor)


def load_driver() -> Any:
    """Return ``cuda.bindings.driver``, initialized. Raises ``EnvironmentProblem`` without it, a driver or a GPU."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
    except Exception as error:  # the loader's exception types differ between releases
        raise EnvironmentProblem(
            "CUDA kernels cannot be launched on this machine",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="install an NVIDIA driver, and run `pip install 'cuda-bindings>=13,<14'`",
        ) from error
    _checked(driver, (status,), "CUDA failed to initialize")
    return driver


_lock = threading.Lock()
_loaded: dict[tuple[int, str], Launcher] = {}  # by CUDA context and op


def launcher_for(op: OpSpec, packs: Sequence[Pack] = ()) -> Launcher:
    """Return the op's kernel, loaded once per process for the current CUDA context; ``packs`` are as in ``obtain``.

    TensorRT attaches each plugin of a plan to each execution context, which is thousands of times for a large model.
    Raises what ``current_sm``, ``obtain`` and ``Launcher`` raise.
    """
    driver = load_driver()
    context = _checked(driver, driver.cuCtxGetCurrent(), "there is no current CUDA context")
    key = int(context), op.name
    with _lock:
        if key not in _loaded:
            sm = current_sm()
            _loaded[key] = Launcher(op, sm, obtain(op, sm, packs).code)
        return _loaded[key]


class Launcher:
    """The kernel of one op, loaded for one GPU generation in the process that created it.

    Create it while a context of that GPU is current: this loads the code, so that no launch has to, and checks the
    entry points' parameters against the spec. The code stays loaded until the process ends, because a CUDA graph that
    captured a launch may outlive the launcher.
    """

    def __init__(self, op: OpSpec, sm: int, code: bytes) -> None:
        """Raises ``EnvironmentProblem`` if the driver rejects the code, ``BuildError`` if it is another op's kernel."""
        self.op, self.sm = op, sm
        self._driver = driver = load_driver()
        self._code = code  # the driver may read from it while the library is loaded
        message = f"cannot load the kernel of {op.name} for sm_{sm}"
        library = driver.cuLibraryLoadData(code, [], [], 0, [], [], 0)
        self._library = _checked(driver, library, message)
        self._entries = {name: self._entry(name, message) for name in entries(op)}

    def _entry(self, name: str, message: str) -> _Entry:
        driver = self._driver
        kernel = _checked(driver, driver.cuLibraryGetKernel(self._library, name.encode()), f"{message}: entry {name}")
        # Load it into the current context now: the first launch may be under graph capture, where loading is not
        # allowed.
        function = _checked(driver, driver.cuKernelGetFunction(kernel), message)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        width = int(_checked(driver, driver.cuFuncGetAttribute(attribute, function), message))
        cluster = _cluster(self.op, self.sm)
        if width and width != cluster:
            raise BuildError(
                f"{message}: the kernel was compiled for clusters of {width} blocks, but its spec requires {cluster}",
                fix=_AGAIN,
            )
        sizes = self._parameter_sizes(kernel, message)
        spec_sizes = self._expected_sizes()
        if sizes != spec_sizes:
            raise BuildError(
                f"{message}: the kernel's parameters have {sizes} bytes, but its spec requires {spec_sizes}", fix=_AGAIN
            )
        return _Entry(kernel, compiled_cluster=bool(width))

    def _expected_sizes(self) -> list[int]:
        pointers = ([8] * len(self.op.inputs), [8] * len(self.op.outputs))
        return [*pointers[0], *[4] * len(kernel_of(self.op).scalars), *pointers[1]]

    def _parameter_sizes(self, kernel: Any, message: str) -> list[int]:
        sizes: list[int] = []
        while True:
            status, *values = self._driver.cuKernelGetParamInfo(kernel, len(sizes))
            if status == self._driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # one past the last parameter
                return sizes
            _checked(self._driver, (status,), message)
            sizes.append(int(values[1]))

    def launch(
        self,
        stream: int,
        pointers: Sequence[int],
        dims: Mapping[str, int],
        attributes: Mapping[str, int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Enqueue one launch on the CUDA stream with that handle; return without waiting.

        ``pointers`` are the device addresses of the inputs, then of the outputs, in spec order. ``dtype`` is that of
        the ``typed_by`` input. Raises ``BuildError`` for arguments that do not match the spec, and
        ``EnvironmentProblem`` if the driver rejects the launch.
        """
        spec = kernel_of(self.op)
        name = spec.entry if spec.typed_by is None else f"{spec.entry}_{dtype}"
        if name not in self._entries:
            raise BuildError(
                f"{self.op.name} has no kernel for {dtype}",
                why=f"the op's kernels are {', '.join(self._entries)}",
                fix=REPORT,
            )
        count = len(self.op.inputs) + len(self.op.outputs)
        if len(pointers) != count:
            raise BuildError(f"{self.op.name} takes {count} pointers, not {len(pointers)}", fix=REPORT)
        shape = geometry(self.op, self.sm, dims)
        values = scalars(self.op, dims, attributes or {})
        if shape.grid == 0:
            return
        split = len(self.op.inputs)
        arguments = [
            *map(ctypes.c_uint64, pointers[:split]),
            *map(ctypes.c_int32, values),
            *map(ctypes.c_uint64, pointers[split:]),
        ]
        # The driver copies the parameters before it returns, so they may live on this stack frame.
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._enqueue(self._entries[name], shape, stream, ctypes.addressof(addresses))

    def _enqueue(self, entry: _Entry, shape: Geometry, stream: int, parameters: int) -> None:
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block, 1, 1
        config.sharedMemBytes = 0
        config.hStream = driver.CUstream(stream)
        if shape.cluster > 1 and not entry.compiled_cluster:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dim = attribute.value.clusterDim
            dim.x, dim.y, dim.z = shape.cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        kernel = driver.CUfunction(int(entry.kernel))
        _checked(driver, driver.cuLaunchKernelEx(config, kernel, parameters, 0), f"{self.op.name} was not launched")


@dataclass(frozen=True)
class _Entry:
    """One entry point: its handle, valid in every context, and whether its cluster size is compiled in."""

    kernel: Any
    compiled_cluster: bool


def _checked(driver: Any, result: tuple[Any, ...], message: str) -> Any:
    """Return the value of a driver call; a failure raises ``EnvironmentProblem``."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        words = text.decode() if text else "unknown error"
        raise EnvironmentProblem(
            message, why=f"{status.name}: {words}", fix="run `peagle-compile doctor` to check the driver and GPU"
        )
    return values[0] if values else None
