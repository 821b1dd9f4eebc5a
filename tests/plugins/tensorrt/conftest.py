"""One-node graphs for TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from peagle.plugins.op_spec import SELECTION


@pytest.fixture(scope="session")
def write_model(body_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``write_model(op, dtypes, attributes, edit) -> path``: one node with its body, marked for the plugin.

    ``edit(node, graph)`` may spoil it. Dimensions in ``fixed`` get that size.
    """
    folder = tmp_path_factory.mktemp("models")
    count = 0

    def write(
        op: str,
        dtypes: tuple[str, ...],
        attributes: Mapping[str, Any],
        edit: Callable[[Any, Any], None] | None = None,
        fixed: Mapping[str, int] | None = None,
    ) -> str:
        from onnx import ModelProto, helper

        nonlocal count
        model = ModelProto()
        model.CopyFrom(body_model(op, dtypes, tuple(sorted(attributes.items()))))
        for cast in [node for node in model.graph.node if node.op_type == "Cast"]:  # for ONNX Runtime, see body_model
            (value,) = [value for value in model.graph.input if value.name == cast.input[0]]
            value.name, value.type.tensor_type.elem_type = cast.output[0], cast.attribute[0].i
            model.graph.node.remove(cast)
        (node,) = model.graph.node
        node.attribute.extend(helper.make_attribute(name, value) for name, value in SELECTION.items())
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if fixed and dim.dim_param in fixed:
                    dim.dim_value = fixed[dim.dim_param]
        if edit is not None:
            edit(node, model.graph)
        count += 1
        path = folder / f"{count}.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    return write
