"""What can be said of a launch without a GPU: its geometry, its scalars, and clear words where none can be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.launch import Geometry, Launcher, current_sm, geometry, scalars
from peagle.plugins.kernels.sources import TARGETS, kernel_of, kernel_ops
from peagle.plugins.op_spec import OpSpec
from peagle.plugins.ops import OPS

ACCEPT = OPS["AcceptPrefix"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(kernel_ops()), st.integers(0, 256), st.sampled_from(TARGETS))
def test_the_grid_has_a_cluster_for_each_of_what_the_spec_counts(op: OpSpec, rows: int, sm: int) -> None:
    kernel = kernel_of(op)
    cluster = kernel.cluster if sm >= 90 else 1
    blocks = {"B": rows, "B+S": rows + 3}[kernel.blocks]
    assert geometry(op, sm, {"B": rows, "S": 3}) == Geometry(blocks * cluster, kernel.threads, cluster)


def test_a_kernel_with_clusters_has_them_from_hopper_on() -> None:
    assert [geometry(ACCEPT, sm, {"B": 3}).grid for sm in (89, 90, 100, 120)] == [3, 24, 24, 24]


@pytest.mark.parametrize("rows", [-1, 2**31])
def test_a_batch_that_no_grid_can_hold_is_refused(rows: int) -> None:
    with pytest.raises(BuildError, match="cannot launch"):
        geometry(ACCEPT, 100, {"B": rows})


def test_scalars_come_in_the_order_of_the_spec_from_dimensions_and_attributes() -> None:
    assert scalars(ACCEPT, {"V": 9, "S": 7, "E": 5, "B": 3}, {}) == (3, 5, 7, 9)
    assert scalars(OPS["PlaceholderDraft"], {"B": 3, "S": 7, "E": 5}, {"mask_token_id": 11}) == (3, 7, 5, 11)


@pytest.mark.parametrize("value", [None, 2**31, -(2**31) - 1, 1.5, True])
def test_a_scalar_that_is_no_int32_is_refused(value: object) -> None:
    with pytest.raises(BuildError, match="mask_token_id must be a 32-bit whole number"):
        scalars(OPS["PlaceholderDraft"], {"B": 3, "S": 7, "E": 5}, {"mask_token_id": value})  # type: ignore[dict-item]


def test_without_a_driver_the_error_says_what_to_install() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    for call in (current_sm, lambda: Launcher(ACCEPT, 90, b"no machine code")):
        with pytest.raises(EnvironmentProblem, match="cannot be launched on this machine") as caught:
            call()
        assert caught.value.why
        assert "install an NVIDIA driver" in caught.value.fix
