"""Known limits of TensorRT for standard and own operators, checked before parsing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...engines.folder.records import Profile
from ...plugins.graph_contract import PROFILE_FIELDS
from ...plugins.number_types import MX_BLOCK
from ...plugins.op_spec import FLOATS, evaluate_dim, is_linear
from ...plugins.tensorrt.products import TENSORRT_RTX
from ..hardware.gpus import MOE_LAYER_SMS, sm_name, sm_number
from .lowered_graph import LoweredGraph, Node, Shape

_HEAD_SIZE = 256  # limit of the fused attention of TensorRT-RTX 1.7: 256 builds, 264 does not; there is no fallback
_FP8_SINCE = 89  # SM


def node_problems(node: Node, graph: LoweredGraph, gpus: Sequence[str], profiles: Sequence[Profile]) -> list[str]:
    """List the known problems of a node of ``graph`` on ``gpus`` (``sm_120``) in these profiles."""
    if node.op_type == "TRT_MoE":
        return _of_moe_layer(gpus)
    if node.op_type == "TRT_MXFP8DynamicQuantize":
        return _of_blocks(node) + _of_fp8(node, gpus)
    if node.domain:
        return _of_fp8(node, gpus)
    if node.op_type == "TensorScatter":
        return _of_cache_update(node, graph, profiles)
    problems = _of_head_size(node, gpus) if node.op_type == "Attention" else _of_fp8(node, gpus)
    rule = _RULES.get(node.op_type)
    return problems + (rule(node) if rule else [])


def dim_at(dim: int | str, sizes: Mapping[str, int]) -> int | None:
    """Evaluate a dimension for given symbol sizes; None if it is not an expression of them."""
    if isinstance(dim, int):
        return dim
    if not is_linear(dim):
        return None
    try:
        return int(evaluate_dim(dim, sizes))
    except KeyError:
        return None


def profile_sizes(profile: Profile, index: int) -> dict[str, int]:
    """Return the symbol sizes at a profile's minimum (0), optimum (1) or maximum (2)."""
    sizes_by_symbol = {symbol: getattr(profile, field) for symbol, field in PROFILE_FIELDS.items()}
    return {symbol: sizes[index] for symbol, sizes in sizes_by_symbol.items() if sizes}


def _of_moe_layer(gpus: Sequence[str]) -> list[str]:
    unsupported = [name for name in gpus if sm_number(name) not in MOE_LAYER_SMS]
    if not unsupported:
        return []
    supported = ", ".join(map(sm_name, MOE_LAYER_SMS))
    return [f"TensorRT does not support its expert layer on {', '.join(unsupported)}, only on {supported}"]


def _of_blocks(node: Node) -> list[str]:
    x = node.inputs[0] if node.inputs else None
    columns = x.shape[-1] if x is not None and x.shape else 0
    if isinstance(columns, int) and columns and columns % MX_BLOCK == 0:
        return []
    return [f"the node quantizes blocks of {MX_BLOCK}, but its input has {columns or 'an unknown number of'} columns"]


def _of_fp8(node: Node, gpus: Sequence[str]) -> list[str]:
    """List GPUs without FP8 if the node has an FP8 tensor: one such node makes TensorRT reject the graph."""
    unsupported = [name for name in gpus if sm_number(name) < _FP8_SINCE]
    if not unsupported or not any(value and value.dtype == "float8e4m3fn" for value in (*node.inputs, *node.outputs)):
        return []
    return [f"TensorRT does not support FP8 on {', '.join(unsupported)}, only on {sm_name(_FP8_SINCE)} and newer"]


def _of_cache_update(node: Node, graph: LoweredGraph, profiles: Sequence[Profile]) -> list[str]:
    cache, update = node.inputs[0], node.inputs[1]
    if cache is None or update is None:
        return ["the node needs a cache and an update"]
    problems = []
    if cache.name not in {value.name for value in graph.inputs}:
        problems.append(f"the cache {cache.name} is not an input of the graph")
    if node.outputs[0].name not in {value.name for value in graph.outputs}:
        problems.append(f"the result {node.outputs[0].name} is not an output of the graph")
    if cache.dtype not in FLOATS:
        problems.append(f"the cache is {cache.dtype or 'of unknown type'}, not {' or '.join(FLOATS)}")
    if node.attributes.get("mode", "linear") != "linear":
        problems.append("only the linear mode is supported")
    if cache.shape is None or len(cache.shape) != 4:
        return [*problems, f"the cache has shape {cache.shape}, not four dimensions"]
    length = cache.shape[2]
    if not isinstance(length, int):
        return [*problems, f"the cache length must be fixed, not {length!r}"]
    return problems + _of_rows(update.shape, length, profiles)


def _of_rows(update: Shape | None, length: int, profiles: Sequence[Profile]) -> list[str]:
    """List profiles that write more rows at once than the cache has.

    TensorRT reports that only at the optimum size; with a plugin, it corrupts memory.
    """
    if update is None or len(update) != 4:
        return []
    rows = {p.name: dim_at(update[2], profile_sizes(p, 2)) for p in profiles}
    return [
        f"profile {name!r} writes up to {count} rows at once into a cache of {length}"
        for name, count in rows.items()
        if count is not None and count > length
    ]


def _of_attention(node: Node) -> list[str]:
    problems = []
    if node.inputs and (query := node.inputs[0]) and query.dtype == "float32":
        problems.append("TensorRT has no attention kernel for float32")
    if node.attributes.get("softcap"):
        problems.append("TensorRT's attention does not support a soft cap")
    if node.attributes.get("is_causal"):
        problems.append(
            "is_causal gives wrong results with a cache, and TensorRT does not support it together with a mask"
        )
    if len([value for value in node.inputs if value]) > 4 or len(node.outputs) > 1:
        problems.append("TensorRT's attention does not support past keys or several outputs")
    return problems


def _of_head_size(node: Node, gpus: Sequence[str]) -> list[str]:
    query = node.inputs[0] if node.inputs else None
    size = query.shape[-1] if query and query.shape and len(query.shape) == 4 else 0
    if not isinstance(size, int) or size <= _HEAD_SIZE or not any(map(TENSORRT_RTX.supports, map(sm_number, gpus))):
        return []
    return [f"TensorRT has no attention kernel for heads of size {size}, only up to {_HEAD_SIZE}"]


def _of_scatter(node: Node) -> list[str]:
    kind = node.attributes.get("reduction", "none")
    return [] if kind == "none" else [f"TensorRT has no scatter with reduction {kind!r}"]


def _no_kernel(_: Node) -> list[str]:
    return ["TensorRT does not support this operator"]


_RULES: Mapping[str, Callable[[Node], list[str]]] = {
    "Attention": _of_attention,
    "ScatterElements": _of_scatter,
    "ScatterND": _of_scatter,
    "NonZero": _no_kernel,
    "CumProd": _no_kernel,
}
