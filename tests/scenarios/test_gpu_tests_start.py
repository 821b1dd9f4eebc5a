"""The GPU tests run with a stand-in, so that changes elsewhere cannot break them unnoticed.

The stand-in refuses what CUDA refuses in a captured pass: values of the host among those of the device, and waiting.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.fixtures.stages import shared_folder
from tests.gpu.plan_folders import KINDS, make
from tests.gpu.stand_in import BY_DEFAULT, OnTheHost, PassTensor, TorchHostDevice
from tests.gpu.torch_plans import TorchGraph
from tests.models import Pair

pytestmark = pytest.mark.begins_first

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))


@pytest.mark.parametrize(
    ("selection", "kinds"),
    [
        ("gpu and not slow", ["tiny", "eagle3"]),
        pytest.param("gpu", ["tiny", "tiny-float16", "tiny-fp8-caches", "eagle3", "demo"], marks=pytest.mark.slow),
    ],
    ids=["some of each module", "all"],
)
def test_gpu_tests_run_against_the_stand_in(
    demo_engine: Path,
    plugin_library: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    selection: str,
    kinds: list[str],
) -> None:
    """One process, for PyTorch's functions are replaced in it; it shares the demo engine with this run.

    Plans, of the ``kinds`` that the first parameters of the tests name, are made here: the build is replaced as well.
    """
    shared = shared_folder(tmp_path_factory)
    demo = ROOT / "compiler" / "bundled" / "demo"
    for kind in kinds:
        name = {"qwen3": "tiny"}.get(KINDS[kind].pair, KINDS[kind].pair)
        pair = Pair(demo / "target", demo / "drafter") if name == "demo" else request.getfixturevalue(f"{name}_pair")
        engine = demo_engine if name == "demo" else request.getfixturevalue(f"{name}_folder")
        make(kind, tmp_path / "plans" / kind, pair, engine)
    variables = {
        "PEAGLE_TEST_DEMO_ENGINE": str(demo_engine),
        "PEAGLE_TEST_PLUGIN_LIBRARY": str(plugin_library),
        "PEAGLE_TEST_PLANS": str(tmp_path / "plans"),
        "PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "alone"),
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.gpu.stand_in", "-m", selection, "tests/gpu", "-ra"]
    done = subprocess.run(
        [*command, "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={shared / 'gpu-tests'}"],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    names = [name for path in FILES for name in _tests_of(path)]
    expected = len(names) if selection == "gpu" else sum(name in BY_DEFAULT for name in names)
    assert re.search(rf"\b{expected} passed, \d+ deselected", done.stdout), done.stdout


def _tests_of(path: Path) -> list[str]:
    """The names of the test functions of a module."""
    return re.findall(r"^(?:def )?(test_\w+)(?: =|\()", path.read_text(), re.MULTILINE)


def test_some_gpu_tests_of_every_module_run_by_default() -> None:
    by_file = {path.name: {*_tests_of(path)} for path in FILES}
    assert all(tests & BY_DEFAULT for tests in by_file.values()), by_file
    assert {name for tests in by_file.values() for name in tests} >= BY_DEFAULT


MIXES = {
    "sum": lambda x: x + torch.ones(3),
    "list": lambda x: torch.cat([x, torch.ones(3)]),
    "index": lambda x: x[torch.tensor([0])],
    "factory": lambda x: x + torch.arange(3),
    "upload": lambda x: x.copy_(torch.ones(3)),
}
WAITS = {
    "item": lambda x: x[0].item(),
    "list": lambda x: x.tolist(),
    "truth": lambda x: bool(x[0]),
    "number": lambda x: int(x[0]),
    "copy": lambda x: x.cpu(),
    "move": lambda x: x.to("cpu"),
    "array": lambda x: x.numpy(),
    "places": lambda x: (x > 0).nonzero(),
    "mask": lambda x: x[x > 0],
    "masked": lambda x: torch.masked_select(x, x > 0),
    "equality": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize(
    ("step", "error"),
    [
        *(pytest.param(step, "same device", id=f"mix-{name}") for name, step in MIXES.items()),
        *(
            pytest.param(step, "not permitted when stream is capturing", id=f"wait-{name}")
            for name, step in WAITS.items()
        ),
    ],
)
def test_the_stand_in_refuses_what_a_captured_pass_may_not_do(
    step: Callable[[torch.Tensor], object], error: str
) -> None:
    x = torch.arange(3.0).as_subclass(PassTensor)
    with OnTheHost(), pytest.raises(RuntimeError, match=error):
        step(x)


def test_the_stand_in_creates_tensors_on_the_requested_device() -> None:
    x = torch.arange(3.0).as_subclass(PassTensor)
    with OnTheHost():
        assert x.device == (x[1:] * 2).device == torch.arange(3, device=x.device).device == torch.device("cuda:0")
        assert torch.arange(3).device == torch.device("cpu")


def _graph(path: Path, *nodes: onnx.NodeProto) -> Path:
    """A graph of x, i64 [N], with the constants 0, 1 and [0]."""
    tensor = helper.make_tensor_value_info
    constants = [
        helper.make_tensor(name, TensorProto.INT64, dims, values)
        for name, dims, values in (("zero", (), [0]), ("one", (), [1]), ("first", (1,), [0]))
    ]
    ends = [tensor("x", TensorProto.INT64, ["batch"])], [tensor("y", TensorProto.INT64, ["batch"])]
    onnx.save(helper.make_model(helper.make_graph(list(nodes), "graph", *ends, constants)), path)
    return path


def test_values_that_host_and_device_read_are_in_both_places_and_uploaded_before_the_capture(tmp_path: Path) -> None:
    """y = x + range + 1: the range and the 1 of the sum are on the device, what the range is made from is not."""
    node, device = helper.make_node, TorchHostDevice()
    path = _graph(
        tmp_path / "graph.onnx",
        node("Shape", ["x"], ["shape"]),
        node("Squeeze", ["shape", "first"], ["size"]),
        node("Add", ["x", "one"], ["more"]),
        node("Range", ["zero", "size", "one"], ["range"]),
        node("Add", ["more", "range"], ["y"]),
    )
    graph = TorchGraph(path, device)
    addresses = {name: device.allocate(8 * 4) for name in "xy"}

    def run(size: int) -> None:
        graph.context()({"x": (size,)}, addresses)

    run(3)
    device.record().wait()
    recorded = device.capture(lambda: run(3))
    device.view(addresses["x"], (3,), np.int64)[:] = 5
    recorded.replay()
    device.record().wait()
    assert device.view(addresses["y"], (3,), np.int64).tolist() == [6, 7, 8]
    device.capture(lambda: run(4)).replay()
    with pytest.raises(RuntimeError, match=r"Add '' of more, range: .* first run did not"):
        device.record().wait()


def test_a_size_that_only_the_device_knows_is_refused_with_its_node(tmp_path: Path) -> None:
    path = _graph(tmp_path / "graph.onnx", helper.make_node("Reshape", ["x", "x"], ["y"], name="wild"))
    with pytest.raises(ValueError, match="Reshape 'wild' of x, x takes sizes that the device computes: x"):
        TorchGraph(path, TorchHostDevice())
