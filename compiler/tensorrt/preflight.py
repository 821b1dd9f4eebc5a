"""Check a graph before TensorRT parses it, and determine what the parser must produce.

TensorRT checks little: it silently replaces an own node without its plugin attributes by the function body, a plugin's
wrong shape corrupts memory, and unsupported forms fail late, with internal messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engines.folder.records import Profile
from ...plugins.errors import BuildError, PeagleError
from ...plugins.graph_contract import PROFILE_FIELDS
from ...plugins.op_spec import DOMAIN, SELECTION, OpSpec
from ...plugins.ops import OPS
from ...plugins.tensorrt.check_call import check_call
from .graph_record import read_record
from .lowered_graph import LoweredGraph, Node, Value, is_native, read_graph
from .node_rules import node_problems


@dataclass(frozen=True)
class Survey:
    """A graph that may be parsed. ``layers`` counts TensorRT layers by type, ``plugins`` our ops by name.

    ``others`` are op types outside our domain and without a body, which the parser must support.
    """

    graph: LoweredGraph
    layers: Mapping[str, int]
    plugins: Mapping[str, int]
    others: tuple[str, ...]

    @property
    def aliases(self) -> bool:
        """True if a plugin writes into one of its inputs."""
        return any(output.aliases for name in self.plugins for output in OPS[name].outputs)


def graph_of(path: Path) -> LoweredGraph:
    """Read a lowered graph as TensorRT would import it, with our nodes as plugins. Raises ``BuildError``."""
    return read_graph(path, frozenset({DOMAIN}))


def survey(path: Path, gpus: Sequence[str], profiles: Sequence[Profile], record: Path | None = None) -> Survey:
    """Read a lowered graph and check it. Raises one ``BuildError`` listing everything that TensorRT does not support.

    A ``record`` is read instead of the graph, so that the package ``onnx`` is not needed.
    """
    graph = read_record(record, path) if record else graph_of(path)
    problems = [problem for node in graph.nodes for problem in _complaints(node, graph, gpus, profiles)]
    problems += [
        f"input {value.name}: no profile defines its size {dim!r} ({', '.join(PROFILE_FIELDS)})"
        for value in graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, str) and dim not in PROFILE_FIELDS
    ]
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise BuildError(
            f"TensorRT cannot build {path}",
            why="; ".join(problems[:8]) + more,
            fix="build, or export again with `--for tensorrt`, in fp16 or bf16",
        )
    count = Counter(node.op_type for node in graph.nodes)
    plugins = {op.name: count[op.name] for op in OPS.values() if op.kernel and count[op.name]}
    return Survey(
        graph=graph,
        layers={
            "PLUGIN_V3": sum(plugins.values()),
            "KV_CACHE_UPDATE": count["TensorScatter"] + count["TRT_KVCacheUpdate"],
            "ATTENTION_INPUT": count["Attention"] + count["TRT_Attention"],
            "MOE": count["TRT_MoE"],
            "QUANTIZE": count["QuantizeLinear"],
            "DEQUANTIZE": count["DequantizeLinear"] + count["TRT_MXFP8DequantizeLinear"],
            "DYNAMIC_QUANTIZE": count["TRT_MXFP8DynamicQuantize"],
        },
        plugins=plugins,
        others=tuple(
            sorted(
                {
                    n.op_type
                    for n in graph.nodes
                    if not _is_own_op(n) and (is_native(n.op_type) or not _has_body(n, graph))
                }
            )
        ),
    )


def _is_own_op(node: Node) -> bool:
    return node.domain == DOMAIN


def _has_body(node: Node, graph: LoweredGraph) -> bool:
    return (node.domain, node.op_type) in graph.functions


def _complaints(node: Node, graph: LoweredGraph, gpus: Sequence[str], profiles: Sequence[Profile]) -> list[str]:
    if _is_own_op(node):
        problems = _check_own_op(node)
    elif node.domain and not is_native(node.op_type) and not _has_body(node, graph):
        problems = ["TensorRT does not support this operator, and the graph has no body for it"]
    else:
        problems = node_problems(node, graph, gpus, profiles)
    return [f"{node}: {problem}" for problem in problems]


def _check_own_op(node: Node) -> list[str]:
    op = OPS.get(node.op_type)
    if op is None:
        return [f"{DOMAIN} has no op of this name"]
    if op.kernel is None:
        return ["the op has no TensorRT plugin; the lowering `tensorrt` replaces the op"]
    problems = [
        f"the attribute {name} must be {value!r}, not {node.attributes.get(name)!r}: TensorRT would use the "
        f"function body instead"
        for name, value in SELECTION.items()
        if node.attributes.get(name) != value
    ]
    missing = [str(i) for i, value in enumerate(node.inputs) if value is None or not value.dtype or value.shape is None]
    if missing:
        return [*problems, f"inputs {', '.join(missing)} are missing or have no type and shape"]
    return [*problems, *_of_call(op, node, [value for value in node.inputs if value is not None])]


def _of_call(op: OpSpec, node: Node, inputs: Sequence[Value]) -> list[str]:
    """List violations of the op's own rules, and outputs that the graph declares differently."""
    attributes = {name: value for name, value in node.attributes.items() if name not in SELECTION}
    try:
        results = check_call(op, attributes, [value.dtype for value in inputs], [value.shape for value in inputs])
    except PeagleError as error:
        return [error.what]
    if len(results) != len(node.outputs):
        return [f"the node has {len(node.outputs)} outputs, not {len(results)}"]
    problems = []
    for value, (dtype, shape) in zip(node.outputs, results, strict=True):
        if value.dtype and value.dtype != dtype:
            problems.append(f"output {value.name} is declared as {value.dtype}, but the plugin produces {dtype}")
        if value.shape is not None and len(value.shape) != len(shape):
            problems.append(
                f"output {value.name} is declared with rank {len(value.shape)}, but the plugin produces rank "
                f"{len(shape)}"
            )
    return problems
