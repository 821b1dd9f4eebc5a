"""Networks with C++ plugins equal those with Python plugins, including refusals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx

from tests.compiler.tensorrt.small import written
from tests.plugins.tensorrt.rtx_builds import needs_rtx, results, run_aot
from tests.scenarios.test_plugin_builds import ATTRIBUTES, KINDS, REFUSED, case

pytestmark = needs_rtx

Write = Callable[..., str]


def test_network_and_plan_match_the_python_plugins(write_model: Write, plugin_library: Path) -> None:
    cases = [case(write_model, op, floats) | {"gpus": ["SM120"]} for op, floats in KINDS]
    python = results(run_aot(cases))
    for by in ("registry", "program"):
        ours = results(run_aot([each | {"library": [str(plugin_library), by]} for each in cases]))
        for kind, one, other in zip(KINDS, ours, python, strict=True):
            assert one["plugins"] == sorted(ATTRIBUTES), kind
            assert one["layers"] == ["PLUGIN_V3"]
            for what in ("layers", "tensors", "outputs"):
                assert one[what] == other[what], (kind, what)
            assert one["plans"]["SM120"], one["log"]
            assert words_of(one["plans"]["SM120"]) == words_of(other["plans"]["SM120"]), kind


def test_network_around_a_plugin_is_the_same(plugin_library: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    steps = ({"B": 1, "S": 1, "E": 2}, {"B": 2, "S": 3, "E": 3}, {"B": 4, "S": 5, "E": 5})
    given = onnx.load_model(path, load_external_data=False).graph.input
    dims = {value.name: value.type.tensor_type.shape.dim for value in given}
    inputs = {
        name: [[sizes.get(dim.dim_param, dim.dim_value) for dim in shape] for sizes in steps]
        for name, shape in dims.items()
    }
    network = {"model": str(path), "ops": ["AcceptPrefix"], "gpus": ["SM120"], "profiles": [inputs]}
    (python,) = results(run_aot([network]))
    (ours,) = results(run_aot([network | {"library": [str(plugin_library), "registry"]}]))
    assert Counter(ours["layers"])["PLUGIN_V3"] == Counter(ours["layers"])["KV_CACHE_UPDATE"] == 1
    assert (ours["layers"], ours["tensors"]) == (python["layers"], python["tensors"])
    assert ours["plans"]["SM120"], ours["log"]


def words_of(plan: str) -> tuple[int, list[bytes]]:
    """The size and the texts of a plan: its layers, plugins and fields. TensorRT numbers them anew in every build."""
    content = bytes.fromhex(plan)
    return len(content), sorted(re.findall(rb"[A-Za-z_][ -~]{5,}", content))


def test_invalid_node_is_rejected_with_the_same_message(write_model: Write, plugin_library: Path) -> None:
    cases = [case(write_model, "PlaceholderDraft", edit=edit) for edit, _ in REFUSED.values()]
    process = run_aot([each | {"library": [str(plugin_library), "registry"]} for each in cases])
    for answer in results(process):
        assert not any(answer["plans"].values())
    said = [line for line in process.stderr.splitlines() if line.startswith("[peagle] [E]")]
    for _, words in REFUSED.values():
        assert f"[peagle] [E] PlaceholderDraft: {words}" in said
