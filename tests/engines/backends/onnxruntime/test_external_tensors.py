"""The tensors of an ONNX file that other files store, as the ``onnx`` package finds them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from peagle.engines.backends.onnxruntime.external_tensors import external_tensors


def stored(name: str, dims: list[int], kind: int = TensorProto.FLOAT, **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, dims=dims, data_type=kind, data_location=TensorProto.EXTERNAL)
    for key, value in ({"location": "weights"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(*tensors: TensorProto) -> bytes:
    inside = helper.make_tensor("inside", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    return bytes(helper.make_model(helper.make_graph([node], "g", [x], [y], [inside, *tensors])).SerializeToString())


SMALL = model(stored("a", [3, 2], offset=64, length=24), stored("b", []))


def test_tensors_are_those_of_the_onnx_package(tiny_folder: Path) -> None:
    found = 0
    for path in tiny_folder.rglob("*.onnx"):
        named = onnx.load(path, load_external_data=False).graph.initializer
        entries = [(tensor, {e.key: e.value for e in tensor.external_data}) for tensor in named if tensor.external_data]
        expected = [
            (t.name, tuple(t.dims), t.data_type, entry["location"], int(entry["offset"]), int(entry["length"]))
            for t, entry in entries
        ]
        tensors = external_tensors(path.read_bytes())
        assert [(t.name, t.dims, t.type.onnx, t.file, t.offset, t.end - t.offset) for t in tensors] == expected
        found += len(tensors)
    assert found


def test_offset_and_length_are_optional() -> None:
    (scalar,) = external_tensors(model(stored("s", [])))
    assert (scalar.dims, scalar.offset, scalar.end) == ((), 0, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        stored("a", [2], TensorProto.BFLOAT16),
        stored("a", [2], TensorProto.INT4),
        stored("a", [2], TensorProto.STRING),
        stored("a", [2], length=9),
        TensorProto(name="a", dims=[2], data_type=TensorProto.FLOAT),
    ],
    ids=["bfloat16", "int4", "strings", "other-length", "inside"],
)
def test_tensors_that_numpy_cannot_hold_are_left_out(tensor: TensorProto) -> None:
    assert external_tensors(model(tensor)) == []


@given(st.integers(0, len(SMALL) - 1))
def test_a_truncated_model_has_no_further_tensors(length: int) -> None:
    try:
        found = external_tensors(SMALL[:length])
    except ValueError:
        return
    assert len(found) < 2


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_raise_nothing_but_value_errors(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(SMALL)
    for at, byte in changes:
        damaged[at] = byte
    with suppress(ValueError):
        external_tensors(bytes(damaged))


@given(st.binary(max_size=64))
def test_other_bytes_raise_nothing_but_value_errors(content: bytes) -> None:
    try:
        found = external_tensors(content)
    except ValueError:
        return
    assert found == []


def test_dims_count_elements() -> None:
    first, second = external_tensors(SMALL)
    assert (first.name, first.dims, first.offset, first.end) == ("a", (3, 2), 64, 88)
    assert (second.name, second.type.dtype) == ("b", np.dtype(np.float32))
