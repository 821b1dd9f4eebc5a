"""The stored embedding of a graph, shared with another graph that uses the same one."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ..plugins.number_types import BY_ONNX
from .quantization import QuantizedWeight, quantize
from .quantization.quantized_weight import MIDDLE
from .quantization.rewrite_rules import is_weight
from .stream_weights import Run


@dataclass(frozen=True)
class StoredEmbedding:
    """Location of an embedding table, ``[V, H]``: wide, or as codes and scales in the form of ``weight``.

    ``packed``: wide and in tiles, because the LM head uses the same table.
    """

    table: Run
    scales: Run | None = None
    weight: QuantizedWeight | None = None
    packed: bool = False

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.table.length + (self.scales.length if self.scales else 0)

    def put_into(self, name: str, model: ir.Model) -> dict[str, Run]:
        """Make a graph look up its weight ``name`` in this form; returns the locations of its initializers.

        A ``packed`` one is inserted when the rest of the graph is packed (``pack_wide``).
        """
        if self.weight is None or self.scales is None:
            return {name: self.table}
        streams = quantize(model, {name: self.weight}).streams
        return {part: self.scales if stream.scales else self.table for part, stream in streams.items()}


def stored_embedding(semantic: ir.Model) -> StoredEmbedding | None:
    """Return the embedding of a semantic graph with attached weights: the table that ``input_ids`` index.

    None if it has a form that cannot be shared.
    """
    ids = next(value for value in semantic.graph.inputs if value.name == "input_ids")
    for node in semantic.graph:
        if node.op_type == "QuantizedEmbedding" and node.inputs[0] is ids:
            return _of_packed(node)
        if node.op_type == "WideEmbedding" and node.inputs[0] is ids and node.inputs[1] is not None:
            return StoredEmbedding(_run(node.inputs[1]), packed=True)
        table = node.inputs[0] if node.op_type == "Gather" and node.inputs[1] is ids else None
        if table is not None:
            return StoredEmbedding(_run(table)) if is_weight(table) else _of_codes(table.producer())
    return None


def _of_codes(node: ir.Node | None) -> StoredEmbedding | None:
    """Return the embedding that a node dequantizes, if it has blocks of unsigned codes."""
    if node is None or node.op_type != "DequantizeLinear":
        return None
    codes, scales, block = node.inputs[0], node.inputs[1], node.attributes.get_int("block_size", 0)
    if codes is None or scales is None or not (block and is_weight(codes) and is_weight(scales)) or codes.dtype is None:
        return None
    kind = BY_ONNX[int(codes.dtype)].numpy
    if kind not in MIDDLE or scales.shape is None:
        return None
    quantized = QuantizedWeight(kind, tuple(int(dim) for dim in scales.shape), block, gathered=True)
    return StoredEmbedding(_run(codes), _run(scales), quantized)


def _of_packed(node: ir.Node) -> StoredEmbedding:
    """Return the embedding of a packed lookup node. The shape of its scales identifies the format."""
    _, codes, scales = node.inputs
    if codes is None or scales is None:
        raise ValueError("the lookup node has no matrix")
    quantized = QuantizedWeight("uint8", gathered=True, packed=node.attributes["format"].as_string())
    return StoredEmbedding(_run(codes), _run(scales), quantized)


def _run(value: ir.Value) -> Run:
    tensor = value.const_value
    if not isinstance(tensor, ir.ExternalTensor) or tensor.offset is None or tensor.length is None:
        raise ValueError(f"{value.name} has no location in a file")
    return Run(str(tensor.location), tensor.offset, tensor.length)
