"""Profiles, and the timing cache with TensorRT's own objects: TensorRT-RTX has them, though they do nothing there."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from peagle.compiler.tensorrt.builder_config import configure, load_timings, save_timings
from peagle.compiler.tensorrt.callbacks import Log
from peagle.compiler.tensorrt.lowered_graph import LoweredGraph
from peagle.compiler.tensorrt.preflight import Survey
from peagle.plugins.errors import BuildError
from tests.compiler.tensorrt.small import in_child, request

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

_TIMINGS = """
import sys
import warnings
from pathlib import Path
from peagle.compiler.tensorrt import builder_config, callbacks
from peagle.plugins.tensorrt import import_tensorrt
from tests.compiler.tensorrt.small import request

warnings.simplefilter("ignore", DeprecationWarning)
trt = import_tensorrt.load("tensorrt-rtx")
logger = callbacks.logger(trt, callbacks.Log())
made = trt.Builder(logger).create_builder_config()
asked = request(Path("model.onnx"), product=sys.argv[2], timing_cache=Path(sys.argv[1]))
print(builder_config.load_timings(asked, made))
print(builder_config.save_timings(asked, made))
"""


def test_timings_are_cached_for_the_next_build(tmp_path: Path) -> None:
    path = tmp_path / "timing" / "cache"
    assert in_child(_TIMINGS, str(path), "tensorrt") == "[]\n[]\n"
    kept = path.read_bytes()
    assert len(kept) > 0
    assert in_child(_TIMINGS, str(path), "tensorrt") == "[]\n[]\n"
    assert [file.name for file in path.parent.iterdir()] == ["cache"]


def test_tensorrt_rtx_has_no_timing_cache(tmp_path: Path) -> None:
    assert in_child(_TIMINGS, str(tmp_path / "cache"), "tensorrt-rtx") == "[]\n[]\n"
    assert list(tmp_path.iterdir()) == []


def test_a_refused_profile_ends_the_build_with_the_reason_in_the_log(tmp_path: Path) -> None:
    """Without it, the engine would have fewer profiles, and a pass would run with another one."""
    log, profile, asked = Log(), mock.Mock(), request(tmp_path / "model.onnx", product="tensorrt")

    def add_optimization_profile(profile: object) -> int:
        log.add(1, "profile is not valid")
        return -1

    config = mock.Mock(add_optimization_profile=add_optimization_profile)
    builder = mock.Mock(create_builder_config=lambda: config, create_optimization_profile=lambda: profile)
    survey = Survey(LoweredGraph(asked.graph, (), (), (), frozenset(), 0), {}, {}, ())
    with pytest.raises(BuildError, match="TensorRT refuses the profile 'verify'") as caught:
        configure(mock.Mock(), builder, survey, asked, log)
    assert caught.value.why == "profile is not valid"


def test_unsaved_timings_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert "could not be written" in in_child(_TIMINGS, str(tmp_path / "file" / "cache"), "tensorrt")


def test_a_build_without_a_timing_cache_is_a_warning(tmp_path: Path) -> None:
    """The plan is done by then."""
    asked = request(tmp_path / "model.onnx", product="tensorrt", timing_cache=tmp_path / "cache")
    config = mock.Mock(set_timing_cache=lambda *_, **__: False, get_timing_cache=lambda: None)
    assert len(load_timings(asked, config)) == 1
    assert save_timings(asked, config) == [f"the timing cache {tmp_path / 'cache'} was not written: TensorRT used none"]
    assert list(tmp_path.iterdir()) == []
