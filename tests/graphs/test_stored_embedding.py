"""An embedding that one graph shares with another: its location, and the format of its rows."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from peagle.graphs.quantization import QuantizedWeight, pack_wide, quantize
from peagle.graphs.stored_embedding import stored_embedding
from peagle.graphs.stream_weights import Run
from tests.graphs.quantized_graphs import COLUMNS, ROWS, embedded

WIDE = None
IN_BLOCKS = QuantizedWeight("uint8", (ROWS, COLUMNS // 32), 32, gathered=True)
PACKED = QuantizedWeight("int8", (ROWS,), gathered=True, packed="int8")


def attached(name: str, how: QuantizedWeight | None) -> ir.Model:
    """A graph whose weights are in a file, each at its declared position."""
    model = embedded(name)
    if how is not None:
        quantize(model, {name: how})
    for place, value in enumerate(model.graph.initializers.values()):
        tensor: Any = value.const_value
        value.const_value = ir.ExternalTensor(
            "some.data", 4096 * place, 100 + place, tensor.dtype, shape=tensor.shape, name=str(value.name)
        )
    return model


def lookups(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type in ("Gather", "QuantizedEmbedding")]


@pytest.mark.parametrize("how", [WIDE, IN_BLOCKS, PACKED])
def test_other_graph_shares_the_embedding_form_and_file(how: QuantizedWeight | None) -> None:
    target = attached("a", how)
    found = stored_embedding(target)
    assert found is not None
    drafter = embedded("table")
    there = found.put_into("table", drafter)
    assert lookups(drafter) == lookups(target)
    places = [Run("some.data", 0, 100)] + ([Run("some.data", 4096, 101)] if how else [])
    assert list(there.values()) == places
    shapes = {name: list(drafter.graph.initializers[name].shape) for name in there}
    names = list(target.graph.initializers)
    assert list(shapes.values()) == [list(target.graph.initializers[name].shape) for name in names]


def test_a_table_that_the_head_multiplies_with_is_given_in_tiles() -> None:
    target = embedded("a")
    pack_wide(target)
    matrix = target.graph.initializers["a"]
    matrix.const_value = ir.ExternalTensor("some.data", 4096, 100, matrix.dtype, shape=matrix.shape, name="a")
    found = stored_embedding(target)
    assert found is not None
    assert found.packed
    assert found.put_into("table", embedded("table")) == {"table": Run("some.data", 4096, 100)}


def test_computed_table_is_not_shared() -> None:
    model = embedded("a")
    (gather,) = [node for node in model.graph if node.op_type == "Gather"]
    absolute = ir.node("Abs", [gather.inputs[0]])
    model.graph.insert_before(gather, absolute)
    gather.replace_input_with(0, absolute.outputs[0])
    assert stored_embedding(model) is None
