"""A recipe that TensorRT did not follow fails the build, and the error names the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.precision.product_table import BuiltProduct
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.plan_proof import losses, require_effect
from peagle.plugins.errors import BuildError
from tests.compiler.tensorrt.products import products
from tests.compiler.tensorrt.small import request

FP8 = "float8e4m3fn"


def _record(**products: dict[str, Any]) -> dict[str, Any]:
    """Return the record of ``QuantizedGraph`` for a graph with these products, all quantized and of equal size."""
    rows = [
        {"weight": name, "stored": FP8, "computed": FP8, "numbers": 10, "role": "mlp", "narrow": True} | changes
        for name, changes in products.items()
    ]
    recipe = {"recipe": "fp8", "experts": "fp8"}
    share = sum(row["numbers"] for row in rows if row["narrow"]) / (10 * len(rows))
    return {
        "recipe": recipe,
        "share": share,
        "accepted_share": share,
        "least_share": 0.9,
        "numbers": 10 * len(rows),
        "matmuls": rows,
    }


def _built(*names: str, **changes: Any) -> list[BuiltProduct]:
    return [replace(BuiltProduct(f"{name}.y", name, FP8, FP8, 10, by="plan"), **changes) for name in names]


def test_plan_that_matches_the_graph_reports_nothing() -> None:
    assert require_effect("target", _record(a={}, b={}), _built("a", "b")) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stored": "float16"}, "TensorRT stores the weight as float16"),
        ({"computed": "bfloat16"}, "TensorRT computes in bfloat16"),
        ({"computed": "float16", "unpacked": True}, "TensorRT computes in float16"),
        ({"weight": "c"}, "no layer of TensorRT's network uses the weight"),
    ],
)
def test_a_loss_fails_the_build_and_is_named(changes: dict[str, Any], why: str) -> None:
    built = [*_built("a"), *_built("b", **changes)]
    with pytest.raises(BuildError) as caught:
        require_effect("target", _record(a={}, b={}), built)
    assert caught.value.exit_code == 5
    assert "50.0% of the weights that --precision fp8 quantizes are FP8 in the target plan" in caught.value.what
    assert caught.value.why == f"b: {why}"


def test_small_loss_is_reported() -> None:
    names = [f"w{i}" for i in range(10)]
    built = [*_built(*names[1:]), *_built("w0", stored="float16")]
    (note,) = require_effect("drafter", _record(**{name: {} for name in names}), built)
    assert note == (
        "1 weight that fp8 quantizes is not FP8 in the drafter plan: w0: TensorRT stores the weight as float16"
    )


def test_inspector_only_mismatch_is_reported_without_failure() -> None:
    built = [*_built("a"), *_built("b", stored="float16", by="inspector")]
    (note,) = require_effect("target", _record(a={}, b={}), built)
    assert "b: TensorRT stores the weight as float16" in note


def test_the_worst_product_of_a_weight_counts() -> None:
    record = _record(a={})
    assert losses(record, _built("a", "a")) == {}
    assert list(losses(record, [*_built("a"), *_built("a", stored="float16")])) == ["a"]


def test_unquantized_graph_weight_is_not_counted_as_lost() -> None:
    record = _record(**{f"w{i}": {} for i in range(9)}, wide={"narrow": False, "stored": "float16"})
    built = [*_built(*(f"w{i}" for i in range(9))), *_built("wide", stored="float16", computed="float16")]
    assert require_effect("target", record, built) == []


def test_weight_unpacked_before_every_matmul_counts_as_lost_except_experts() -> None:
    unpacked = _built("a", computed="float16", unpacked=True)
    assert losses(_record(a={"computed": "float16"}), unpacked) == {
        "a": "TensorRT dequantizes the weight to memory in float16 before every matmul"
    }
    (note,) = require_effect("target", _record(a={"computed": "float16", "role": "experts"}), unpacked)
    assert "dequantized to memory in float16 before every matmul of the target plan" in note


def test_integers_in_blocks_do_not_take_effect_in_a_real_plan(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")
    forms = ("int8_blocks", "int8_weight")
    facts = build_plan(request(products(tmp_path, forms)), tmp_path / "plan", Quiet())
    each: dict[str, Any] = {"stored": "int8", "computed": "float16"}
    record = _record(**{f"{form}.weight": each for form in forms})
    assert list(losses(record, facts.products)) == ["int8_blocks.weight"]
    with pytest.raises(BuildError, match=r"50\.0%") as caught:
        require_effect("target", record, facts.products)
    assert caught.value.why.startswith("int8_blocks.weight: TensorRT dequantizes the weight to memory in float16")
