"""Launches without a GPU: geometry, scalars, driver calls, and the error without a driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.launch import Geometry, Launcher, current_sm, geometry, scalars
from peagle.plugins.kernels.sources import TARGETS, entries, kernel_of, kernel_ops
from peagle.plugins.op_spec import OpSpec
from peagle.plugins.ops import OPS

Driver = Popen[str]
ACCEPT = OPS["AcceptPrefix"]

COMPILER = shutil.which("cc") or shutil.which("gcc")

PLACE_SIZES = "8,8,8,8,8,8,4,4,4,4,8,8,8,8,8,8,8"  # PlaceholderDraft: 6 inputs, 4 scalars, 7 outputs
ACCEPT_SIZES = "8,8,8,8,8,8,8,8,8,8,8,4,4,4,4,8,8"  # AcceptPrefix: 11 inputs, 4 scalars, 2 outputs

LAUNCH_PLACE = """
launcher = Launcher(OPS["PlaceholderDraft"], 100, b"\\x7fELF")
launcher.launch(0xabc, [*range(0x100, 0x106), *range(0x200, 0x207)], {"B": 3, "S": 7, "E": 5}, {"mask_token_id": -9})
"""
LAUNCH_ACCEPT = """
launcher = Launcher(OPS["AcceptPrefix"], SM, b"\\x7fELF")
dims = {"B": 3, "S": 7, "E": 5, "V": 262144}
launcher.launch(0xabc, [2**40 + i for i in range(13)], dims, {}, "bfloat16")
"""

ATTACH = """
from types import SimpleNamespace
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.pack import Pack
from peagle.plugins.kernels.sources import digest
from peagle.plugins.tensorrt.plugin_class import plugin_class

op = OPS["PlaceholderDraft"]
interfaces = ["IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime"]
trt = SimpleNamespace(
    PluginField=lambda *field: field, PluginFieldCollection=list, PluginFieldType=SimpleNamespace(INT64=None),
    **{name: type(name, (), {}) for name in interfaces},
)
plugin = plugin_class(trt, op, [Pack((Cubin(op.name, 121, digest(op), b"\x7fELF", {}, "NVRTC"),))])()
plugin._prepare({"mask_token_id": 9})
for context in CONTEXTS:
    os.environ["CONTEXT"] = str(context)
    copy = plugin.attach_to_context(None)
    print(copy._not_loaded.what if copy._not_loaded else "attached")
"""

PROGRAM = """
import json, os, sys
from cuda.bindings import driver
from peagle.plugins.errors import PeagleError
from peagle.plugins.kernels.launch import Launcher, current_sm
from peagle.plugins.ops import OPS

for line in sys.stdin:
    code, variables = json.loads(line)
    if os.fork() == 0:
        os.environ.update(variables)
        try:
            exec(code)
        except PeagleError as error:
            print(type(error).__name__, error.what, "|", error.why)
        sys.exit()
    print("exit code", os.waitstatus_to_exitcode(os.wait()[1]))
