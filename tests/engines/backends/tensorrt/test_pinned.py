from __future__ import annotations

import numpy as np
import pytest

from peagle.engines.backends.tensorrt.pinned import Readback, Staging
from tests.engines.backends.host_device import HostDevice


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_staging_is_not_written_again_before_it_was_copied(device: HostDevice) -> None:
    staging, addresses = Staging(device, 1, blocks=2), [device.allocate(1) for _ in range(5)]
    for value, address in enumerate(addresses):
        with staging.block() as block:
            block[0] = value
            device.upload(address, block)
    device.record().wait()
    assert [int(device.view(address, (1,), np.uint8)[0]) for address in addresses] == [0, 1, 2, 3, 4]


def test_unread_results_survive_buffer_reuse() -> None:
    device = HostDevice()
    tokens, count, path = device.allocate(8), device.allocate(4), device.allocate(8)
    tensors = {"tokens": tokens, "num_tokens": count, "path": path}
    device.view(count, (1,), np.int32).fill(1)
    readback = Readback(device, rows=1, columns=2, num_buffers=2)
    late = []
    for value in range(5):
        device.enqueue(lambda value=value: device.view(tokens, (2,), np.int32).fill(value))  # type: ignore[misc]
        late.append(readback.start(tensors, rows=1, emitted=2, shown=1, drafted=(0,)))
    assert [emission.read() for emission in reversed(late)] == [[[v]] for v in (4, 3, 2, 1, 0)]
