"""The build process from inside: a full disk, and unexpected errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.tensorrt.preflight import survey
from peagle.compiler.tensorrt.worker import suggested_fixes
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


def test_unexpected_failure_is_a_one_line_build_error(tmp_path: Path) -> None:
    said = in_child(_MAIN, request(Path("model.onnx")).to_json(), str(tmp_path / "plan"))
    assert said.count("\n") == 1
    assert "BuildError" in said
    assert "KeyError in fails: 'no such thing'" in said
