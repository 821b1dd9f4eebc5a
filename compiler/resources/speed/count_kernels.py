"""The number of kernels of a graph's pass on a GPU, by the fusions that plans of TensorRT-RTX 1.7 show.

The number is an estimate, because TensorRT decides when it builds. Nodes over constants are folded, sizes are computed
on the host, and views cost nothing. A chain of elementwise nodes is one kernel, or part of the kernel of a norm,
attention, top-k, softmax or sum next to it. Concatenations absorb elementwise nodes, parts of caches and other
concatenations; cache writes absorb biases.

Matmuls with the same input are one kernel if their weights are unquantized, or will be quantized alike; a matmul with
its own scale in the graph is separate. The cache writes that the pass does not read are one kernel; otherwise, the two
writes of a layer and its rotary embeddings are one. Fused attention has a second kernel for its output, or for a slice
of it. The sum of experts shares a kernel with the sum of their shares.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import onnx_ir as ir

from ....plugins.graph_contract import is_cache

_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Expand", "Pad", "RotaryEmbedding", "Split"}
_ELEMENTWISE = {
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Exp", "Log", "Pow", "Tanh", "Sigmoid", "Gelu", "Clip", "Min",
    "Max", "Cast", "CastLike", "Where", "And", "Or", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "Mod", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
_WRITE = "TensorScatter"
_TAKES_IN = {"RMSNormalization", "Attention", "TopK", "Softmax", "ReduceSum", "Concat", _WRITE}
_MATMULS = {"MatMul", "Gemm"}
# Tokens sorted by expert, and two grouped products: assumed, because the layer needs SM 100, 103 or 110.
_KERNELS = {"Attention": 2, "TRT_MoE": 3}


def count_kernels(model: ir.Model, quantized: Container[str] = ()) -> int:
    """Return the kernels of one pass of a lowered graph. ``quantized`` are weights that will be quantized in it."""
    graph = _Graph(model)
    kinds = [str(node.op_type) for node in graph.computing]
    single = sum(_KERNELS.get(kind, 1) for kind in kinds if kind not in {*_ELEMENTWISE, *_MATMULS, _WRITE})
    single -= sum(map(_is_read_in_place, graph.computing))
    writes = [bool(node.outputs[0].uses()) for node in graph.computing if node.op_type == _WRITE]
    writing = -(-sum(writes) // 2) + (False in writes)
    return single + writing + graph.matmuls(quantized) + graph.elementwise_chains()


def multiplies_every(model: ir.Model, stacks: Container[str]) -> bool:
    """Return True if a matmul of a lowered graph multiplies a whole stack of experts, whoever was chosen."""
    graph = _Graph(model)
    return any(
        name in stacks for node in graph.computing if node.op_type in _MATMULS for name in graph.weights_of(node)
    )


def copies_caches(model: ir.Model) -> bool:
    """Return True if a layer copies the positions of a cache that it attends to, before or after the write."""
    return any(map(_is_part_of_cache, _Graph(model).computing))


class _Graph:
    """The nodes of a graph that compute something on the GPU."""

    def __init__(self, model: ir.Model) -> None:
        known: set[ir.Value | None] = {None, *model.graph.initializers.values()}
        self.computing = []
        for node in model.graph:  # in topological order
            is_typed = node.op_type == "CastLike" and node.inputs[0] in known  # the other input only has the type
            if node.op_type == "Shape" or is_typed or known.issuperset(node.inputs):
                known.update(node.outputs)
            elif node.op_type not in _VIEWS:
                self.computing.append(node)
        self._known = known
        self._weights: dict[ir.Node, frozenset[str]] = {}

    def matmuls(self, quantized: Container[str]) -> int:
        """Count the kernels of all matmuls."""
        alone = 0
        together: set[tuple[ir.Value | None, bool]] = set()
        for node in self.computing:
            if node.op_type in _MATMULS:
                weights = self.weights_of(node)
                if not weights or any(maker.op_type == "DequantizeLinear" for maker in _makers(node)):
                    alone += 1
                else:
                    together.add((node.inputs[0], any(name in quantized for name in weights)))
        return alone + len(together)

    def weights_of(self, node: ir.Node) -> frozenset[str]:
        """Return the initializers in the constant inputs of a node."""
        if node not in self._weights:
            names: set[str] = set()
            for value in node.inputs:
                if value is not None and value in self._known:
                    maker = value.producer()
                    names |= {str(value.name)} if maker is None else self.weights_of(maker)
            self._weights[node] = frozenset(names)
        return self._weights[node]

    def elementwise_chains(self) -> int:
        """Count connected elementwise nodes as one kernel, unless a norm or attention beside them takes them in."""
        chain = {node: node for node in self.computing if node.op_type in _ELEMENTWISE}
        taken_in: set[ir.Node] = set()

        def first(node: ir.Node) -> ir.Node:
            while chain[node] is not node:
                node = chain[node]
            return node

        for node in [*chain]:
            for reader in _readers(node):
                if reader in chain:
                    chain[first(reader)] = first(node)
                elif reader.op_type in _TAKES_IN:
                    taken_in.add(node)
            if any(maker.op_type in _TAKES_IN for maker in _makers(node)):
                taken_in.add(node)
        return len({first(node) for node in chain} - {first(node) for node in taken_in})


def _is_read_in_place(node: ir.Node) -> bool:
    if node.op_type == "ReduceSum" and any(maker.op_type == "Expand" for maker in node.predecessors()):
        return True  # a sum of shares
    if node.op_type == "Slice" and any(maker.op_type == "Attention" for maker in _makers(node)):
        return True
    kind = "Slice" if _is_part_of_cache(node) else node.op_type
    readers = {"Slice": {"Concat", *_ELEMENTWISE}, "Concat": {"Concat"}}.get(kind)
    return readers is not None and all(reader.op_type in readers for reader in _readers(node))


def _is_part_of_cache(node: ir.Node) -> bool:
    """Return True for the positions that a layer reads of a cache: the first ones, or those in an attention window."""
    if node.op_type not in ("Slice", "Gather"):
        return False
    source = node.inputs[0]
    while source is not None and (maker := source.producer()) is not None and maker.op_type in _VIEWS:
        source = maker.inputs[0]
    if source is None:
        return False
    maker = source.producer()
    return is_cache(str(source.name)) if maker is None else maker.op_type in (_WRITE, "DequantizeLinear")


def _readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the readers of a node's results, past views."""
    for value in node.outputs:
        for reader, _ in value.uses():
            if reader.op_type in _VIEWS:
                yield from _readers(reader)
            else:
                yield reader


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the producers of a node's inputs, past views."""
    for value in node.inputs:
        maker = value.producer() if value is not None else None
        if maker is not None:
            yield from _makers(maker) if maker.op_type in _VIEWS else (maker,)
