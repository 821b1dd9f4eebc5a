"""OpSpec checks attributes, dtypes and shapes, and reports all problems at once."""

from __future__ import annotations

import pytest

from peagle.plugins.errors import BuildError
from peagle.plugins.op_spec import Attribute, Operand, OpSpec, evaluate_dim, is_linear

SPEC = OpSpec(
    name="Sample",
    doc="",
    inputs=(
        Operand("x", ("B", "N"), ("float32", "float16")),
        Operand("y", ("B", "M"), ("float32", "float16"), same_as="x"),
        Operand("bias", ("N",), ("int32",), optional=True),
    ),
    outputs=(Operand("z", ("B", "N+M-1"), ("float32", "float16"), same_as="x"), Operand("n", ("B",), ("int64",))),
    reference=lambda: (),
    body=lambda attributes, present: "",
    attributes=(
        Attribute("scale", float, 1.0),
        Attribute("count", int, 2, check=lambda value: "must be even" if value % 2 else None),
        Attribute("mode", str, "a"),
    ),
    check_dims=lambda dims: "N must be 2 or more" if dims.get("N", 2) < 2 else None,
)


class Symbol:
    """A symbolic integer, as torch has them: good for sums, not for comparison."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: object) -> Symbol:
        return Symbol(f"{self.text}+{other}")

    def __radd__(self, other: object) -> Symbol:
        return Symbol(f"{other}+{self.text}")

    def __sub__(self, other: object) -> Symbol:
        return Symbol(f"{self.text}-{other}")

    def __bool__(self) -> bool:
        raise AssertionError("a symbolic integer was compared")

    __eq__ = __lt__ = __gt__ = lambda self, other: self  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def problems(call: object, *args: object) -> str:
    with pytest.raises(BuildError) as caught:
        call(*args)  # type: ignore[operator]
    assert "see the spec of peagle::Sample" in str(caught.value)
    return caught.value.what


def test_dim_expressions_are_linear() -> None:
    assert evaluate_dim("S+E-2", {"S": 9, "E": 4}) == 11
    assert evaluate_dim("B", {"B": 3}) == 3
    assert evaluate_dim("S+E-2", {"S": Symbol("s"), "E": 4}).text == "0+s+4-2"


def test_invalid_dim_expression_has_no_value() -> None:
    assert is_linear("S + E - 2")
    assert not is_linear("S * 2")
    assert not is_linear("")


def test_attributes_get_defaults_and_floats_accept_ints() -> None:
    assert SPEC.check_attributes({"scale": 2}) == {"scale": 2.0, "count": 2, "mode": "a"}


def test_every_bad_attribute_is_named() -> None:
    what = problems(SPEC.check_attributes, {"colour": 1, "scale": "x", "count": 3, "mode": 1.5})
    assert what == (
        "Sample: unknown attribute 'colour'; scale must be float, not str; count must be even; "
        "mode must be str, not float"
    )


def test_bool_is_not_an_int() -> None:
    assert "count must be int, not bool" in problems(SPEC.check_attributes, {"count": True})


def test_output_shapes_follow_the_inputs() -> None:
    assert SPEC.infer_shapes([(2, 5), (2, 3)]) == [(2, 7), (2,)]
    assert SPEC.infer_shapes([(2, 5), (2, 3), (5,)]) == [(2, 7), (2,)]


def test_every_shape_problem_is_named() -> None:
    what = problems(SPEC.infer_shapes, [(2, 5), (3, 3), (4,), (1,)])
    assert what == (
        "Sample: takes at most 3 inputs, not 4; y: dimension B is 3, but 2 in another tensor; "
        "bias: dimension N is 4, but 5 in another tensor"
    )
    assert "x must have rank 2, not 3; bias must have rank 1, not 0" in problems(
        SPEC.infer_shapes, [(1, 2, 3), (1, 3), ()]
    )
    assert "input y is missing" in problems(SPEC.infer_shapes, [(2, 5)])
    assert "N must be 2 or more" in problems(SPEC.infer_shapes, [(2, 1), (2, 3)])


def test_symbolic_dimensions_pass_and_a_known_one_beats_them() -> None:
    batch, n = Symbol("b"), Symbol("n")
    shape, _ = SPEC.infer_shapes([(batch, n), (batch, 3)])
    assert shape[0].text == "0+b"
    assert SPEC.infer_shapes([(batch, n), (2, 3), (5,)])[0] == (2, 7)


def test_output_dtypes_follow_the_inputs() -> None:
    assert SPEC.infer_dtypes(["float16", "float16"]) == ["float16", "int64"]


def test_every_dtype_problem_is_named() -> None:
    what = problems(SPEC.infer_dtypes, ["float16", "float32", "int64"])
    assert what == "Sample: y must be float16, not float32; bias must be int32, not int64"
    assert "x must be float32 or float16, not int8" in problems(SPEC.infer_dtypes, ["int8", "int8"])
