"""A lowered graph as JSON, so that a host can build its plan without the package ``onnx``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...plugins.errors import EnvironmentProblem
from .lowered_graph import LoweredGraph, Node, Value

_PLAIN = (int, float, str)


def to_record(graph: LoweredGraph) -> dict[str, Any]:
    """Return ``graph`` without its path as JSON values; attributes are numbers, text and lists of these."""
    return {
        "inputs": [asdict(value) for value in graph.inputs],
        "outputs": [asdict(value) for value in graph.outputs],
        "nodes": [_of_node(node) for node in graph.nodes],
        "functions": sorted(map(list, graph.functions)),
        "weight_bytes": graph.weight_bytes,
    }


def read_record(record: Path, path: Path) -> LoweredGraph:
    """Return the graph of ``path`` from its ``record``. Raises ``EnvironmentProblem``."""
    try:
        content = json.loads(record.read_bytes())
        return LoweredGraph(
            path=path,
            inputs=tuple(map(_value, content["inputs"])),
            outputs=tuple(map(_value, content["outputs"])),
            nodes=tuple(map(_node, content["nodes"])),
            functions=frozenset((domain, name) for domain, name in content["functions"]),
            weight_bytes=int(content["weight_bytes"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"{record} is not a valid graph record",
            why=f"{type(error).__name__}: {error}",
            fix="copy the whole export again, or export again",
        ) from None


def _of_node(node: Node) -> dict[str, Any]:
    return asdict(node) | {"attributes": {name: value for name, value in node.attributes.items() if _is_plain(value)}}


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(isinstance(each, _PLAIN) for each in value))


def _node(content: Mapping[str, Any]) -> Node:
    inputs = tuple(None if value is None else _value(value) for value in content["inputs"])
    return Node(**{**content, "inputs": inputs, "outputs": tuple(map(_value, content["outputs"]))})


def _value(content: Mapping[str, Any]) -> Value:
    shape = content["shape"]
    return Value(content["name"], content["dtype"], None if shape is None else tuple(shape))
