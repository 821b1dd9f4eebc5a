"""The process that builds a plan: of TensorRT-RTX as measured, of full TensorRT what can be said."""

from __future__ import annotations

from peagle.compiler.needs import measured
from peagle.compiler.needs.builder_work import BuilderWork

GB = 10**9


def test_rtx_is_as_it_was_measured() -> None:
    found = BuilderWork.of("tensorrt-rtx", 10 * GB, 48)
    assert found.bytes == int(measured.BUILDER_PEAK * 10 * GB)
    assert 0 < found.least_bytes < 10 * GB
    assert found.seconds == 48 * measured.BUILD_LAYER + 10 * GB * measured.BUILD_BYTE


def test_a_single_layer_of_the_benchmark_comes_out_as_it_was_measured() -> None:
    assert 4 < BuilderWork.of("tensorrt-rtx", int(1.31 * GB), 1).seconds < 8
    assert 40 < BuilderWork.of("tensorrt-rtx", int(0.26 * GB), 48).seconds < 60


def test_of_full_tensorrt_neither_a_least_nor_a_time_is_claimed() -> None:
    found = BuilderWork.of("tensorrt", 10 * GB, 48)
    assert found.bytes == BuilderWork.of("tensorrt-rtx", 10 * GB, 48).bytes
    assert (found.least_bytes, found.seconds) == (0, 0.0)
