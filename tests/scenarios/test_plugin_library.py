"""Networks with the C++ plugins are those with the plugins of Python, and what these refuse is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.sources import digest, kernel_ops
from peagle.plugins.tensorrt.library import LIBRARY
from peagle.plugins.tensorrt.library.compile import compiled
from peagle.plugins.tensorrt.library.pack import write_library
from tests.plugins.tensorrt.rtx_builds import needs_rtx, results, run_aot
from tests.scenarios.test_plugin_builds import ATTRIBUTES, KINDS, REFUSED, case

pytestmark = needs_rtx

Write = Callable[..., str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose kernels are none: nothing launches them."""
    folder = tmp_path_factory.mktemp("library")
    write_library(folder, compiled([Cubin(op.name, 120, digest(op), b"\x7fELF", {}) for op in kernel_ops()]))
    return folder / LIBRARY


def test_a_network_and_its_plan_are_those_of_the_plugins_of_python(write_model: Write, library: Path) -> None:
    cases = [case(write_model, op, floats) | {"gpus": ["SM120"]} for op, floats in KINDS]
    python = results(run_aot(cases))
    for by in ("registry", "program"):
        ours = results(run_aot([each | {"library": [str(library), by]} for each in cases]))
        for kind, one, other in zip(KINDS, ours, python, strict=True):
            assert one["plugins"] == sorted(ATTRIBUTES), kind
            assert one["layers"] == ["PLUGIN_V3"]
            for what in ("layers", "tensors", "outputs"):
                assert one[what] == other[what], (kind, what)
            assert one["plans"]["SM120"], one["log"]
            assert words_of(one["plans"]["SM120"]) == words_of(other["plans"]["SM120"]), kind


def words_of(plan: str) -> tuple[int, list[bytes]]:
    """The size and the texts of a plan: its layers, plugins and fields. TensorRT numbers them anew in every build."""
    content = bytes.fromhex(plan)
    return len(content), sorted(re.findall(rb"[A-Za-z_][ -~]{5,}", content))


def test_a_node_that_does_not_fit_is_refused_in_the_same_words(write_model: Write, library: Path) -> None:
    cases = [case(write_model, "PlaceholderDraft", edit=edit) for edit, _ in REFUSED.values()]
    process = run_aot([each | {"library": [str(library), "registry"]} for each in cases])
    for answer in results(process):
        assert not any(answer["plans"].values())
    said = [line for line in process.stderr.splitlines() if line.startswith("[peagle] [E]")]
    for _, words in REFUSED.values():
        assert f"[peagle] [E] PlaceholderDraft: {words}" in said
