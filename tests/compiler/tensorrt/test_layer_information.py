"""The layers of a plan in the JSON format of trt-engine-explorer."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.inspector import programs_of
from peagle.compiler.tensorrt.layer_information import layers_beside, layers_of_programs
from peagle.compiler.tensorrt.plan_programs import Program, ProgramTensor, Step
from tests.compiler.tensorrt.small import HEAD, VOCAB, profiles, request, written

TENSORS = {
    "x": ProgramTensor("float16", (-1, 6), constant=False),
    "w": ProgramTensor("float8e4m3fn", (6, 4), constant=True),
    "y": ProgramTensor("float16", (-1, 4), constant=False),
}
PRODUCT = Step("fully_connected", "first_1", ("x", "w"), ("y",), ("first", "unpack"))
WAIT = Step("wait", "wait_2", (), (), ())
INSIDE = Step("cast", "inside", ("w",), ("v",), (), fused=True)
UNDESCRIBED = Step("custom_layer", "accept", ("y", "other"), (), ("accept",))


def _content(*programs: Program, profiles: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(layers_of_programs(programs, profiles, ["x", "y"]))
    return content


def test_layers_are_written_in_the_inspector_s_form() -> None:
    program = Program(TENSORS, (PRODUCT, WAIT, INSIDE, UNDESCRIBED))
    content = _content(program, profiles=1)
    assert content["Bindings"] == ["x", "y"]
    first, second = content["Layers"]
    assert first == {
        "Name": "first_1",
        "LayerType": "fully_connected",
        "Inputs": [
            {"Name": "x", "Dimensions": [-1, 6], "Format/Datatype": "Half"},
            {"Name": "w", "Dimensions": [6, 4], "Format/Datatype": "FP8"},
        ],
        "Outputs": [{"Name": "y", "Dimensions": [-1, 4], "Format/Datatype": "Half"}],
        "Metadata": "[ONNX Layer: first]\x1e[ONNX Layer: unpack]",
    }
    assert second["Inputs"][1] == {"Name": "other", "Dimensions": [], "Format/Datatype": "None"}
    (read,) = programs_of(content)  # like output of the inspector
    assert read.tensors["w"] == TENSORS["w"]
    assert [step.layers for step in read.steps] == [PRODUCT.layers, UNDESCRIBED.layers]


def test_later_profiles_have_their_number_in_every_name() -> None:
    suffixed = Program({}, (Step("custom_layer", "accept [profile 1]", (), (), ()),))
    first, second = Program(TENSORS, (PRODUCT,)), Program({}, (UNDESCRIBED,))
    content = _content(first, second, first, suffixed, profiles=2)  # a plugin splits each profile
    names = [layer["Name"] for layer in content["Layers"]]
    assert names == ["first_1", "accept", "first_1 [profile 1]", "accept [profile 1]"]
    assert content["Bindings"] == ["x", "y", "x [profile 1]", "y [profile 1]"]


@pytest.mark.parametrize("count", [0, 3])
def test_programs_of_unknown_profiles_write_no_file(count: int) -> None:
    assert layers_of_programs([Program(TENSORS, (PRODUCT,))] * count, 2, ["x"]) == ""


def test_a_plan_built_ahead_of_time_has_a_layer_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    plan = tmp_path / "out" / "model.plan"
    facts = build_plan(request(written(tmp_path)), plan, Quiet())
    assert layers_beside(plan).name == "model.plan.graph.json"
    content = json.loads(layers_beside(plan).read_text())
    for number in range(len(profiles())):
        # trt-engine-explorer takes the layers of a profile by this pattern, and those without one for the first.
        own = [layer for layer in content["Layers"] if _profile(layer["Name"]) == number]
        assert {"head", "attention", "accept"} <= {
            name for layer in own for name in re.findall(r"ONNX Layer: (\w+)\]", layer["Metadata"])
        }
        (head,) = (layer for layer in own if "[ONNX Layer: head]" in layer["Metadata"])
        weights = [each["Dimensions"] for each in head["Inputs"] if each["Format/Datatype"] == "Half"]
        assert HEAD * VOCAB in map(math.prod, weights)
        bindings = [name for name in content["Bindings"] if _profile(name) == number]
        assert [name.partition(" ")[0] for name in bindings] == [tensor.name for tensor in facts.plan.tensors]


def _profile(name: str) -> int:
    found = re.search(r"\[profile +([0-9])\]", name)
    return int(found[1]) if found else 0
