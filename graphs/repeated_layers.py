"""Graphs of targets from a trace of few layers, because layers of a kind have the same nodes and tracing is slow.

Two layers of every kind are traced, and the last layer of all, which some modeling code treats differently. The first
layer of a kind contains the nodes that all layers share, so the second one is the pattern of the others.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import onnx_ir as ir

from ..plugins.graph_contract import cache_names, is_cache, written
from .names import layer_of, layer_prefix

_CACHE = re.compile(r"([kv]_cache)\.(\d+)")
_PER_KIND = 2


def layers_to_trace(kinds: Sequence[Hashable]) -> list[int]:
    """Return the ids of the layers that the others are copies of."""
    first = [i for i, kind in enumerate(kinds) if kinds[:i].count(kind) < _PER_KIND]
    return sorted({*first, len(kinds) - 1})


def repeat_layers(model: ir.Model, traced: Sequence[int], kinds: Sequence[Hashable], taps: Sequence[int]) -> None:
    """Complete the graph of the layers ``traced``, whose taps are all of them, in place.

    ``kinds`` has an entry for each layer of the target, and ``taps`` are those of the target.
    """
    graph = model.graph
    patterns = [layer if layer in traced else _pattern(layer, traced, kinds) for layer in range(len(kinds))]
    initializers = list(_names(list(graph.initializers), [traced.index(pattern) for pattern in patterns]))
    _renumber(graph, traced)
    features = next(value for value in graph.outputs if value.name == "aux_hidden")
    streams = dict(zip(traced, (value for value in _producer(features).inputs if value is not None), strict=True))
    segments = _segments(graph, streams)
    after = {layer: streams[following] for layer, following in pairwise(traced)}
    entering = dict(streams)
    for previous, following in pairwise(traced):
        stream = streams[following]
        uses = list(stream.uses())
        last_node = segments[previous][-1]
        for layer in range(previous + 1, following):
            pattern = patterns[layer]
            entering[layer] = stream
            copies = _Copies(graph, pattern, layer, {entering[pattern]: stream})
            nodes = [copies.node(node) for node in segments[pattern]]
            graph.insert_after(last_node, nodes)
            last_node, stream = nodes[-1], copies.value(after[pattern])
        entering[following] = stream
        for node, index in uses:
            node.replace_input_with(index, stream)
    _tap(graph, features, [entering[layer] for layer in taps])
    _order(graph, len(kinds), initializers)


def _renumber(graph: ir.Graph, traced: Sequence[int]) -> None:
    """Rename weights and caches of the traced layers as in the whole target."""
    for new, old in reversed(list(enumerate(traced))):
        for name, value in list(graph.initializers.items()):
            if layer_of(name) == new:
                value.name = name.replace(layer_prefix(new), layer_prefix(old), 1)
                if value.const_value is not None:
                    value.const_value.name = value.name
        for value in (*graph.inputs, *graph.outputs):
            match = _CACHE.match(str(value.name))
            if match and int(match[2]) == new:
                value.name = _CACHE.sub(rf"\1.{old}", str(value.name))


def placeholder_weight(name: str, dtype: ir.DataType, shape: ir.Shape) -> ir.ExternalTensor:
    """Return a weight without values, which are attached after lowering."""
    return ir.ExternalTensor("weights", None, None, dtype, shape=shape, name=name)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    if node is None:
        raise ValueError(f"no node computes {value.name}")
    return node


def _segments(graph: ir.Graph, streams: Mapping[int, ir.Value]) -> dict[int, list[ir.Node]]:
    """Return the nodes of each layer but the last. Nodes are in the order of the trace, so they follow each other."""
    nodes = list(graph)
    position = {node: i for i, node in enumerate(nodes)}
    end_positions = [position[_producer(value)] + 1 for value in streams.values()]
    return {layer: nodes[a:b] for layer, a, b in zip(streams, end_positions, end_positions[1:], strict=False)}


def _pattern(layer: int, traced: Sequence[int], kinds: Sequence[Hashable]) -> int:
    return [other for other in traced if kinds[other] == kinds[layer]][_PER_KIND - 1]


class _Copies:
    """Copies of the nodes of the layer ``pattern`` for another one. Values outside of a layer are common to all."""

    def __init__(self, graph: ir.Graph, pattern: int, layer: int, values: dict[ir.Value, ir.Value]) -> None:
        self._graph, self._pattern, self._layer, self._values = graph, pattern, layer, values

    def node(self, node: ir.Node) -> ir.Node:
        """Copy a node, whose inputs were copied before."""
        outputs = [self._new(value, self._name(str(value.name)) or f"{value.name}.{self._layer}")
                   for value in node.outputs]  # fmt: skip
        inputs = [None if value is None else self.value(value) for value in node.inputs]
        name = f"{node.name}.{self._layer}"
        self._graph.outputs.extend(new for old, new in zip(node.outputs, outputs, strict=True) if old.is_graph_output())
        return ir.Node(
            node.domain, node.op_type, inputs, node.attributes.values(), overload=node.overload, outputs=outputs,
            name=name, version=node.version,
        )  # fmt: skip

    def value(self, value: ir.Value) -> ir.Value:
        """Return what a node of the copy reads instead of ``value``."""
        if value not in self._values:
            name = self._name(str(value.name)) if value.is_initializer() or value.is_graph_input() else None
            if name is None:
                return value
            copy = self._new(value, name)
            if value.is_graph_input():
                self._graph.inputs.append(copy)
            else:
                copy.const_value = placeholder_weight(name, copy.dtype, copy.shape)
                self._graph.initializers.add(copy)
        return self._values[value]

    def _name(self, name: str) -> str | None:
        """Return the name of the same weight or cache in the other layer; None if it belongs to no layer."""
        if is_cache(name):
            return _CACHE.sub(rf"\1.{self._layer}", name)
        if layer_of(name) == self._pattern:
            return name.replace(layer_prefix(self._pattern), layer_prefix(self._layer), 1)
        return None

    def _new(self, value: ir.Value, name: str) -> ir.Value:
        self._values[value] = ir.Value(name=name, shape=value.shape and value.shape.copy(), type=value.type)
        return self._values[value]


def _tap(graph: ir.Graph, features: ir.Value, streams: Sequence[ir.Value]) -> None:
    """Let the output ``features`` consist of these streams: of one, as it is; without any, there is no output."""
    output_index, joined = list(graph.outputs).index(features), _producer(features)
    if not streams:
        del graph.outputs[output_index]
    elif len(streams) == 1:
        graph.outputs[output_index] = streams[0]
        streams[0].name = features.name
    else:
        dims = list(streams[0].shape or ())
        shape = ir.Shape([*dims[:-1], len(streams) * int(dims[-1])])
        new = ir.Value(name=features.name, shape=shape, type=features.type)
        node = ir.Node("", "Concat", streams, joined.attributes.values(), outputs=[new], name=joined.name)
        graph.insert_after(joined, node)
        graph.outputs[output_index] = new
    graph.remove(joined)


def _names(names: Sequence[str], patterns: Sequence[int]) -> Iterator[str]:
    """Yield the names of all initializers as a full trace has them, from those that layers have while they are few."""
    for in_layers, run in groupby(names, lambda name: layer_of(name) is not None):
        if not in_layers:
            yield from run
            continue
        some = list(run)
        for layer, pattern in enumerate(patterns):
            old, new = layer_prefix(pattern), layer_prefix(layer)
            yield from (name.replace(old, new, 1) for name in some if layer_of(name) == pattern)


def _order(graph: ir.Graph, layers: int, initializers: Sequence[str]) -> None:
    """Sort inputs, outputs and initializers as a full trace does."""
    caches = cache_names(layers)
    for values, last in ((graph.inputs, caches), (graph.outputs, [written(name) for name in caches])):
        rank = {name: i for i, name in enumerate(last)}
        ordered = sorted(values, key=lambda value: rank.get(str(value.name), -1))
        values.clear()
        values.extend(ordered)
    by_name = dict(graph.initializers)
    graph.initializers.clear()
    for name in initializers:
        graph.initializers.add(by_name[name])
