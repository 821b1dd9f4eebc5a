"""Programs are found in the bytes of a plan, and parsed."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.tensorrt import plan_programs
from peagle.compiler.tensorrt.plan_programs import ProgramTensor, Step, parse, read_programs

TEXT = """header {
  version = 5
}
descriptors {
  tensor={ alignment=128 const_payload_size=24 dims={ 4 6 } name="w" offset=3 rank0=0 strides={ 6 1 } type=fp8_e4m3 }
  tensor={ alignment=2 dims={ "rows.1" 4 } mem_prop=0 name="x [profile 1].1" offset=0 strides={ 4 1 } type=half }
  sub_tensor={ base="x.1" const_offset=0 dims={ 6 } mem_prop=0 name="part^deref" offset=0 strides={ 1 } type=bfloat }
}
main {
 label bb1:
  function={ name=__myl_Cast args={ "w" "y" } input_args={ "w" } output_args={ "y" } layers="[ONNX Layer: a/b]" }
  fully_connected={ name="c" output={"z" } input={"x [profile 1].1" "y" } layers="[ONNX Layer: c]\x1f[ONNX Layer: d]" }
}
shape_main {
  copy={ name="later" output={"z" } input={"x" } layers="" }
}
"""
INSIDE = """header {
  region = { name=runtime-fusion-consts size=132 }
}
descriptors {
  tensor={ alignment=2 dims={ 4 6 } mem_prop=0 name="v" offset=0 strides={ 6 1 } type=half }
}
main {
  cast={ name="cast" output={"v" } input={"w" } stream=0 layers="" }
}
"""


def _framed(text: str) -> bytes:
    content = text.encode()
    return b"NLYM" + b"\xa1\xda\x1e\0" + struct.pack("<Q", len(content)) + content


def _read(content: bytes) -> list[plan_programs.Program]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_programs(Path(file.name))


def test_tensors_and_steps_are_read() -> None:
    found = parse(TEXT)
    assert found.tensors == {
        "w": ProgramTensor("float8e4m3fn", (4, 6), constant=True),
        "x [profile 1].1": ProgramTensor("float16", (-1, 4), constant=False),
        "part^deref": ProgramTensor("bfloat16", (6,), constant=False),
    }
    assert found.steps == (
        Step("function", "__myl_Cast", ("w",), ("y",), ("a/b",)),
        Step("fully_connected", "c", ("x [profile 1].1", "y"), ("z",), ("c", "d")),
    )


def test_work_inside_a_kernel_belongs_to_its_program() -> None:
    first, second = _read(_framed(TEXT) + b"\0" * 5 + _framed(INSIDE) + _framed(TEXT))
    assert first.steps[-1] == Step("cast", "cast", ("w",), ("v",), (), fused=True)
    assert first.tensors["v"].dtype == "float16"
    assert second == parse(TEXT)


_PARTS = st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"NLYM", b"NLY", _framed("header {\n}\n")])))


@settings(max_examples=20)
@given(before=_PARTS, between=_PARTS, piece=st.integers(40, 400))
def test_programs_are_found_at_any_depth(before: list[bytes], between: list[bytes], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_programs, "_PIECE", piece)
        found = _read(b"".join(before) + _framed(TEXT) + b"".join(between) + _framed(TEXT) + b"".join(before))
    assert found == [parse(TEXT), parse(TEXT)]


@pytest.mark.parametrize("content", [b"", b"NLY", b"NLYM", b"weights" * 9, _framed(TEXT)[:-20], _framed("other text")])
def test_a_file_without_a_whole_program_has_none(content: bytes) -> None:
    assert _read(content) == []
