"""A lowered ONNX graph for the builder: nodes with the types and shapes of their inputs, without weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.number_types import BY_ONNX

Shape = tuple[int | str, ...]
_LOWER_AGAIN = "build the engine again with --force; if the error persists, report it with this message"


@dataclass(frozen=True)
class Value:
    """A named tensor; dimensions are sizes or linear expressions of symbols such as ``S + E - 2``.

    An unknown dtype is ``""``, an unknown shape None.
    """

    name: str
    dtype: str
    shape: Shape | None


@dataclass(frozen=True)
class Node:
    """A node; an omitted optional input is None. ``place`` names the function or subgraph it is in, if any."""

    domain: str
    op_type: str
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    place: str = ""

    def __str__(self) -> str:
        kind = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        return f"{kind} {self.name!r}" + (f" in {self.place}" if self.place else "")


@dataclass(frozen=True)
class LoweredGraph:
    """A whole file. ``functions`` are the (domain, op type) of its function bodies.

    ``nodes`` are all nodes that TensorRT would import, including inlined functions, except functions in ``opaque``
    domains and those with an importer in TensorRT.
    """

    path: Path
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    functions: frozenset[tuple[str, str]]
    weight_bytes: int


def read_graph(path: Path, opaque: frozenset[str]) -> LoweredGraph:
    """Read ``path`` without its weights, but check that they exist. Raises ``BuildError``."""
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except FileNotFoundError:
        raise BuildError(f"{path} does not exist", fix=_LOWER_AGAIN) from None
    except Exception as error:  # protobuf's own exceptions
        raise BuildError(
            f"{path} cannot be read as ONNX", why=str(error) or type(error).__name__, fix=_LOWER_AGAIN
        ) from None
    if not model.HasField("graph") or not model.graph.node:
        raise BuildError(f"{path} has no graph", why="the file is empty or damaged", fix=_LOWER_AGAIN)
    names = {code: name.lower() for name, code in onnx.TensorProto.DataType.items()} | {1: "float32"}
    reader = _GraphReader(path, names, {(f.domain, f.name): f for f in model.functions}, opaque)
    weights = reader.weights(model.graph)
    values = reader.values(model.graph, {})
    return LoweredGraph(
        path=path,
        inputs=tuple(values[v.name] for v in model.graph.input),
        outputs=tuple(values[v.name] for v in model.graph.output),
        nodes=tuple(reader.nodes(model.graph.node, values, "")),
        functions=frozenset(reader.functions),
        weight_bytes=weights,
    )


def is_native(op_type: str) -> bool:
    """Return True if TensorRT's parser has its own importer for a node of any domain, and ignores its body."""
    return op_type.startswith("TRT_")


@dataclass(frozen=True)
class _GraphReader:
    """Reads the parts of one file; ``dtypes`` maps ONNX's numbers to names; ``opaque`` domains are not expanded."""

    path: Path
    dtypes: Mapping[int, str]
    functions: Mapping[tuple[str, str], Any]
    opaque: frozenset[str]

    def values(self, graph: Any, outer: Mapping[str, Value]) -> dict[str, Value]:
        """Return every typed value of a graph by name."""
        values = dict(outer)
        for tensor in graph.initializer:
            values[tensor.name] = Value(tensor.name, self.dtypes.get(tensor.data_type, ""), tuple(tensor.dims))
        for value in (*graph.value_info, *graph.input, *graph.output):
            tensor = value.type.tensor_type
            shape = None
            if tensor.HasField("shape"):
                shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
            values[value.name] = Value(value.name, self.dtypes.get(tensor.elem_type, ""), shape)
        return values

    def nodes(self, nodes: Any, values: Mapping[str, Value], place: str) -> Iterator[Node]:
        """Yield nodes in order, including those of subgraphs and of functions imported through their bodies."""
        from onnx.helper import get_attribute_value

        for proto in nodes:
            graphs = [a.g for a in proto.attribute if a.HasField("g")] + [g for a in proto.attribute for g in a.graphs]
            attributes = {
                a.name: _plain(get_attribute_value(a))
                for a in proto.attribute
                if not (a.HasField("g") or a.graphs or a.ref_attr_name)
            }
            yield Node(
                domain="" if proto.domain == "ai.onnx" else proto.domain,
                op_type=proto.op_type,
                name=proto.name,
                inputs=tuple(values.get(name, Value(name, "", None)) if name else None for name in proto.input),
                outputs=tuple(values.get(name, Value(name, "", None)) for name in proto.output),
                attributes=attributes,
                place=place,
            )
            for graph in graphs:
                yield from self.nodes(graph.node, self.values(graph, values), f"{proto.op_type} {proto.name!r}")
            body = self.functions.get((proto.domain, proto.op_type))
            if body is not None and proto.domain not in self.opaque and not is_native(proto.op_type):
                yield from self.nodes(body.node, {}, f"{proto.domain}::{proto.op_type}")

    def weights(self, graph: Any) -> int:
        """Count bytes of external data. Raises ``BuildError`` for missing or short files, which crash readers."""
        sizes: dict[Path, int] = {}
        total = 0
        for tensor in graph.initializer:
            entry = {item.key: item.value for item in tensor.external_data}
            if not entry:
                continue
            file = self.path.parent / entry.get("location", "")
            if file not in sizes:
                if not file.is_file():
                    raise BuildError(
                        f"{file} is missing", why=f"this file contains the weights of {self.path}", fix=_LOWER_AGAIN
                    )
                sizes[file] = file.stat().st_size
            kind = BY_ONNX.get(tensor.data_type)
            length = int(entry.get("length") or (kind.bytes(math.prod(tensor.dims)) if kind else 0))
            end = int(entry.get("offset") or 0) + length
            if end > sizes[file]:
                raise BuildError(
                    f"{file} is too short",
                    why=f"weight {tensor.name!r} ends at byte {end}, but the file has {sizes[file]} bytes",
                    fix=_LOWER_AGAIN,
                )
            total += length
        return total


def _plain(value: Any) -> Any:
    """Return an attribute as a Python value, with text for strings."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
