"""The GPU and its single stream, behind the ``Device`` protocol. No other file of the engines uses CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ....plugins.errors import EnvironmentProblem, PeagleError
from ....plugins.op_spec import OpSpec
from ....plugins.optional_packages import install
from ....plugins.tensorrt.products import PRODUCTS

if TYPE_CHECKING:
    from ....plugins.kernels.launch import Launcher
    from ....plugins.kernels.pack import Pack

ALIGNMENT = 256  # bytes; TensorRT requires it of every address


class Event(Protocol):
    """A point in the stream."""

    def wait(self) -> None:
        """Block until the device has passed this point."""
        ...


class CapturedGraph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Enqueue the recorded work."""
        ...


@dataclass(frozen=True)
class Box:
    """Rows of bytes in planes: from row to row ``pitch`` bytes, from plane to plane ``rows`` rows."""

    address: int
    pitch: int
    rows: int


class Device(Protocol):
    """One GPU: memory that is freed with it, and work enqueued in order on one stream. No call waits for the work.

    ``stream`` is the handle that TensorRT enqueues on, ``name`` the name of the GPU.
    """

    stream: int
    name: str

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` bytes of zeroed device memory, aligned to ``ALIGNMENT``."""
        ...

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return uninitialized page-locked host memory, for asynchronous copies."""
        ...

    def lease(self) -> AbstractContextManager[list[int]]:
        """Return a list that gets the addresses of all memory allocated inside of the block, for ``free``.

        If the block raises, they are freed.
        """
        ...

    def free(self, addresses: Sequence[int]) -> None:
        """Free memory, by the addresses of whole allocations, after all enqueued work. None of it may be captured."""
        ...

    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy pinned, contiguous ``source`` to the device. It must not change until the copy has run."""
        ...

    def download(self, target: np.ndarray, address: int) -> None:
        """Copy to pinned, contiguous ``target``. It is valid when an event recorded afterwards has passed."""
        ...

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes from one device address to another."""
        ...

    def copy_box(self, target: Box, source: Box, width: int, height: int, depth: int) -> None:
        """Copy ``depth`` planes of ``height`` rows of ``width`` bytes; either side may be pinned host memory."""
        ...

    def launch(
        self, op: OpSpec, pointers: Sequence[int], dims: Mapping[str, int], attributes: Mapping[str, int]
    ) -> None:
        """Launch the kernel of an op that is the same for every dtype; see ``plugins.kernels.launch``."""
        ...

    def record(self) -> Event:
        """Return an event after all enqueued work."""
        ...

    def capture(self, steps: Callable[[], None]) -> CapturedGraph:
        """Record the work that ``steps`` enqueues instead of running it.

        The steps must have run before, so that all setup is done.
        """
        ...


def find_gpu(product: str) -> str | None:
    """Return the architecture of the first GPU, such as ``sm_120``; None if there is no GPU or no driver.

    Raises ``EnvironmentProblem`` if cuda-core is missing, with the command that installs it for ``product``.
    """
    try:
        from cuda.core import Device as Gpu
    except ImportError as error:
        raise EnvironmentProblem(
            "the package cuda-core is not installed",
            why=f"TensorRT engines require this package ({error})",
            fix=f"run `{install(PRODUCTS[product].extra)}`",
        ) from error
    try:
        major, minor = Gpu(0).compute_capability
    except Exception:  # cuda-core raises several types if there is no GPU
        return None
    return f"sm_{major}{minor}"


def box_copy(target: Box, source: Box, width: int, height: int, depth: int) -> Any:
    """Return the parameters of the driver's strided copy."""
    from cuda.bindings import driver

    copy = driver.CUDA_MEMCPY3D()
    unified = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight = (
        unified,
        source.address,
        source.pitch,
        source.rows,
    )
    copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight = (
        unified,
        target.address,
        target.pitch,
        target.rows,
    )
    copy.WidthInBytes, copy.Height, copy.Depth = width, height, depth
    return copy


class CudaDevice:
    """Drives the first GPU through cuda-core. ``packs`` contain kernels that were compiled ahead of time."""

    def __init__(self, packs: Sequence[Pack] = ()) -> None:
        """Initialize CUDA. Raises ``EnvironmentProblem`` on failure."""
        from cuda.bindings import driver
        from cuda.core import Device as Gpu
        from cuda.core import LegacyPinnedMemoryResource

        self._driver, self._packs = driver, packs
        try:
            self._gpu = Gpu(0)
            self._gpu.set_current()
            self._stream = self._gpu.create_stream()
            self.name = str(self._gpu.name)
        except Exception as error:  # cuda-core's own exception types
            raise EnvironmentProblem(
                "CUDA failed to initialize on this GPU",
                why=str(error),
                fix="run `peagle-compile doctor` to check the driver and GPU",
            ) from error
        self.stream = int(self._stream.handle)
        self._entered = threading.local()
        self._host = LegacyPinnedMemoryResource()
        self._buffers: dict[int, Any] = {}
        self._leases: list[list[int]] = []
        self._launchers: dict[str, Launcher] = {}

    def _enter(self) -> None:
        """Make the context current: it is per thread, and calls may come from different threads."""
        if not getattr(self._entered, "yes", False):
            self._gpu.set_current()
            self._entered.yes = True

    def allocate(self, size: int) -> int:
        """Allocate zeroed device memory. Raises ``EnvironmentProblem`` if the GPU is out of memory."""
        self._enter()
        try:
            buffer = self._gpu.allocate(size, stream=self._stream)
            buffer.fill(0, stream=self._stream)
        except Exception as error:
            raise EnvironmentProblem(
                f"the GPU is out of memory: cannot allocate {size / 2**20:.0f} MiB",
                why=str(error),
                fix="load with a smaller max_batch_size, rebuild with a smaller --max-seq-len, or free GPU memory",
            ) from error
        return self._retain(buffer)

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Allocate page-locked host memory. Raises ``EnvironmentProblem`` on failure."""
        self._enter()
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            buffer = self._host.allocate(size)
        except Exception as error:
            raise EnvironmentProblem(
                f"cannot allocate {size} bytes of page-locked memory",
                why=str(error),
                fix="raise `ulimit -l`, or free memory",
            ) from error
        raw = (ctypes.c_byte * size).from_address(self._retain(buffer))
        return np.frombuffer(raw, dtype).reshape(shape)

    def _retain(self, buffer: Any) -> int:
        """Keep a buffer until it is freed, and return its address."""
        address = int(buffer.handle)
        self._buffers[address] = buffer
        for addresses in self._leases:
            addresses.append(address)
        return address

    @contextlib.contextmanager
    def lease(self) -> Iterator[list[int]]:
        """Collect the addresses of the memory that the block allocates."""
        addresses: list[int] = []
        self._leases.append(addresses)
        try:
            yield addresses
        except BaseException:
            self.free(addresses)
            raise
        finally:
            self._leases.remove(addresses)

    def free(self, addresses: Sequence[int]) -> None:
        """Wait for all enqueued work, which may use the memory, and free it."""
        if addresses:
            self.record().wait()
        for address in addresses:
            self._buffers.pop(address).close()

    def upload(self, address: int, source: np.ndarray) -> None:
        """Enqueue a copy from the memory of ``source``."""
        self.copy(address, source.ctypes.data, source.nbytes)

    def download(self, target: np.ndarray, address: int) -> None:
        """Enqueue a copy into the memory of ``target``."""
        self.copy(target.ctypes.data, address, target.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueue a copy; unified addressing distinguishes host from device addresses."""
        self._enter()
        self._require(*self._driver.cuMemcpyAsync(target, source, size, self._stream.handle))

    def copy_box(self, target: Box, source: Box, width: int, height: int, depth: int) -> None:
        """Enqueue one strided copy; unified addressing as in ``copy``."""
        self._enter()
        self._require(
            *self._driver.cuMemcpy3DAsync(box_copy(target, source, width, height, depth), self._stream.handle)
        )

    def _require(self, status: Any) -> None:
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise _failed("cannot enqueue a memory copy on the GPU", str(status))

    def launch(
        self, op: OpSpec, pointers: Sequence[int], dims: Mapping[str, int], attributes: Mapping[str, int]
    ) -> None:
        """Launch the op's kernel, which is loaded from a pack or compiled on first use."""
        self._enter()
        launcher = self._launchers.get(op.name)
        if launcher is None:
            from ....plugins.kernels.launch import launcher_for

            launcher = self._launchers[op.name] = launcher_for(op, self._packs)
        launcher.launch(self.stream, pointers, dims, attributes, None)

    def record(self) -> Event:
        """Record a CUDA event on the stream."""
        self._enter()
        try:
            return _CudaEvent(self._stream.record())
        except Exception as error:
            raise _failed("cannot enqueue an event on the GPU", str(error)) from error

    def capture(self, steps: Callable[[], None]) -> CapturedGraph:
        """Record ``steps`` as a CUDA graph. Raises ``EnvironmentProblem`` if one of them cannot be recorded."""
        self._enter()
        try:
            return self._captured(steps)
        except PeagleError:
            raise
        except Exception as error:
            raise _failed("cannot capture a round as a CUDA graph", str(error)) from error

    def _captured(self, steps: Callable[[], None]) -> CapturedGraph:
        builder = self._stream.create_graph_builder()
        try:
            builder.begin_building(mode="relaxed")  # garbage collection may free page-locked memory meanwhile
            try:
                steps()
            except BaseException:
                with contextlib.suppress(Exception):  # keep the original error
                    builder.end_building()
                raise
            return _CudaGraph(builder.end_building().complete(), self)
        finally:
            builder.close()

    def _replay(self, graph: Any) -> None:
        self._enter()
        try:
            graph.launch(self._stream)
        except Exception as error:
            raise _failed("cannot launch the CUDA graph of a round", str(error)) from error


class _CudaEvent:
    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        """Block the host. Raises ``EnvironmentProblem`` if the device failed before the event."""
        try:
            self._event.sync()
        except Exception as error:
            raise _failed("the GPU failed during a round", str(error)) from error


class _CudaGraph:
    def __init__(self, graph: Any, device: CudaDevice) -> None:
        self._graph, self._device = graph, device

    def replay(self) -> None:
        """Launch the graph on the device's stream."""
        self._device._replay(self._graph)


def _failed(what: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(what, why=why, fix="reload the engine in a new process, or run `peagle-compile doctor`")
