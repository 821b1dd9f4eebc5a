"""The products in the output of full TensorRT's engine inspector, which itself requires a GPU."""

from __future__ import annotations

import json
import mmap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.hardware.machine import inspect_machine
from peagle.compiler.precision.product_table import BuiltProduct
from peagle.compiler.tensorrt import inspector
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.inspector import inspected, programs_of
from peagle.compiler.tensorrt.plan_products import with_built_types
from tests.compiler.tensorrt.products import FORMS, products
from tests.compiler.tensorrt.small import request


def _tensor(name: str, dims: list[int], kind: str) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": dims, "Format/Datatype": kind}


ANSWER = {
    "Layers": [
        {
            "Name": "__myl_Cast_myl0_1",
            "LayerType": "kgen",
            "Inputs": [_tensor("v_dconst", [6, 4], "Int8")],
            "Outputs": [_tensor("v_wide", [6, 4], "Half")],
            "Metadata": "[ONNX Layer: unpack]",
        },
        {
            "Name": "second_myl0_2",
            "LayerType": "gemm",
            "Inputs": [_tensor("x", [-1, 6], "Half"), _tensor("v_wide", [6, 4], "Half")],
            "Outputs": [_tensor("z", [-1, 4], "Half")],
            "Metadata": "[ONNX Layer: second]",
        },
        {
            "Name": "first_myl0_3",
            "LayerType": "gemm",
            "Inputs": [_tensor("codes", [-1, 6], "FP8"), _tensor("w_dconst", [6, 4], "Row major linear FP8 format")],
            "Outputs": [_tensor("y", [-1, 4], "Half")],
            "Metadata": "[ONNX Layer: first]\x1e[ONNX Layer: dequantize]",
        },
    ],
    "Bindings": ["x", "codes", "y", "z"],
}


def test_layers_are_read_as_products() -> None:
    found = [
        BuiltProduct("first", "w", "float8e4m3fn", "float16", 24),
        BuiltProduct("second", "v", "int8", "int8", 24),
    ]
    assert with_built_types(found, programs_of(ANSWER), "inspector") == (
        BuiltProduct("first", "w", "float8e4m3fn", "float8e4m3fn", 24, by="inspector"),
        BuiltProduct("second", "v", "int8", "float16", 24, unpacked=True, by="inspector"),
    )


@pytest.mark.parametrize("answer", [None, {}, [], {"Layers": []}, {"Layers": ["a name", "another"]}])
def test_answer_without_details_gives_no_program(answer: object) -> None:
    assert programs_of(answer) == []


class StandIn:
    """A fake TensorRT for inspection: it loads only ``plan``, and returns ``text``."""

    def __init__(self, plan: bytes, text: str) -> None:
        self.LayerInformationFormat = SimpleNamespace(JSON="json")
        self._plan, self._text = plan, text

    def Runtime(self, _: object) -> StandIn:
        return self

    def deserialize_cuda_engine(self, plan: mmap.mmap) -> StandIn | None:
        return self if plan[:] == self._plan else None  # as TensorRT treats invalid input

    def create_engine_inspector(self) -> StandIn:
        return self

    def get_engine_information(self, form: str) -> str:
        assert form == "json"
        return self._text


def test_an_engine_that_answers_is_read_as_programs(tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(b"an engine")
    found = inspected(StandIn(b"an engine", json.dumps(ANSWER)), None, tmp_path / "plan")
    assert found.programs == programs_of(ANSWER) != []
    assert json.loads(found.text) == ANSWER
    assert found.notes == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError: "),
        ('{"Layers": ["a name"]}', "the inspector returned no layers with details"),
        (None, "AttributeError: 'NoneType' object has no attribute 'create_engine_inspector'"),
    ],
)
def test_missing_inspection_states_the_reason(text: str | None, why: str, tmp_path: Path) -> None:
    (tmp_path / "plan").write_bytes(b"an engine")
    trt = StandIn(b"an engine" if text is not None else b"another", text or "")
    programs, kept, (note,) = inspected(trt, None, tmp_path / "plan")
    assert (programs, kept) == ([], "")
    assert note.startswith(f"the plan was not inspected: {why}")
    assert note.endswith("; the report lists the matmuls of TensorRT's parser instead")


def test_a_plan_that_memory_is_short_for_is_not_inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan").write_bytes(bytes(3000))
    monkeypatch.setattr(inspector, "free_memory", lambda: 2999)
    programs, kept, (note,) = inspected(object(), None, tmp_path / "plan")
    assert (programs, kept) == ([], "")
    assert note.startswith("the plan was not inspected: inspection needs 3.0 kB of memory, but only 3.0 kB are free")


@pytest.mark.gpu
@pytest.mark.tensorrt
@pytest.mark.skipif(
    not inspect_machine().sms or find_spec("tensorrt") is None, reason="needs TensorRT and a GPU for it"
)
def test_the_inspector_of_a_real_engine_names_every_product(tmp_path: Path) -> None:
    gpu = f"sm_{inspect_machine().sms[0]}"
    facts = build_plan(request(products(tmp_path), product="tensorrt", gpus=(gpu,)), tmp_path / "plan", Quiet())
    assert {each.weight: each.stored for each in facts.products} == {
        f"{name}.weight": stored for name, (stored, _, _) in FORMS.items()
    }
    assert {each.by for each in facts.products} == {"inspector"}
