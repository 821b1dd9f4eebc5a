"""Nodes for packed matrices: this project's ops, since no pair of Q and DQ expresses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from ...plugins.ops.quantized_linear.packed_weights import (
    TILE,
    code_shape,
    pack_codes,
    pack_scales,
    scale_dtype,
    scale_shape,
)
from .qdq_nodes import onnx_type, streamed
from .quantized_weight import QuantizedWeight, WeightStream
from .rewrite_rules import Site


def packed_streams(
    graph: ir.Graph, value: ir.Value, weight: QuantizedWeight, sites: list[Site]
) -> dict[str, WeightStream]:
    """Make the nodes of ``sites`` read the matrix ``value`` packed; returns the initializers to fill.

    Other readers of the matrix keep its unquantized form.
    """
    name, format_name = str(value.name), weight.packed
    rows, columns = (int(dim) for dim in value.const_value.shape)
    readers = {site.reader for site in sites}
    tied = len(value.uses()) > len(readers)
    of_codes, of_scales = f"{name}.codes" if tied else name, f"{name}_scale"
    if not tied:
        del graph.initializers[name]
    codes = streamed(graph, of_codes, code_shape(format_name, rows, columns), ir.DataType.UINT8)
    kind = onnx_type(scale_dtype(format_name))
    scales = streamed(graph, of_scales, scale_shape(format_name, rows, columns), kind)

    def replacement(site: Site) -> ir.Node:
        attributes: dict[str, Any] = {"format": format_name, "rows": rows}
        if site.gathers:
            attributes["columns"] = columns
            return ir.node("QuantizedEmbedding", [site.node.inputs[1], codes, scales], attributes, domain=DOMAIN)
        return ir.node("QuantizedLinear", [site.node.inputs[0], codes, scales], attributes, domain=DOMAIN)

    put_in_place(graph, sites, replacement)
    return {of_codes: WeightStream(name, scales=False), of_scales: WeightStream(name, scales=True)}


def packed_runs(
    format_name: str,
    runs: Iterable[Any],
    row: tuple[int, ...],
    *,
    scales: bool,
    each: Callable[..., Iterable[Any]] = map,
    weight: str = "a matrix",
) -> Iterator[Any]:
    """Pack runs of rows of whole codes, or of their scales, as they arrive. ``row`` is the shape of a row.

    ``each`` applies a function to the runs, in order: ``map``, or one that uses several threads. ``weight`` is the
    matrix's name, for errors.
    """
    pack: Callable[[str, Any], Any] = partial(pack_scales, weight=weight) if scales else pack_codes
    yield from each(lambda rows: pack(format_name, rows), whole_tiles(run.reshape(-1, *row) for run in runs))


def whole_tiles(runs: Iterable[Any]) -> Iterator[Any]:
    """Regroup runs of rows so that all but the last contain whole tiles of sixteen rows."""
    rest: Any = None
    for run in runs:
        rows = run if rest is None or not len(rest) else np.concatenate([rest, run])
        num_whole = len(rows) // TILE * TILE
        rest = rows[num_whole:]
        if num_whole:
            yield rows[:num_whole]
    if rest is not None and len(rest):
        yield rest


def put_in_place(graph: ir.Graph, sites: list[Site], replacement: Callable[[Site], ir.Node]) -> None:
    """Replace the node of every site, and remove the nodes between it and the matrix."""
    for site in sites:
        node = replacement(site)
        (old,), (new,) = site.node.outputs, node.outputs
        new.shape, new.type = old.shape, old.type
        ir.convenience.replace_nodes_and_values(graph, site.node, [site.node], [node], [old], [new])
    for reader in {site.reader for site in sites} - {site.node for site in sites}:
        graph.remove(reader, safe=True)
