"""Export of a module as a program that is translated to ONNX operator by operator, without a second trace.

``torch.onnx.export`` lets every program decompose its operators into those that ONNX has. For this, torch traces the
program twice more, which takes almost as long as everything else. A model in semantic ops has nothing to decompose,
except for a few operators that are rewritten here, one node each. A program with any other operator is traced again.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

aten = torch.ops.aten


def export_program(graph: nn.Module, inputs: Sequence[Any], shapes: Sequence[Any]) -> Any:
    """Return the ``ExportedProgram`` of ``graph``, with the dynamic ``shapes`` of its ``inputs``."""
    program = torch.export.export(graph, tuple(inputs), dynamic_shapes=tuple(shapes), strict=False)
    decompose = program.run_decompositions

    def rewrite_or_decompose(table: Mapping[Any, Any]) -> Any:
        return program if _rewrite(program.graph, table) else decompose(table)

    program.run_decompositions = rewrite_or_decompose  # which the exporter calls
    return program


@contextmanager
def known_results() -> Iterator[None]:
    """Let the exporter promote types without running every node again, which takes as long as the first trace.

    Nodes keep the results of that trace, except those whose inputs are cast. A torch with another form of this step
    runs it as it is.
    """
    try:
        from torch.onnx._internal.fx.passes import type_promotion

        original, rule_of = type_promotion._TypePromotionInterpreter, type_promotion.get_type_promotion_rule
        promote, current = original._maybe_promote_node, original._set_current_node
        is_known = [*inspect.signature(promote).parameters] == ["self", "node", "rule"]
    except (ImportError, AttributeError):
        is_known = False
    if not is_known:
        yield
        return

    class Promotion(original):  # type: ignore[misc, valid-type]
        def run_node(self, n: Any) -> Any:
            if n.op != "call_function" or "val" not in n.meta:
                return super().run_node(n)
            with current(self, n):
                if rule := rule_of(n, self.type_promotion_table):
                    promote(self, n, rule)
            return n.meta["val"]

    type_promotion._TypePromotionInterpreter = Promotion
    try:
        yield
    finally:
        type_promotion._TypePromotionInterpreter = original


def _rewrite(graph: Any, table: Mapping[Any, Any]) -> bool:
    """Decompose what ``table`` and functional form ask for. False if it takes more than a node for a node."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    rewrites = [(node, _rewrite_of(node)) for node in nodes if not _stays(node, table)]
    if any(rewrite is None for _, rewrite in rewrites):
        return False
    for node, rewrite in rewrites:
        if rewrite:
            rewrite(node)
    return True


def _stays(node: Any, table: Mapping[Any, Any]) -> bool:
    """Tell if decomposing keeps an operator: it has no decomposition, changes no input, and returns no view by parts.

    Of composite operators, torch keeps those whose results are no views.
    """
    if node.op != "call_function" or node.target in table:
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return getattr(node.target, "__module__", None) == operator.add.__module__  # of sizes
    schema = node.target._schema
    return not schema.is_mutable and not (_composite(node.target) and _aliases(node.target))


def _composite(target: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"))


def _aliases(target: Any) -> bool:
    """Tell if the results of an operator may share memory with its inputs."""
    return not isinstance(target, torch._ops.OpOverload) or any(each.alias_info for each in target._schema.returns)


def _rewrite_of(node: Any) -> Callable[[Any], None] | None:
    if node.op != "call_function":
        return None
    if node.target is aten.reshape.default and node.args[0].meta["val"].is_contiguous():
        return _view
    if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
        return _cast
    if node.target in _FUNCTIONAL and _last_use(node, node.args[0]):
        return _functional
    return None


def _view(node: Any) -> None:
    node.target = aten.view.default


def _cast(node: Any) -> None:
    tensor, dtype = node.args
    if tensor.meta["val"].dtype == dtype:
        node.replace_all_uses_with(tensor)
        node.graph.erase_node(node)
    else:
        node.target, node.args, node.kwargs = aten._to_copy.default, (tensor,), {"dtype": dtype}


_FUNCTIONAL = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
}


def _functional(node: Any) -> None:
    node.target = _FUNCTIONAL[node.target]


def _last_use(node: Any, changed: Any) -> bool:
    """Tell if nobody reads a tensor after ``node`` has changed it: not by its name, nor through a view.

    Results of arithmetic have memory of their own. Later reads of the changed tensor are reads of ``node``.
    """
    source = changed.args[0] if changed.target is operator.getitem else changed
    reads = [user for user in changed.users if user is not node]
    alone = source.op == "call_function" and not _aliases(source.target)
    dtypes = {each.meta["val"].dtype for each in (changed, node.args[1]) if isinstance(each, torch.fx.Node)}
    return alone and len(dtypes) == 1 and all(read < node and not _aliases(read.target) for read in reads)
