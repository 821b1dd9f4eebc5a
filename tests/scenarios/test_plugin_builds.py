"""Every plugin node is parsed and built ahead of time; unsupported ones are refused with a typed error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from peagle.plugins.ops import OPS
from tests.plugins.tensorrt.rtx_builds import needs_rtx, profile, results, run_aot

pytestmark = needs_rtx

VERIFY = ({"B": 1, "S": 1, "E": 2}, {"B": 4, "S": 5, "E": 5}, {"B": 8, "S": 9, "E": 9})
PREFILL = ({"B": 1, "S": 1, "E": 2}, {"B": 1, "S": 64, "E": 5}, {"B": 1, "S": 512, "E": 9})
FIXED = {"V": 320, "N": 129, "Hkv": 2, "T": 576, "D": 16, "C": 8, "P": 8, "H": 2, "W": 32}
ROUTED = {"E": 6, "A": 2, "H": 64, "I": 96, "J": 192, "pair": 2, "bytes": 16}
BLOCKS = {"Mxfp4GateUp": 2, "Mxfp4Down": 3}  # of a row
ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "AcceptPrefix": {},
    "AcceptTree": {},
    "GrowTree": {},
    "CloseUp": {},
    "PlaceholderDraft": {"mask_token_id": 151_936},
    "NumbersAt": {"columns": 5},
    "CacheWriteFp8": {},
    "Mxfp4GateUp": {},
    "Mxfp4Down": {},
}
KINDS = [
    ("AcceptPrefix", "float16"),
    ("AcceptPrefix", "bfloat16"),
    ("AcceptPrefix", "float32"),
    ("AcceptTree", "float16"),
    ("AcceptTree", "bfloat16"),
    ("AcceptTree", "float32"),
    ("GrowTree", "float16"),
    ("CloseUp", "float16"),
    ("PlaceholderDraft", "float16"),
    ("NumbersAt", "float16"),
    ("CacheWriteFp8", "float16"),
    ("CacheWriteFp8", "bfloat16"),
    ("CacheWriteFp8", "float32"),
    *((op, floats) for op in ("Mxfp4GateUp", "Mxfp4Down") for floats in ("float16", "bfloat16", "float32")),
]
# Bodies that TensorRT does not parse: it reads FP8 in DequantizeLinear alone, and computes with no bits.
NO_BODY = ("CacheWriteFp8", "Mxfp4GateUp", "Mxfp4Down")
TENSORRT = {"float8e4m3fn": "FP8", "float16": "HALF", "float32": "FLOAT", "int32": "INT32", "int64": "INT64"}
TENSORRT |= {"bool": "BOOL", "int8": "INT8"}
Write = Callable[..., str]


def dtypes(op: str, floats: str = "float16") -> tuple[str, ...]:
    return tuple(floats if len(operand.dtypes) > 1 else operand.dtypes[0] for operand in OPS[op].inputs)


def fixed_of(op: str) -> dict[str, int]:
    """The static sizes of an op's inputs."""
    return ROUTED | {"blocks": BLOCKS[op]} if op in BLOCKS else FIXED


def case(
    write: Write, op: str, floats: str = "float16", *, sizes: Mapping[str, int] = MappingProxyType({}), **more: Any
) -> dict[str, Any]:
    fixed = fixed_of(op) | sizes
    by_op = {"N": "S"} if op in BLOCKS else {}  # the tokens of routed experts are columns

    def at(given: Mapping[str, int]) -> dict[str, int]:
        return {**given, **fixed, **{name: given[other] for name, other in by_op.items()}}

    profiles = [profile(op, *map(at, three)) for three in (VERIFY, PREFILL)]
    model = write(op, dtypes(op, floats), ATTRIBUTES[op], fixed=fixed, **more)
    return {"model": model, "ops": [op], "gpus": ["SM89", "SM120"], "profiles": profiles}


@pytest.fixture(scope="module")
def built(write_model: Write) -> dict[tuple[str, str], dict[str, Any]]:
    """Every plugin in every type of its logits, in one child."""
    answers = results(run_aot([case(write_model, name, floats) for name, floats in KINDS]))
    return dict(zip(KINDS, answers, strict=True))


def test_every_op_with_a_kernel_is_built_here() -> None:
    assert {name for name, op in OPS.items() if op.kernel} == set(ATTRIBUTES)


@pytest.mark.parametrize(("op", "floats"), KINDS)
def test_a_node_becomes_one_plugin_layer_and_builds_for_both_gpus_with_both_profiles(
    built: Mapping[tuple[str, str], Mapping[str, Any]], op: str, floats: str
) -> None:
    result = built[op, floats]
    assert result["error"] is None
    assert result["layers"] == ["PLUGIN_V3"]
    assert set(result["plans"]) == {"SM89", "SM120"}
    assert all(result["plans"].values()), result["log"]


def test_a_parser_without_our_plugins_takes_the_bodies(write_model: Write) -> None:
    kinds = [(op, floats) for op, floats in KINDS if op not in NO_BODY]
    cases = [case(write_model, op, floats) | {"ops": [], "gpus": []} for op, floats in kinds]
    for kind, result in zip(kinds, results(run_aot(cases)), strict=True):
        assert result["parsed"], (kind, result["log"])
        assert "PLUGIN_V3" not in result["layers"], kind


