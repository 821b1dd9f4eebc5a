"""The GPU and its one stream, behind the ``Device`` protocol: the only file of the runtime that speaks CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ....plugins.errors import EnvironmentProblem, PeagleError
from ....plugins.op_spec import OpSpec
from ....plugins.optional_packages import install
from ....plugins.tensorrt.import_tensorrt import EXTRA_OF

if TYPE_CHECKING:
    from ....plugins.kernels.launch import Launcher
    from ....plugins.kernels.pack import Pack

ALIGNMENT = 256  # of every address that TensorRT is given


class Event(Protocol):
    """A point in the stream."""

    def wait(self) -> None:
        """Return when the device has passed it."""
        ...


class CapturedGraph(Protocol):
    """Work that was recorded once."""

    def replay(self) -> None:
        """Enqueue all of it."""
        ...


class Device(Protocol):
    """One GPU: memory that is freed with it, and work enqueued in order on one stream; no call waits for it.

    ``stream`` is the handle that TensorRT enqueues on.
    """

    stream: int

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of device memory, all zero, at a multiple of ``ALIGNMENT``."""
        ...

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Host memory that the device copies from and to while the host goes on; not initialised."""
        ...

    def upload(self, address: int, source: np.ndarray) -> None:
        """Copy pinned, contiguous ``source`` to the device; it must stay as it is until the copy has run."""
        ...

    def download(self, target: np.ndarray, address: int) -> None:
        """Copy to pinned, contiguous ``target``; it is there when an event recorded after has passed."""
        ...

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes from one device address to another."""
        ...

    def launch(
        self, op: OpSpec, pointers: Sequence[int], dims: Mapping[str, int], attributes: Mapping[str, int]
    ) -> None:
        """Launch the kernel of an op that is the same for every dtype; see ``plugins.kernels.launch``."""
        ...

    def record(self) -> Event:
        """Return an event after all that was enqueued."""
        ...

    def capture(self, steps: Callable[[], None]) -> CapturedGraph:
        """Record what ``steps`` enqueues instead of running it. It must have run before: nothing may be set up now."""
        ...


def find_gpu(product: str) -> str | None:
    """The architecture of the first GPU, as ``sm_120``; None where there is no GPU or no driver.

    Raises ``EnvironmentProblem`` without the package, with how it comes along with ``product``.
    """
    try:
        from cuda.core import Device as Gpu
    except ImportError as error:
        raise EnvironmentProblem(
            "the package cuda-core is not installed",
            why=f"TensorRT engines run through it ({error})",
            fix=install(EXTRA_OF[product]),
        ) from error
    try:
        major, minor = Gpu(0).compute_capability
    except Exception:  # the binding has a type for each way in which there is none
        return None
    return f"sm_{major}{minor}"


