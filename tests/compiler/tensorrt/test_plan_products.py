"""The products that TensorRT reports for plans built by TensorRT-RTX ahead of time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.precision.product_table import BuiltProduct, bytes_of
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_products import with_built_types
from peagle.compiler.tensorrt.plan_programs import Program, ProgramTensor, Step
from tests.compiler.tensorrt.products import FORMS, IN, OUT, products
from tests.compiler.tensorrt.small import request


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuiltProduct]:
    """By form, from one plan for two GPUs with two profiles."""
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    folder = tmp_path_factory.mktemp("products")
    facts = build_plan(request(products(folder), gpus=("sm_89", "sm_120")), folder / "plan", Quiet())
    return {each.weight.removesuffix(".weight"): each for each in facts.products}


def test_plan_reports_storage_and_compute_type_of_every_matmul(built: dict[str, BuiltProduct]) -> None:
    assert {name: (each.stored, each.computed, each.unpacked) for name, each in built.items()} == FORMS
    assert {each.by for each in built.values()} == {"plan"}
    assert {each.numbers for each in built.values()} == {OUT * IN}
    assert {name: each.layer for name, each in built.items()} == {name: f"{name}.y" for name in FORMS}


FOUND = BuiltProduct("product", "w", "int8", "int8", 8)


def _program(stored: str = "int8", computed: str = "int8", numbers: int = 8) -> Program:
    tensors = {
        "x": ProgramTensor(computed, (-1, 2), constant=False),
        "w": ProgramTensor(stored, (numbers,), constant=True),
        "wide": ProgramTensor(computed, (numbers,), constant=False),
        "s": ProgramTensor("float32", (1,), constant=True),
    }
    factor = "w" if stored == computed else "wide"
    unpack = Step("function", "unpack", ("w", "s"), ("wide",), ("dequantize",))
    product = Step("fully_connected", "any name", ("x", factor, "s"), ("y",), ("product", "dequantize"))
    return Program(tensors, (unpack, product))


def test_the_widest_of_all_profiles_counts() -> None:
    (result,) = with_built_types([FOUND], [_program(), _program(computed="float16")], "plan")
    assert result == replace(FOUND, computed="float16", unpacked=True, by="plan")


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([], id="a plan that says nothing"),
        pytest.param([_program(), Program({}, ())], id="a profile that does not show the product"),
        pytest.param([_program(stored="fp5", computed="fp5")], id="a type that nobody knows"),
        pytest.param([_program(numbers=4)], id="a constant too small to be the weight"),
    ],
)
def test_details_missing_from_a_plan_come_from_the_network(programs: list[Program]) -> None:
    assert with_built_types([FOUND], programs, "plan") == (FOUND,)


OTHER = Program({}, ())  # the part of a profile after a plugin


def test_matmul_split_by_plugins_is_read_per_profile() -> None:
    (result,) = with_built_types([FOUND], [_program(), OTHER, OTHER, _program(computed="float16")], "plan", 2)
    assert result == replace(FOUND, computed="float16", unpacked=True, by="plan")


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param([_program(), OTHER, OTHER, OTHER], id="a profile that does not show the product in any piece"),
        pytest.param([_program(), _program(computed="float16"), _program(), OTHER], id="pieces that differ"),
        pytest.param([_program(), OTHER, _program()], id="pieces that cannot be told apart by profile"),
    ],
)
def test_pieces_that_do_not_tell_of_a_product_leave_it_as_the_network_has_it(programs: list[Program]) -> None:
    assert with_built_types([FOUND], programs, "plan", 2) == (FOUND,)


def test_several_products_that_became_one_are_all_found() -> None:
    merged = _program(numbers=16)
    product = replace(merged.steps[1], layers=("product", "other"))
    found = [FOUND, replace(FOUND, layer="other", weight="v")]
    results = with_built_types(found, [replace(merged, steps=(product,))], "plan")
    assert [each.by for each in results] == ["plan", "plan"]


def test_byte_sizes_match_the_type() -> None:
    assert [bytes_of(kind, 6) for kind in ("float32", "bfloat16", "float8e4m3fn", "int4")] == [24, 12, 6, 3]
