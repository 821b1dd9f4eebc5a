"""The GPU stand-in is as late and as strict as documented, which the tests that use it rely on."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from peagle.engines.backends.tensorrt import device as devices
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.optional_packages import install
from tests.engines.backends.host_device import HostDevice


def test_work_starts_only_when_awaited() -> None:
    device = HostDevice()
    address, source, target = device.allocate(4), device.pinned((1,), np.int32), device.pinned((1,), np.int32)
    target[:] = 0
    source[0] = 5
    device.upload(address, source)
    device.download(target, address)
    arrived = device.record()
    source[0] = 6  # the value before the copy ran
    assert target.tolist() == [0]
    arrived.wait()
    assert target.tolist() == [6]


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_a_captured_graph_runs_when_it_is_replayed_and_as_often(device: HostDevice) -> None:
    a, b = device.allocate(4), device.allocate(4)
    one = device.pinned((1,), np.int32)
    one[0] = 1
    device.upload(a, one)
    graph = device.capture(lambda: device.copy(b, a, 4))
    device.record().wait()
    assert device.view(b, (1,), np.int32).tolist() == [0]
    graph.replay()
    device.record().wait()
    assert device.view(b, (1,), np.int32).tolist() == [1]


@pytest.mark.parametrize("offset", [-1, 1, 10**6])
def test_out_of_bounds_access_is_rejected(offset: int) -> None:
    device = HostDevice()
    address = device.allocate(64)
    with pytest.raises(MemoryError):
        device.copy(address + offset, address, 64)


def test_setup_during_graph_capture_is_rejected() -> None:
    device = HostDevice()
    with pytest.raises(AssertionError, match="captured"):
        device.capture(lambda: device.record().wait())


@pytest.mark.parametrize(("product", "extra"), [("tensorrt-rtx", "rtx"), ("tensorrt", "tensorrt")])
def test_a_missing_cuda_core_is_named(product: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(EnvironmentProblem, match="cuda-core is not installed") as caught:
        devices.find_gpu(product)
    assert install(extra) in caught.value.fix
