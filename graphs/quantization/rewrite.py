"""Rewrite a semantic graph to quantized weights: find the sites, quantize the weights and their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN, VERSION
from ..node_tape import Nodes
from .mxfp4_experts import UNSUITED, keep_experts, keepable
from .packed_experts import UNPAIRED, is_experts, pack_experts, packable
from .packed_nodes import packed_streams
from .qdq_nodes import code_shape, dequantized, onnx_type, rounded, scale_dtype, scale_shape, shortened, streamed
from .quantized_weight import Quantization, QuantizedWeight, Rounding, SharedInput, WeightStream
from .rewrite_rules import RULES, Site

Weights = Mapping[str, QuantizedWeight]


def quantize(model: ir.Model, weights: Weights) -> Quantization:
    """Rewrite a semantic graph in place so that ``weights``, by name, are stored as codes.

    An input shared by several weights (q, k and v; gate and up) is quantized once, with the largest of their scales: a
    smaller one would clip values that calibration found for the others. A weight that no rule matches stays unchanged.
    Other readers of a weight keep its unquantized form next to the codes, and so do row lookups unless the weight is
    ``gathered``.
    """
    candidates = [site for node in tuple(model.graph) for rule in RULES for site in rule.sites(node)]
    selected = [site for site in candidates if site.weight.name in weights]
    sites = [site for site in selected if not site.gathers or weights[str(site.weight.name)].gathered]
    refused = {str(site.weight.name): site.fault for site in sites if site.fault}
    absent = weights.keys() - {site.weight.name for site in sites}
    refused |= dict.fromkeys(sorted(absent), "no node of the graph multiplies by it in a supported form")
    sites = [site for site in sites if site.weight.name not in refused]
    stacks = [site for site in sites if is_experts(site.node) and weights[str(site.weight.name)].packed]
    refused |= {str(site.weight.name): UNPAIRED for site in stacks if not packable(site.node, weights)}
    streams: dict[str, WeightStream] = {}
    for node in dict.fromkeys(site.node for site in stacks if packable(site.node, weights)):
        streams |= pack_experts(model.graph, node, weights)
    sites = [site for site in sites if site not in stacks]
    stacks = [site for site in sites if is_experts(site.node) and weights[str(site.weight.name)].blocks]
    both = {node for node, count in Counter(site.node for site in stacks).items() if count == 2 and keepable(node)}
    refused |= {str(site.weight.name): UNSUITED for site in stacks if site.node not in both}
    for node in dict.fromkeys(site.node for site in stacks if site.node in both):
        streams |= keep_experts(model.graph, node)
    sites = [site for site in sites if site not in stacks]
    streams |= _quantize(model.graph, sites, weights)
    shared = _round_inputs(model.graph, sites, weights)
    for site in sites:
        if site.inside and (rounding := weights[str(site.weight.name)].input):
            site.round_inside(rounding)
    if any(node.domain == DOMAIN for node in model.graph):
        model.opset_imports.setdefault(DOMAIN, VERSION)
    names = tuple(dict.fromkeys(stream.weight for stream in streams.values()))
    return Quantization(names, refused, shared, streams)


def _quantize(graph: ir.Graph, sites: list[Site], weights: Weights) -> dict[str, WeightStream]:
    order = {node: index for index, node in enumerate(graph)}
    readers: dict[ir.Value, list[Site]] = {}
    for site in sites:
        readers.setdefault(site.weight, []).append(site)
    streams: dict[str, WeightStream] = {}
    for value, group in readers.items():
        name, wide = str(value.name), ir.DataType(value.const_value.dtype)
        if weights[name].packed:
            streams |= packed_streams(graph, value, weights[name], group)
            continue
        weight, tied = weights[name], len(value.uses()) > len({site.reader for site in group})
        shape = tuple(int(dim) for dim in value.const_value.shape)
        of_codes, of_scales = f"{name}.codes" if tied else name, f"{name}_scale"
        if not tied:
            del graph.initializers[name]
        op = Nodes()
        stored_shape = code_shape(weight, shape)
        codes = streamed(graph, of_codes, stored_shape, onnx_type(weight.codes))
        scales = streamed(graph, of_scales, scale_shape(weight), scale_dtype(weight, wide))
        result = dequantized(op, codes, scales, weight, wide)
        is_padded = weight.input is not None and weight.input.block > 0  # like the inputs, which are padded as well
        if not is_padded:
            result = shortened(op, result, shape[-1])
        nodes = [site.reader for site in group]
        graph.insert_before(min(nodes, key=order.__getitem__), op.nodes)
        for reader, index in tuple(value.uses()):
            if reader in nodes:
                reader.replace_input_with(index, result)
                if is_padded and reader.op_type == "Transpose":
                    reader.outputs[0].shape = ir.Shape(stored_shape[::-1])
        streams |= {of_codes: WeightStream(name, scales=False), of_scales: WeightStream(name, scales=True)}
    return streams


def _round_inputs(graph: ir.Graph, sites: list[Site], weights: Weights) -> tuple[SharedInput, ...]:
    readers: dict[ir.Value, list[Site]] = {}
    for site in sites:
        if site.x is not None and weights[str(site.weight.name)].input:
            readers.setdefault(site.node.inputs[site.x], []).append(site)
    shared = []
    for x, group in readers.items():
        roundings = [rounding for site in group if (rounding := weights[str(site.weight.name)].input)]
        scales = [rounding.scale for rounding in roundings if rounding.scale is not None]
        op = Nodes()
        result = rounded(op, graph, x, _widest(roundings))
        graph.insert_before(group[0].node, op.nodes)  # sites are in graph order
        for site in group:
            site.node.replace_input_with(site.x or 0, result)
        if len(group) > 1 and scales:
            shared.append(SharedInput(tuple(str(s.weight.name) for s in group), max(scales), min(scales)))
    return tuple(shared)


def _widest(roundings: list[Rounding]) -> Rounding:
    scales = [rounding.scale for rounding in roundings if rounding.scale is not None]
    return replace(roundings[0], scale=max(scales)) if scales else roundings[0]