"""


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(kernel_ops()), st.integers(0, 256), st.sampled_from(TARGETS))
def test_grid_has_a_cluster_per_spec_block(op: OpSpec, rows: int, sm: int) -> None:
    kernel = kernel_of(op)
    cluster = kernel.cluster if sm >= 90 else 1
    blocks = {"B+S": rows + 3, "N+15": (2 + 15) * rows}.get(kernel.blocks, rows)
    assert geometry(op, sm, {"B": rows, "S": 3, "H": rows, "I": rows, "N": 2}) == Geometry(
        blocks * cluster, kernel.threads, cluster
    )


@pytest.mark.parametrize(
    ("buffers", "heads", "size"),
    [(96, 4, 256), (72, 8, 128), (50, 8, 512), (1, 1, 3 * 2880 * 2)],
    ids=["caches of Qwen3-Coder", "caches of GPT-OSS", "windowed caches of Gemma-4", "features of GPT-OSS"],
)
@pytest.mark.parametrize("rows", [1, 8, 64, 256])
def test_threads_that_close_up_caches_grow_with_the_batch(buffers: int, heads: int, size: int, rows: int) -> None:
    """A thread takes 16 bytes of an entry along the path; a few turns of it are as fast as the memory."""
    shape = geometry(OPS["CloseUp"], 100, {"N": buffers, "B": rows})
    assert buffers * rows * heads * size / 16 <= 2 * shape.grid * shape.block


def test_a_kernel_with_clusters_has_them_from_hopper_on() -> None:
    assert [geometry(ACCEPT, sm, {"B": 3}).grid for sm in (89, 90, 100, 120)] == [3, 24, 24, 24]


@pytest.mark.parametrize("rows", [-1, 2**31])
def test_a_batch_that_no_grid_can_hold_is_refused(rows: int) -> None:
    with pytest.raises(BuildError, match="cannot launch"):
        geometry(ACCEPT, 100, {"B": rows})


def test_scalars_follow_spec_order() -> None:
    assert scalars(ACCEPT, {"V": 9, "S": 7, "E": 5, "B": 3}, {}) == (3, 5, 7, 9)
    assert scalars(OPS["PlaceholderDraft"], {"B": 3, "S": 7, "E": 5}, {"mask_token_id": 11}) == (3, 7, 5, 11)


@pytest.mark.parametrize("value", [None, 2**31, -(2**31) - 1, 1.5, True])
def test_non_int32_scalar_is_rejected(value: object) -> None:
    with pytest.raises(BuildError, match="mask_token_id must be a 32-bit integer"):
        scalars(OPS["PlaceholderDraft"], {"B": 3, "S": 7, "E": 5}, {"mask_token_id": value})  # type: ignore[dict-item]


def test_missing_driver_error_has_install_instructions() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    for call in (current_sm, lambda: Launcher(ACCEPT, 90, b"no machine code")):
        with pytest.raises(EnvironmentProblem, match="cannot be launched on this machine") as caught:
            call()
        assert caught.value.why
        assert "install an NVIDIA driver" in caught.value.fix


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A process with a libcuda.so.1 that records the launcher's calls, without a GPU; it forks for each program."""
    if COMPILER is None:
        pytest.skip("needs a C compiler for the recording driver")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("recording_driver.c")
    command = [COMPILER, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"]
    subprocess.run(command, check=True)
    variables = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    program = [sys.executable, "-u", "-c", PROGRAM]
    with Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        yield process
        process.kill()


def run(driver: Driver, code: str, **environment: str) -> list[str]:
    """The lines printed by driver and code, in a child process: a wrong call could crash it."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write(json.dumps([code, environment]) + "\n")
    driver.stdin.flush()
    lines = list[str]()
    for line in driver.stdout:
        if line.startswith("exit code "):
            assert line == "exit code 0\n"
            return lines
        lines.append(line.rstrip("\n"))
    pytest.fail("the process ended")


def test_inputs_scalars_and_outputs_reach_the_kernel_in_the_order_of_the_spec(driver: Driver) -> None:
    pointers_in, pointers_out = "100 101 102 103 104 105", "200 201 202 203 204 205 206"
    threads = kernel_of(OPS["PlaceholderDraft"]).threads
    assert run(driver, LAUNCH_PLACE, KERNEL_PARAMS=PLACE_SIZES) == [
        "load \x7fELF",
        "kernel placeholder_draft",
        f"launch 0x22 stream 0xabc grid 3,1,1 block {threads},1,1 shared 0 "
        f"params {pointers_in} 3 7 5 -9 {pointers_out}",
    ]


@pytest.mark.parametrize(
    ("sm", "compiled_in", "grid", "attribute"),
    [(89, "0", 3, ""), (90, "8", 24, ""), (90, "0", 24, " attribute 4:8,1,1")],
)
def test_cluster_size_is_set_unless_compiled_in(
    driver: Driver, sm: int, compiled_in: str, grid: int, attribute: str
) -> None:
    lines = run(driver, LAUNCH_ACCEPT.replace("SM", str(sm)), KERNEL_PARAMS=ACCEPT_SIZES, KERNEL_CLUSTER=compiled_in)
    assert lines[1:-1] == [f"kernel {entry}" for entry in entries(OPS["AcceptPrefix"])]
    threads = kernel_of(OPS["AcceptPrefix"]).threads
    start = f"launch 0x22 stream 0xabc grid {grid},1,1 block {threads},1,1 shared 0{attribute} params"
    pointers = [f"{2**40 + i:x}" for i in range(13)]
    assert lines[-1] == " ".join([start, *pointers[:11], "3 5 7 262144", *pointers[11:]])


def test_a_kernel_with_other_parameters_or_clusters_than_the_spec_is_refused(driver: Driver) -> None:
    lines = run(driver, LAUNCH_PLACE, KERNEL_PARAMS=PLACE_SIZES.replace("4", "8", 1))
    assert lines[-1].startswith(
        "BuildError cannot load the kernel of PlaceholderDraft for sm_100: the kernel's parameters have"
    )
    lines = run(driver, LAUNCH_ACCEPT.replace("SM", "100"), KERNEL_PARAMS=ACCEPT_SIZES, KERNEL_CLUSTER="4")
    assert "the kernel was compiled for clusters of 4 blocks, but its spec requires 8" in lines[-1]
    assert not any(line.startswith("launch") for line in lines)


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        ("cuInit", "CUDA failed to initialize"),
        ("cuLibraryLoadData", "cannot load the kernel of PlaceholderDraft for sm_100"),
        ("cuLibraryGetKernel", "entry placeholder_draft"),
        ("cuLaunchKernelEx", "PlaceholderDraft was not launched"),
    ],
)
def test_driver_failure_is_passed_on(driver: Driver, failing: str, words: str) -> None:
    last = run(driver, LAUNCH_PLACE, KERNEL_PARAMS=PLACE_SIZES, FAILING=failing)[-1]
    assert last.startswith("EnvironmentProblem")
    assert words in last
    assert "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access" in last


def test_execution_contexts_share_the_machine_code_of_a_plugin(driver: Driver) -> None:
    """TensorRT attaches a plugin to each of its own contexts; only another CUDA context needs the code again."""
    lines = run(driver, ATTACH.replace("CONTEXTS", "(1, 1, 1, 2, 2)"), KERNEL_PARAMS=PLACE_SIZES)
    load = ["load \x7fELF", "kernel placeholder_draft"]
    assert lines == [*load, *["attached"] * 3, *load, *["attached"] * 2]


def test_a_failed_load_is_tried_again_by_the_next_context(driver: Driver) -> None:
    lines = run(driver, ATTACH.replace("CONTEXTS", "(1, 1)"), KERNEL_PARAMS=PLACE_SIZES, FAILING="cuLibraryLoadData")
    assert lines == ["load \x7fELF", "cannot load the kernel of PlaceholderDraft for sm_121"] * 2


def test_empty_launch_is_skipped(driver: Driver) -> None:
    lines = run(driver, LAUNCH_PLACE.replace('"B": 3', '"B": 0'), KERNEL_PARAMS=PLACE_SIZES)
    assert lines[-1] == "kernel placeholder_draft"


def test_the_compute_capability_is_that_of_the_current_context(driver: Driver) -> None:
    assert run(driver, "print(current_sm())") == ["121"]
    assert "there is no current CUDA context" in run(driver, "current_sm()", FAILING="cuCtxGetDevice")[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('{"mask_token_id": -9}', "{}"), "mask_token_id must be a 32-bit integer, not None"),
        (("*range(0x100, 0x106), ", ""), "takes 13 pointers, not 7"),
    ],
)
def test_arguments_that_do_not_fit_the_spec_are_refused(driver: Driver, change: tuple[str, str], words: str) -> None:
    lines = run(driver, LAUNCH_PLACE.replace(*change), KERNEL_PARAMS=PLACE_SIZES)
    assert lines[-1].startswith("BuildError")
    assert words in lines[-1]
