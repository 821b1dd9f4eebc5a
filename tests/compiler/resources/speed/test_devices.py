"""Pass times: from a GPU's datasheet or CPU measurements, and never shorter for more work."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.hardware.cpu_probe import CpuSpeed
from peagle.compiler.resources.speed.devices import cpu_device, gpu_device
from peagle.compiler.resources.speed.pass_work import PassWork
from peagle.plugins.errors import UsageError

CPU = cpu_device(CpuSpeed(weight_rate=2e10, operation_rate=1e11, read_rate=4e10, threads=2))
WORKS = st.builds(
    PassWork,
    st.integers(1, 64),
    st.fixed_dictionaries({"mlp": st.floats(0, 1e12), "KV cache": st.floats(0, 1e11)}),
    st.fixed_dictionaries({"fp8": st.floats(0, 1e16), "bf16": st.floats(0, 1e16)}),
    st.floats(0, 1e12),
    st.integers(0, 3000),
)


def test_a_pass_on_a_b200_by_hand() -> None:
    time = gpu_device("B200").seconds(PassWork(1, {"mlp": 8e9}, {"fp8": 4.5e12, "bf16": 0.0}, 0.0, 1000))
    assert time.floor == pytest.approx(1e-3)
    assert time.best == pytest.approx(1e-3 / 0.78 + 1.3e-3)
    assert time.worst == pytest.approx(1e-3 / 0.6 + 2.2e-3)


def test_operations_bound_a_wide_pass() -> None:
    time = gpu_device("h100").seconds(PassWork(64, {"mlp": 1.0}, {"fp8": 1979e12, "bf16": 989e12}, 0.0, 0))
    assert (time.floor, time.best, time.worst) == pytest.approx((2.0, 2.0, 2.0))


def test_a_gpu_without_fp8_computes_in_bf16() -> None:
    time = gpu_device("a100-80gb").seconds(PassWork(1, {}, {"fp8": 312e12}, 0.0, 0))
    assert time.floor == pytest.approx(1.0)


def test_blocks_are_multiplied_in_fp32_by_kernels_of_this_project() -> None:
    time = gpu_device("b200").seconds(PassWork(1, {}, {"mxfp4": 75e12, "bf16": 0.0}, 0.0, 0))
    assert time.floor == pytest.approx(1.0)


def test_experts_in_blocks_are_read_more_slowly() -> None:
    work = PassWork(1, {"experts": 8e9, "mlp": 8e9}, {"mxfp4": 1.0}, 0.0, 0)
    time = gpu_device("b200").seconds(work)
    assert time.floor == pytest.approx(2e-3)
    assert time.best == pytest.approx(1e-3 / 0.78 + 1e-3 / 0.23)
    assert time.worst == pytest.approx(1e-3 / 0.6 + 1e-3 / 0.17)
    others = dataclasses.replace(work, operations={"fp8": 1.0})
    assert gpu_device("b200").seconds(others).best == pytest.approx(2e-3 / 0.78)


def test_a_pass_on_a_cpu_by_hand() -> None:
    time = CPU.seconds(PassWork(3, {"mlp": 2e8, "KV cache": 4e7}, {"fp32": 3e8}, 1e8, 0))
    assert time.floor == pytest.approx(2.4e8 / 4e10)
    assert time.best == time.worst == pytest.approx(2e8 / 2e10 + 4e7 / 4e10 + 2e8 / 1e11)
    assert CPU.host_seconds > 0
    assert "measured here on 2 threads" in CPU.sources[0]


@given(WORKS, st.sampled_from(["b200", "rtx-5090", "cpu"]))
def test_the_floor_is_below_and_more_work_takes_longer(work: PassWork, name: str) -> None:
    device = CPU if name == "cpu" else gpu_device(name)
    time = device.seconds(work)
    assert time.best <= time.worst
    if name != "cpu":
        assert time.floor <= time.best
    more = dataclasses.replace(
        work,
        bytes={kind: 2 * count for kind, count in work.bytes.items()},
        operations={kind: 2 * count for kind, count in work.operations.items()},
        kernels=work.kernels + 1,
    )
    longer = device.seconds(more)
    assert (longer.floor, longer.best, longer.worst) >= (time.floor, time.best, time.worst)


def test_an_unknown_gpu_is_rejected() -> None:
    with pytest.raises(UsageError, match="unknown GPU"):
        gpu_device("b2000")
