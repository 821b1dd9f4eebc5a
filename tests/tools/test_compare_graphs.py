"""The differences that the comparison of two checkouts reports and ignores."""

from __future__ import annotations

from pathlib import Path

import compare_graphs as comparison
import onnx
from onnx import TensorProto, helper


def _written(path: Path, op: str, rewrite: str) -> str:
    """The digests of a graph of one node that a rewrite of this name left."""
    node = helper.make_node(op, ["x"], ["y"])
    node.metadata_props.add(key="rewrite", value=rewrite)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:])), path)
    return comparison.digest(path)


def test_graph_from_another_rewrite_differs_only_in_metadata(tmp_path: Path) -> None:
    old, new = (_written(tmp_path / f"{name}.onnx", "Relu", name) for name in ("one", "other"))
    assert old != new
    assert comparison.compare({"model.onnx": old}, {"model.onnx": new}) == ([], ["model.onnx"])


def test_extra_node_is_a_difference(tmp_path: Path) -> None:
    old, new = (_written(tmp_path / f"{op}.onnx", op, "same") for op in ("Relu", "Abs"))
    assert comparison.compare({"model.onnx": old}, {"model.onnx": new}) == (["model.onnx"], [])


def test_other_weights_and_missing_files_are_differences(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    one, other = comparison.digest(tmp_path / "a"), comparison.digest(tmp_path / "b")
    assert comparison.compare({"weights": one, "gone": one}, {"weights": other}) == (["gone", "weights"], [])


def test_every_pair_is_exported_for_every_lowering() -> None:
    titles = [export.title for export in comparison.exports_of({"demo": ("--model", "demo")})]
    assert {"demo ort", "demo std", "demo tensorrt", "demo tensorrt-sm100"} <= set(titles)