class CudaDevice:
    """Drives the first GPU through cuda-core. ``packs`` hold kernels that were compiled ahead of time."""

    def __init__(self, packs: Sequence[Pack] = ()) -> None:
        """Start CUDA. Raises ``EnvironmentProblem`` when it does not start."""
        from cuda.bindings import driver
        from cuda.core import Device as Gpu
        from cuda.core import LegacyPinnedMemoryResource

        self._driver, self._packs = driver, packs
        try:
            self._gpu = Gpu(0)
            self._gpu.set_current()
            self._stream = self._gpu.create_stream()
        except Exception as error:  # cuda-core's own family of exceptions
            raise EnvironmentProblem(
                "CUDA does not start on this GPU", why=str(error), fix="see `peagle-compile doctor`"
            ) from error
        self.stream = int(self._stream.handle)
        self._entered = threading.local()
        self._host = LegacyPinnedMemoryResource()
        self._buffers: list[Any] = []
        self._launchers: dict[str, Launcher] = {}

    def _enter(self) -> None:
        """Make the context current: it is per thread, and a caller may come from another one each time."""
        if not getattr(self._entered, "yes", False):
            self._gpu.set_current()
            self._entered.yes = True

    def allocate(self, size: int) -> int:
        """Reserve and clear device memory. Raises ``EnvironmentProblem`` when the GPU has no room."""
        self._enter()
        try:
            buffer = self._gpu.allocate(size, stream=self._stream)
            buffer.fill(0, stream=self._stream)
        except Exception as error:
            raise EnvironmentProblem(
                f"the GPU has no room for {size / 2**20:.0f} MiB more",
                why=str(error),
                fix="load with a smaller max_batch_size, rebuild with a smaller --max-seq-len, or free the GPU",
            ) from error
        self._buffers.append(buffer)
        return int(buffer.handle)

    def pinned(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Reserve page-locked host memory. Raises ``EnvironmentProblem`` when the host gives no more."""
        self._enter()
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            buffer = self._host.allocate(size)
        except Exception as error:
            raise EnvironmentProblem(
                f"no {size} bytes of page-locked memory", why=str(error), fix="raise `ulimit -l`, or free memory"
            ) from error
        self._buffers.append(buffer)
        raw = (ctypes.c_byte * size).from_address(int(buffer.handle))
        return np.frombuffer(raw, dtype).reshape(shape)

    def upload(self, address: int, source: np.ndarray) -> None:
        """Enqueue a copy from the memory of ``source``."""
        self.copy(address, source.ctypes.data, source.nbytes)

    def download(self, target: np.ndarray, address: int) -> None:
        """Enqueue a copy into the memory of ``target``."""
        self.copy(target.ctypes.data, address, target.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueue a copy; unified addressing tells host from device."""
        self._enter()
        (status,) = self._driver.cuMemcpyAsync(target, source, size, self._stream.handle)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise _failed("a copy was not enqueued", str(status))

    def launch(
        self, op: OpSpec, pointers: Sequence[int], dims: Mapping[str, int], attributes: Mapping[str, int]
    ) -> None:
        """Launch the op's kernel, loaded from a pack or compiled when it is first asked for."""
        self._enter()
        launcher = self._launchers.get(op.name)
        if launcher is None:
            launcher = self._launchers[op.name] = self._load(op)
        launcher.launch(self.stream, pointers, dims, attributes, None)

    def _load(self, op: OpSpec) -> Launcher:
        from ....plugins.kernels.launch import Launcher
        from ....plugins.kernels.pack import obtain

        major, minor = self._gpu.compute_capability
        sm = 10 * major + minor
        return Launcher(op, sm, obtain(op, sm, self._packs).code)

    def record(self) -> Event:
        """Record a CUDA event on the stream."""
        self._enter()
        try:
            return _CudaEvent(self._stream.record())
        except Exception as error:
            raise _failed("an event was not enqueued", str(error)) from error

    def capture(self, steps: Callable[[], None]) -> CapturedGraph:
        """Record ``steps`` as a CUDA graph. Raises ``EnvironmentProblem`` when one of them cannot be recorded."""
        self._enter()
        try:
            return self._captured(steps)
        except PeagleError:
            raise
        except Exception as error:
            raise _failed("a round was not captured", str(error)) from error

    def _captured(self, steps: Callable[[], None]) -> CapturedGraph:
        builder = self._stream.create_graph_builder()
        try:
            builder.begin_building(mode="relaxed")  # a collection of garbage may free page-locked memory meanwhile
            try:
                steps()
            except BaseException:
                with contextlib.suppress(Exception):  # what broke the capture matters, not that it is broken
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
            raise _failed("a round was not enqueued", str(error)) from error


class _CudaEvent:
    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        """Block the host. Raises ``EnvironmentProblem`` when the device failed before the event."""
        try:
            self._event.sync()
        except Exception as error:
            raise _failed("the GPU stopped in the middle of a round", str(error)) from error


class _CudaGraph:
    def __init__(self, graph: Any, device: CudaDevice) -> None:
        self._graph, self._device = graph, device

    def replay(self) -> None:
        """Launch the graph on the device's stream."""
        self._device._replay(self._graph)


def _failed(what: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(what, why=why, fix="load the engine again in a new process; see `peagle-compile doctor`")
