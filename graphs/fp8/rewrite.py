"""From a semantic graph to one that keeps weights in FP8: find the sites, narrow the weights, round the inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..tape import Nodes
from .nodes import dequantized, narrow_weight, rounded
from .rules import RULES, Site
from .weight import Fp8Weight, Narrowing, SharedInput


def narrow(model: ir.Model, weights: Mapping[str, Fp8Weight]) -> Narrowing:
    """Rewrite a semantic graph in place so that ``weights``, by their names in it, are stored as E4M3.

    An input that several of them share (of q, k and v; of gate and up) is rounded once, to the largest of their scales:
    a smaller one would clip what the others were measured to need. A weight that no rule fits stays as it is.
    """
    found = [site for node in tuple(model.graph) for rule in RULES for site in rule.sites(node)]
    sites = [site for site in found if site.weight.name in weights]
    refused = {str(site.weight.name): site.fault for site in sites if site.fault}
    missing = weights.keys() - {site.weight.name for site in sites}
    refused |= dict.fromkeys(sorted(missing), "no node of the graph multiplies with it in a form that is known")
    sites = [site for site in sites if site.weight.name not in refused]
    order = {node: place for place, node in enumerate(model.graph)}
    _narrow(model.graph, sites, weights, order)
    shared = _round_inputs(model.graph, sites, weights)
    return Narrowing(tuple(dict.fromkeys(str(site.weight.name) for site in sites)), refused, shared)


def _narrow(graph: ir.Graph, sites: list[Site], weights: Mapping[str, Fp8Weight], order: Mapping[ir.Node, int]) -> None:
    for value in dict.fromkeys(site.weight for site in sites):
        op, users = Nodes(), tuple(value.uses())
        wide = dequantized(op, graph, value, weights[str(value.name)].scale, narrow_weight(value))
        graph.insert_before(min((user for user, _ in users), key=order.__getitem__), op.nodes)
        for user, place in users:
            user.replace_input_with(place, wide)


def _round_inputs(graph: ir.Graph, sites: list[Site], weights: Mapping[str, Fp8Weight]) -> tuple[SharedInput, ...]:
    readers: dict[ir.Value, list[Site]] = {}
    for site in sites:
        if site.x is not None and weights[str(site.weight.name)].input_scale is not None:
            readers.setdefault(site.node.inputs[site.x], []).append(site)
    shared = []
    for x, group in readers.items():
        scales = [float(weights[str(site.weight.name)].input_scale or 0) for site in group]
        op = Nodes()
        result = rounded(op, graph, x, max(scales))
        graph.insert_before(group[0].node, op.nodes)  # sites are in the order of the graph
        for site in group:
            site.node.replace_input_with(site.x or 0, result)
        if len(group) > 1:
            shared.append(SharedInput(tuple(str(s.weight.name) for s in group), max(scales), min(scales)))
    return tuple(shared)
