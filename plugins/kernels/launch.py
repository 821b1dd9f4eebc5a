"""The launcher of an op's kernel on a stream. Nothing is allocated on the device, so a CUDA graph may capture it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BuildError, EnvironmentProblem
from ..op_spec import OpSpec, evaluate_dim
from .sources import entries, kernel_of

_INT32 = range(-(2**31), 2**31)
_FIRST_WITH_CLUSTERS = 90


@dataclass(frozen=True)
class Geometry:
    """A launch's geometry: ``grid`` blocks of ``block`` threads, ``cluster`` neighbours together; 0 is no launch."""

    grid: int
    block: int
    cluster: int


def geometry(op: OpSpec, sm: int, dims: Mapping[str, int]) -> Geometry:
    """The launch geometry for a GPU and the sizes of the op's dimensions. ``BuildError`` for a negative size."""
    kernel = kernel_of(op)
    cluster = _cluster(op, sm)
    blocks = int(evaluate_dim(kernel.blocks, dims))
    if blocks < 0 or blocks * cluster not in _INT32:
        raise BuildError(f"{op.name}: cannot launch {blocks} blocks", why=f"{kernel.blocks} of {dict(dims)}")
    return Geometry(blocks * cluster, kernel.threads, cluster)


def _cluster(op: OpSpec, sm: int) -> int:
    return kernel_of(op).cluster if sm >= _FIRST_WITH_CLUSTERS else 1


def scalars(op: OpSpec, dims: Mapping[str, int], attributes: Mapping[str, int]) -> tuple[int, ...]:
    """The kernel's int parameters in order. ``BuildError`` names one that is missing or no int32."""
    values = []
    for name in kernel_of(op).scalars:
        value = dims.get(name, attributes.get(name))
        if type(value) is not int or value not in _INT32:
            raise BuildError(f"{op.name}: {name} must be a 32-bit whole number, not {value!r}")
        values.append(value)
    return tuple(values)


def current_sm() -> int:
    """Compute capability of the current context's GPU (90 is 9.0). ``EnvironmentProblem`` without one."""
    driver = load_driver()
    device = _checked(driver, driver.cuCtxGetDevice(), "there is no current CUDA context")
    attribute = driver.CUdevice_attribute
    major, minor = (
        _checked(driver, driver.cuDeviceGetAttribute(which, device), "the GPU does not tell its compute capability")
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return int(major) * 10 + int(minor)


def load_driver() -> Any:
    """The module ``cuda.bindings.driver``, initialised. ``EnvironmentProblem`` without it, a driver or a GPU."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
    except Exception as error:  # whatever the loader raises: its types differ between releases
        raise EnvironmentProblem(
            "CUDA kernels cannot be launched on this machine",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="install an NVIDIA driver, and cuda-bindings (pip install 'cuda-bindings>=13,<14')",
        ) from error
    _checked(driver, (status,), "CUDA does not start")
    return driver


class Launcher:
    """The kernel of one op, loaded for one GPU generation, in the process that made it.

    Make it while a context of that GPU is current: that loads the code, so that no launch has to, and checks that its
    entry points take the parameters of the spec. The code stays loaded until the process ends: a CUDA graph that
    captured a launch may outlive the launcher.
    """

    def __init__(self, op: OpSpec, sm: int, code: bytes) -> None:
        """``EnvironmentProblem`` when the driver refuses the code, ``BuildError`` when it is not the op's kernel."""
        self.op, self.sm = op, sm
        self._driver = driver = load_driver()
        self._code = code  # the driver may read from it for as long as the library lives
        what = f"cannot load the kernel of {op.name} for sm_{sm}"
        library = driver.cuLibraryLoadData(code, [], [], 0, [], [], 0)
        self._library = _checked(driver, library, what)
        self._entries = {name: self._entry(name, what) for name in entries(op)}

    def _entry(self, name: str, what: str) -> _Entry:
        driver = self._driver
        kernel = _checked(driver, driver.cuLibraryGetKernel(self._library, name.encode()), f"{what}: entry {name}")
        # Loads it into the current context now: the first launch may be under capture, where loading is not allowed.
        function = _checked(driver, driver.cuKernelGetFunction(kernel), what)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
        width = int(_checked(driver, driver.cuFuncGetAttribute(attribute, function), what))
        cluster = _cluster(self.op, self.sm)
        if width and width != cluster:
            raise BuildError(f"{what}: it is compiled for clusters of {width} blocks, its spec says {cluster}")
        sizes = self._parameter_sizes(kernel, what)
        spec_sizes = self._expected_sizes()
        if sizes != spec_sizes:
            raise BuildError(f"{what}: its parameters have {sizes} bytes, its spec asks for {spec_sizes}")
        return _Entry(kernel, compiled_cluster=bool(width))

    def _expected_sizes(self) -> list[int]:
        pointers = ([8] * len(self.op.inputs), [8] * len(self.op.outputs))
        return [*pointers[0], *[4] * len(kernel_of(self.op).scalars), *pointers[1]]

    def _parameter_sizes(self, kernel: Any, what: str) -> list[int]:
        sizes: list[int] = []
        while True:
            status, *values = self._driver.cuKernelGetParamInfo(kernel, len(sizes))
            if status == self._driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # one past the last
                return sizes
            _checked(self._driver, (status,), what)
            sizes.append(int(values[1]))

    def launch(
        self,
        stream: int,
        pointers: Sequence[int],
        dims: Mapping[str, int],
        attributes: Mapping[str, int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Enqueue one launch on the CUDA stream of that handle; returns without waiting.

        ``pointers`` are device addresses of the inputs and then the outputs, in the order of the spec. ``dtype`` is
        that of the ``typed_by`` input. Raises ``BuildError`` for arguments that do not fit the spec, and
        ``EnvironmentProblem`` when the driver refuses the launch.
        """
        spec = kernel_of(self.op)
        name = spec.entry if spec.typed_by is None else f"{spec.entry}_{dtype}"
        if name not in self._entries:
            raise BuildError(f"{self.op.name} has no kernel for {dtype}", why=f"it has {', '.join(self._entries)}")
        count = len(self.op.inputs) + len(self.op.outputs)
        if len(pointers) != count:
            raise BuildError(f"{self.op.name} takes {count} pointers, not {len(pointers)}")
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
        # The driver copies the parameters before it returns, so these may live on this stack frame.
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
    """One entry point: its handle, good in every context, and whether its cluster size is compiled in."""

    kernel: Any
    compiled_cluster: bool


def _checked(driver: Any, answer: tuple[Any, ...], what: str) -> Any:
    """The value a driver call returned; a failure becomes ``EnvironmentProblem``."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        words = text.decode() if text else "unknown error"
        raise EnvironmentProblem(what, why=f"{status.name}: {words}", fix="see `peagle-compile doctor`")
    return values[0] if values else None
