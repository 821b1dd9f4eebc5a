from __future__ import annotations

import pytest

from peagle.plugins.errors import BuildError
from peagle.plugins.op_spec import SELECTION
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt.check_call import bind, check_call

DRAFT = OPS["PlaceholderDraft"]
DRAFT_DTYPES = tuple(operand.dtypes[0] for operand in DRAFT.inputs)
DRAFT_SHAPES = [["B", "S"], ["B"], ["B"], ["B"], ["B", "E"], ["B"]]


def test_a_call_with_named_dimensions_gives_named_outputs() -> None:
    outputs = check_call(DRAFT, {"mask_token_id": 7}, DRAFT_DTYPES, DRAFT_SHAPES)
    assert outputs[0] == ("int64", ("B", "S+E-2"))
    assert outputs[1] == ("bool", ("B", "S+E-2"))
    assert outputs[2] == ("int64", ("B", "E-1"))
    assert outputs[-1] == ("int32", ("B",))


def test_known_sizes_are_reckoned_with() -> None:
    shapes = [[2, 4], [2], ["B"], [2], ["rows", 3], [2]]
    assert check_call(DRAFT, {"mask_token_id": 7}, DRAFT_DTYPES, shapes)[0] == ("int64", (2, 5))


def test_unknown_shape_is_inferred_from_others() -> None:
    shapes = [[2, 4], [2], None, [2], [2, 3], None]
    assert check_call(DRAFT, {"mask_token_id": 7}, DRAFT_DTYPES, shapes)[2] == ("int64", (2, 2))


def test_an_attribute_can_be_a_size() -> None:
    shapes = [["B", 9], ["B"], ["B"], ["B"]]
    dtypes = ("float32", "int64", "int32", "int32")
    assert check_call(OPS["NumbersAt"], {"columns": 5}, dtypes, shapes) == [("float32", ("B", 5))]


def test_plugin_selection_marks_are_not_op_attributes() -> None:
    attributes = {"mask_token_id": 7, **SELECTION}
    assert len(check_call(DRAFT, attributes, DRAFT_DTYPES, DRAFT_SHAPES)) == 7


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({}, "mask_token_id must be given"),
        ({"mask_token_id": -1}, "mask_token_id must be 0 or more"),
        ({"mask_token_id": 3.0}, "mask_token_id must be int, not float"),
        ({"mask_token_id": True}, "mask_token_id must be int, not bool"),
        ({"mask_token_id": [3]}, "mask_token_id must be int, not list"),
        ({"mask_token_id": 2**31}, "32-bit"),
        ({"mask_token_id": 3, "mask": 3}, "unknown attribute 'mask'"),
        ({"mask_token_id": 3, "plugin_version": "2"}, "plugin_version is '2', but the plugin has '1'"),
        ({"mask_token_id": 3, "plugin_namespace": ""}, "plugin_namespace is '', but the plugin has 'peagle'"),
    ],
)
def test_attributes_that_do_not_fit_are_named(attributes: dict[str, object], complaint: str) -> None:
    with pytest.raises(BuildError, match="PlaceholderDraft") as caught:
        check_call(DRAFT, attributes, DRAFT_DTYPES, DRAFT_SHAPES)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("position", "dtype", "shape", "complaint"),
    [
        (0, "int32", ["B", "S"], "input_ids must be int64, not int32"),
        (4, "int64", ["B", "E"], "tokens must be int32, not int64"),
        (0, "int64", ["B"], "input_ids must have rank 2, not 1"),
        (5, "int32", ["B", 1], "num_tokens must have rank 1, not 2"),
        (4, "int32", ["B", 1], "tokens must have at least 2 columns"),
        (3, None, None, "input draft_len is missing"),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    position: int, dtype: str | None, shape: list[str | int] | None, complaint: str
) -> None:
    dtypes, shapes = [*DRAFT_DTYPES], [*DRAFT_SHAPES]
    dtypes[position], shapes[position] = dtype, shape  # type: ignore[call-overload]
    with pytest.raises(BuildError) as caught:
        check_call(DRAFT, {"mask_token_id": 7}, dtypes, shapes)
    assert complaint in str(caught.value)


def test_sizes_that_contradict_each_other_are_named() -> None:
    with pytest.raises(BuildError, match="dimension B is 3, but 2 in another tensor"):
        check_call(DRAFT, {"mask_token_id": 7}, DRAFT_DTYPES, [[2, 4], [2], [3], [2], [2, 3], [2]])


def test_the_dimensions_of_a_call_are_bound_by_name() -> None:
    assert bind(DRAFT, [(2, 4), (2,), (2,), (2,), (2, 3), (2,)]) == {"B": 2, "S": 4, "E": 3}
