"""The build process from inside: a full disk, and unexpected errors."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import ModuleType

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.hardware.machine import Machine
from peagle.compiler.tensorrt import build_plan, worker
from peagle.compiler.tensorrt.preflight import survey
from peagle.compiler.tensorrt.worker import suggested_fixes
from peagle.compiler.tensorrt.worker_protocol import Channel
from peagle.plugins.errors import EnvironmentProblem
from tests.compiler.tensorrt.small import in_child, profiles, request, written

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

_BUILD = """
import io
import sys
from pathlib import Path
from threading import Lock
from peagle.compiler.tensorrt import worker
from peagle.compiler.tensorrt.worker_protocol import Channel, PlanRequest
from peagle.plugins.errors import BuildError

try:
    worker.build(PlanRequest.from_json(sys.argv[1]), Path(sys.argv[2]), Channel(io.StringIO(), Lock()))
except BuildError as error:
    print(error)
"""
_MAIN = """
import os
import sys
from pathlib import Path
from peagle.compiler.tensorrt import worker
from peagle.plugins.errors import BuildError

def fails(request, out, channel):
    raise KeyError("no such thing")

receiver, sender = os.pipe()  # it stays open, as a parent that lives keeps it
os.write(sender, sys.argv[1].encode() + b"\\n")
sys.stdin = os.fdopen(receiver)
worker.build = fails
assert worker.main(Path(sys.argv[2])) == BuildError.exit_code
os._exit(0)
"""


def test_a_graph_with_the_layer_of_experts_that_is_not_built_has_two_more_ways_out(tmp_path: Path) -> None:
    found = survey(written(tmp_path), ("sm_120",), profiles())
    with_layer = replace(found, layers={**found.layers, "MOE": 2})
    assert "--experts" not in suggested_fixes(found)
    assert "--experts layer-one-scale" in suggested_fixes(with_layer)
    assert suggested_fixes(with_layer).endswith(suggested_fixes(found))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    said = in_child(_BUILD, request(written(tmp_path)).to_json(), "/dev/full")
    assert "the disk that contains /dev is full" in said


@pytest.mark.parametrize("where", [worker, build_plan])
def test_full_tensorrt_does_not_build_while_the_gpus_are_unknown(
    where: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would time kernels on another GPU, or say that the machine has none."""
    monkeypatch.setattr(where, "inspect_machine", lambda: Machine(gpu_problem="the GPUs are unknown"))
    asked, out = request(tmp_path / "model.onnx", product="tensorrt", gpus=("sm_90",)), tmp_path / "model.plan"
    builds = {
        worker: lambda: worker.build(asked, out, Channel(io.StringIO(), Lock())),
        build_plan: lambda: build_plan.build_plan(asked, out, Quiet()),
    }
    with pytest.raises(EnvironmentProblem, match="cannot build on this machine") as caught:
        builds[where]()
    assert caught.value.why == "the GPUs are unknown"


def test_unexpected_failure_is_a_one_line_build_error(tmp_path: Path) -> None:
    said = in_child(_MAIN, request(Path("model.onnx")).to_json(), str(tmp_path / "plan"))
    assert said.count("\n") == 1
    assert "BuildError" in said
    assert "KeyError in fails: 'no such thing'" in said