@pytest.mark.parametrize("op", list(ATTRIBUTES))
def test_outputs_are_of_the_dtypes_and_shapes_of_the_spec(
    built: Mapping[tuple[str, str], Mapping[str, Any]], op: str
) -> None:
    spec, outputs = OPS[op], built[op, "float16"]["outputs"]
    expected = {
        output.name: [TENSORRT[dtype], [{**fixed_of(op), **ATTRIBUTES[op]}.get(dim, -1) for dim in output.dims]]
        for output, dtype in zip(spec.outputs, spec.infer_dtypes(dtypes(op)), strict=True)
    }
    assert outputs == expected


def test_a_static_graph_has_static_outputs(write_model: Write) -> None:
    sizes = {"B": 2, "S": 4, "E": 3}
    model = write_model("PlaceholderDraft", dtypes("PlaceholderDraft"), {"mask_token_id": 3}, fixed=sizes)
    build = {"model": model, "ops": ["PlaceholderDraft"], "gpus": ["SM120"], "profiles": []}
    (result,) = results(run_aot([build]))
    shapes = {name: shape for name, (_, shape) in result["outputs"].items()}
    assert shapes["row_ids"] == [2, 5]
    assert shapes["emit_rows"] == [2, 2]
    assert result["plans"]["SM120"], result["log"]


def test_plan_contains_its_plugin_fields(built: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    plan = bytes.fromhex(built["PlaceholderDraft", "float16"]["plans"]["SM120"])
    assert b"mask_token_id" in plan
    assert (151_936).to_bytes(8, "little") in plan


def test_a_plan_has_the_blocks_of_experts_once_and_as_they_are(write_model: Write) -> None:
    """Two profiles, and no other form of the constants beside them."""
    import numpy as np
    from onnx import numpy_helper

    rng, stacks, size = np.random.default_rng(0), ("codes", "exponents"), 0

    def hold(node: Any, graph: Any) -> None:
        nonlocal size
        for value in [value for value in graph.input if value.name in stacks]:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            content = rng.integers(-128, 128, shape).astype(np.int8)
            graph.initializer.append(numpy_helper.from_array(content, value.name))
            graph.input.remove(value)
            size += content.nbytes

    built = case(write_model, "Mxfp4Down", edit=hold, sizes={"E": 64, "H": 512})
    profiles = [{name: shapes for name, shapes in each.items() if name not in stacks} for each in built["profiles"]]
    (result,) = results(run_aot([built | {"profiles": profiles}]))
    assert result["error"] is None, result
    assert size == 64 * 512 * 3 * 17
    assert all(size < len(plan) // 2 < 1.1 * size for plan in result["plans"].values())


def set_attribute(name: str, value: Any) -> Callable[[Any, Any], None]:
    from onnx import helper

    def edit(node: Any, graph: Any) -> None:
        others = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend(others)
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))

    return edit


def set_type(name: str, number: int) -> Callable[[Any, Any], None]:
    def edit(node: Any, graph: Any) -> None:
        (value,) = (value for value in graph.input if value.name == name)
        value.type.tensor_type.elem_type = number

    return edit


def drop_last_dim(name: str) -> Callable[[Any, Any], None]:
    def edit(node: Any, graph: Any) -> None:
        (value,) = (value for value in graph.input if value.name == name)
        del value.type.tensor_type.shape.dim[-1]

    return edit


REFUSED = {
    "a missing attribute": (set_attribute("mask_token_id", None), "mask_token_id must be given"),
    "an attribute out of range": (set_attribute("mask_token_id", -5), "mask_token_id must be 0 or more"),
    "a float for an int": (set_attribute("mask_token_id", 3.5), "mask_token_id must be INT32 or INT64, not FLOAT32"),
    "a list for a number": (set_attribute("mask_token_id", [1, 2]), "mask_token_id must be one number, not 2"),
    "a text for a number": (set_attribute("mask_token_id", "7"), "mask_token_id must be INT32 or INT64, not CHAR"),
    "an input of another dtype": (set_type("tokens", 7), "tokens must be int32, not int64"),
    "an input of another rank": (drop_last_dim("tokens"), "tokens must have rank 2, not 1"),
}


@pytest.fixture(scope="module")
def refused(write_model: Write) -> dict[str, dict[str, Any]]:
    cases = [case(write_model, "PlaceholderDraft", edit=edit) for edit, _ in REFUSED.values()]
    return dict(zip(REFUSED, results(run_aot(cases)), strict=True))


@pytest.mark.parametrize("what", list(REFUSED))
def test_invalid_node_raises_a_project_error(refused: Mapping[str, Mapping[str, Any]], what: str) -> None:
    """TensorRT's own error only says that a plugin failed; ours is what the builder shows."""
    result = refused[what]
    assert not any(result["plans"].values())
    assert result["error"] is not None, result
    assert f"PlaceholderDraft: {REFUSED[what][1]}" in result["error"]


@pytest.mark.gpu
@pytest.mark.tensorrt
def test_full_tensorrt_builds_every_plugin_for_the_local_gpu(write_model: Write) -> None:
    """Never run yet: neither TensorRT nor a GPU was to be had where this was written."""
    from peagle.plugins.kernels.launch import load_driver

    driver = load_driver()
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    cases = [case(write_model, op) | {"gpus": ["present"]} for op in ATTRIBUTES]
    for result in results(run_aot(cases, product="tensorrt")):
        assert len(result["layers"]) == 1, result
        assert result["plans"]["present"], result["log"]
