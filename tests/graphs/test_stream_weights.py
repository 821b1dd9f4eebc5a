"""Weights of a checkpoint fill the initializers of a graph exactly; mismatches are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from peagle.graphs.lowering.lowering_result import GraphWeight, Lowered
from peagle.graphs.stream_weights import attach
from peagle.graphs.weight_cuts import Cut
from peagle.plugins.errors import BuildError

PARTS = ("q.weight", "k.weight")


def lowered(*weights: GraphWeight) -> Lowered:
    """A graph of initializers without values."""
    values = [ir.Value(name=weight.name) for weight in weights]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 21}, name="weights")
    return Lowered(ir.Model(graph, ir_version=10), weights)


def test_parts_are_stacked_in_their_order(tmp_path: Path) -> None:
    parts = {name: np.full((2, 3), at, np.float32) for at, name in enumerate(PARTS)}
    attach(lowered(GraphWeight("W", PARTS, (4, 3), "float32")), parts.__getitem__, tmp_path / "model.onnx")
    (value,) = ir.load(tmp_path / "model.onnx").graph.initializers.values()
    assert value.const_value is not None
    np.testing.assert_array_equal(value.const_value.numpy(), np.concatenate([*parts.values()]))


@pytest.mark.parametrize(("rows", "what"), [(1, "few"), (3, "many")])
@pytest.mark.parametrize("parts", [PARTS, PARTS[:1]])
def test_weights_of_another_size_are_refused(rows: int, what: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    weight = GraphWeight("W", parts, (2 * len(parts), 3), "float32")
    with pytest.raises(BuildError) as caught:
        attach(lowered(weight), lambda _: np.zeros((rows, 3), np.float32), tmp_path / "model.onnx")
    assert caught.value.what == f"{', '.join(parts)}: too {what} values for W {list(weight.shape)}"
    assert "config.json" in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize(("matrices", "what"), [(1, "few"), (3, "many")])
def test_stacks_of_another_size_are_refused(matrices: int, what: str, tmp_path: Path) -> None:
    weight = GraphWeight("W", ("up",), (2, 4, 3), "float32")
    stack = np.zeros((matrices, 3, 4), np.float32)
    with pytest.raises(BuildError) as caught:
        attach(lowered(weight), lambda _: stack, tmp_path / "model.onnx", cuts={"up": Cut("stack", 3, 4)})
    assert caught.value.what == f"up: too {what} values for W [2, 4, 3]"
