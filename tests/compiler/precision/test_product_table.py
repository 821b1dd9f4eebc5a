"""The products of an engine, counted by type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.precision.product_table import BuiltProduct, described, product_table

FP8 = "float8e4m3fn"
Q = BuiltProduct("q.y", "q", FP8, FP8, 60, by="plan")
EXPERTS = BuiltProduct("e.y", "experts", FP8, "bfloat16", 30, unpacked=True, by="plan")
HEAD = BuiltProduct("h.y", "head", "bfloat16", "bfloat16", 10)
GRAPH: dict[str, Any] = {
    "matmuls": [
        {"weight": "q", "op": "MatMul", "stored": FP8, "computed": FP8, "numbers": 60, "role": "mlp", "narrow": True},
        {
            "weight": "head",
            "op": "MatMul",
            "stored": "int4",
            "computed": "int8",
            "numbers": 10,
            "role": "",
            "why": "no",
        },
    ]
}


def test_table_line_names_types_and_their_source() -> None:
    table = product_table(None, [Q, replace(Q, layer="k.y", weight="k"), EXPERTS, HEAD])
    assert table
    assert described(table) == (
        "4: 2 fp8 (75.0% of the weights), 1 fp8 dequantized to bf16 before every matmul (18.8%), 1 bf16 (6.2%); "
        "according to TensorRT's parser, according to the plan"
    )
    assert table["bytes"] == 60 + 60 + 30 + 2 * 10


def test_graph_types_are_used_without_a_plan() -> None:
    table = product_table(GRAPH, ())
    assert table
    assert described(table) == (
        "2: 1 fp8 (85.7% of the weights), 1 int4 computed in int8 (14.3%); according to the lowered graph"
    )
    assert table["list"][1]["why"] == "no"


def test_both_accounts_of_a_weight_stand_side_by_side() -> None:
    table = product_table(GRAPH, [Q, HEAD])
    assert table
    assert [row["graph"]["stored"] for row in table["list"]] == [FP8, "int4"]
    assert [row["by"] for row in table["list"]] == ["plan", "network"]


def test_unknown_types_are_omitted() -> None:
    assert product_table(None, ()) is None


def test_a_weight_of_two_products_counts_as_the_widest_has_it() -> None:
    table = product_table(None, [Q, replace(Q, layer="z.y", computed="bfloat16", unpacked=True), HEAD])
    assert table
    assert [(each["matmuls"], each["numbers"]) for each in table["types"]] == [(1, 60), (1, 10), (1, 0)]
    assert "1 fp8 dequantized to bf16 before every matmul (85.7% of the weights)" in described(table)


@given(
    st.lists(
        st.builds(replace, st.sampled_from([Q, EXPERTS, HEAD]), weight=st.sampled_from("abc"), unpacked=st.booleans()),
        min_size=1,
    )
)
def test_shares_sum_to_one_however_often_a_weight_is_multiplied(built: list[BuiltProduct]) -> None:
    table = product_table(None, built)
    assert table
    assert abs(sum(each["share"] for each in table["types"]) - 1) < 1e-4
    for what in ("numbers", "bytes"):
        assert sum(each[what] for each in table["types"]) == table[what]
    assert table["total"] == len(built)


@given(st.lists(st.builds(replace, st.sampled_from([Q, EXPERTS, HEAD]), numbers=st.integers(1, 99)), min_size=1))
def test_totals_match_the_list(built: list[BuiltProduct]) -> None:
    named = [replace(each, weight=str(i)) for i, each in enumerate(built)]
    table = product_table(None, named)
    assert table
    assert sum(each["matmuls"] for each in table["types"]) == table["total"] == len(built)
    for what in ("numbers", "bytes"):
        assert sum(each[what] for each in table["types"]) == table[what]
    assert abs(sum(each["share"] for each in table["types"]) - 1) < 1e-4


def test_blocks_of_a_file_are_named_by_their_type() -> None:
    """Codes may have any number of bits; types with the same number are distinguished."""
    row = {"stored": "int6", "computed": "int8", "numbers": 32, "blocks": "q6_k", "weight": "a"}
    rows = [row, row | {"weight": "b", "stored": "int4", "blocks": "q4_k"},
            row | {"weight": "c", "stored": "int4", "blocks": "mxfp4"}]  # fmt: skip
    table = product_table({"matmuls": rows}, ())
    assert table
    assert [(each["blocks"], each["bytes"]) for each in table["types"]] == [("q6_k", 24), ("q4_k", 16), ("mxfp4", 16)]
    assert "1 q6_k computed in int8 (33.3% of the weights), 1 q4_k computed in int8" in described(table)
