"""Trace a target or a drafter to a semantic graph: structure only, weights stay on the meta device.

The result is an ``onnx_ir.Model`` (opset 24, IR 11) in standard ops plus the ``peagle`` domain. Batch, window width,
emitted columns and cache length are symbolic. Weights are initializers without values, named as in the checkpoint (the
drafter's: as in ``Drafter``); RoPE tables are initializers whose frequencies are kept in the model's metadata.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.export import Dim

from ..plugins.spec import DOMAIN, OPSET, VERSION
from . import torch_ops
from .drafter import Drafter
from .families import CacheSpec, TargetSpec, family_for
from .heads import HeadSpec
from .semantic import RotaryTable
from .target import TargetGraph

IR_VERSION = 11
ROPE_METADATA = "peagle.rope"

# Example sizes: all different and neither 0 nor 1, so that nothing is specialised on them.
_B, _S, _E, _T = 2, 5, 4, 96

TARGET_INPUTS = (
    "input_ids", "start", "window_len", "draft_len", "forced_next",
    "uniform", "temperature", "top_k", "top_p", "min_p", "tolerance",
)  # fmt: skip
TARGET_OUTPUTS = ("tokens", "num_tokens", "aux_hidden", "logits")
DRAFTER_INPUTS = ("input_ids", "start", "window_len", "draft_len", "tokens", "num_tokens", "aux_hidden")
DRAFTER_OUTPUTS = (
    "draft_ids", "next_input_ids", "next_start", "next_window_len", "next_draft_len", "draft_logits",
)  # fmt: skip


def trace_target(config: Mapping[str, Any], target: TargetSpec) -> ir.Model:
    """The target's semantic graph. ``config`` is its ``config.json``; takes seconds (tiny) to minutes (full size)."""
    cls = family_for(config).model_class()
    settings = cls.config_class.from_dict(dict(config))
    with torch.device("meta"):
        model = cls(settings).eval()
    tables = _replace_rotary(model)
    i64, i32, f32 = torch.int64, torch.int32, torch.float32
    ids = torch.zeros(_B, _S, dtype=i64, device="meta")
    uniform = torch.zeros(_B, _E, dtype=f32, device="meta")
    policy = (uniform, _rows(f32), _rows(i32), _rows(f32), _rows(f32), _rows(f32))
    inputs = (ids, _rows(i64), _rows(i32), _rows(i32), _rows(i64), *policy)
    b, s, e = _dims("B", "S", "E")
    shapes = [{0: b, 1: s}, *[{0: b}] * 4, {0: b, 1: e}, *[{0: b}] * 5]
    graph = TargetGraph(model, target.taps)
    return _trace(graph, inputs, shapes, target.caches, TARGET_INPUTS, TARGET_OUTPUTS, tables, "model.")


def trace_drafter(head: HeadSpec, target: TargetSpec) -> ir.Model:
    """The drafter's semantic graph for ``head`` on ``target``."""
    rotary = drafter_rotary(head)
    with torch.device("meta"):
        model = Drafter(head, rotary).eval()
    i64, i32 = torch.int64, torch.int32
    ids = torch.zeros(_B, _S, dtype=i64, device="meta")
    tokens = torch.zeros(_B, _E, dtype=i32, device="meta")
    aux = torch.zeros(_B, _S, len(target.taps) * target.hidden_size, device="meta")
    inputs = (ids, _rows(i64), _rows(i32), _rows(i32), tokens, _rows(i32), aux)
    b, s, e = _dims("B", "S", "E")
    shapes = [{0: b, 1: s}, *[{0: b}] * 3, {0: b, 1: e}, {0: b}, {0: b, 1: s}]
    return _trace(model, inputs, shapes, head.caches, DRAFTER_INPUTS, DRAFTER_OUTPUTS, {"rotary": rotary}, "")


def drafter_rotary(head: HeadSpec) -> RotaryTable:
    """The drafter's own rotary embedding, which need not be the target's; computed by ``transformers``."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head.hidden_size, num_attention_heads=head.num_heads, head_dim=head.cache.head_dim, **head.rope
    )
    return RotaryTable(LlamaRotaryEmbedding(config))


def _rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(_B, dtype=dtype, device="meta")


def _dims(*names: str) -> list[Any]:
    """The lower bound only spares torch its guards on widths of 0 and 1; the graph has none (K = 1 is tested)."""
    return [Dim(n, min=4 if n == "E" else 2, max=1 << 20) for n in names]


def _replace_rotary(model: nn.Module) -> dict[str, RotaryTable]:
    """Put a ``RotaryTable`` in the place of every rotary module; returns them by their path below the graph wrapper."""
    found = {n: m for n, m in model.named_modules() if type(m).__name__.endswith("RotaryEmbedding")}
    tables = {}
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        table = RotaryTable(module)
        setattr(model.get_submodule(parent), name, table)
        tables[f"model.{path}"] = table
    return tables


def _trace(
    graph: nn.Module,
    inputs: Sequence[torch.Tensor],
    shapes: Sequence[Mapping[int, Any]],
    caches: Sequence[CacheSpec],
    input_names: Sequence[str],
    output_names: Sequence[str],
    tables: Mapping[str, RotaryTable],
    prefix: str,
) -> ir.Model:
    translations = torch_ops.translations()
    layers = range(len(caches))
    length = _dims("T")[0]
    k = [torch.zeros(_B, c.heads, _T, c.head_dim, device="meta") for c in caches]
    v = [torch.zeros_like(x) for x in k]
    cache_shapes = [{0: shapes[0][0], 2: length}] * len(k)
    cache_names = [f"{kind}_cache.{i}" for kind in "kv" for i in layers]
    with torch.no_grad(), _quiet():
        exported = torch.export.export(
            graph, (*inputs, k, v), dynamic_shapes=(*shapes, cache_shapes, cache_shapes), strict=False
        )
        program = torch.onnx.export(
            exported,
            (),
            custom_translation_table=translations,
            opset_version=OPSET,
            dynamo=True,
            input_names=[*input_names, *cache_names],
            output_names=[*output_names, *[f"{n}.out" for n in cache_names]],
            optimize=False,
            verbose=False,
        )
        model = program.model
        _simplify(model)
    _name_weights(model, prefix)
    _name_dims(model)
    model.ir_version = IR_VERSION
    model.opset_imports[DOMAIN] = VERSION
    rope = {name.removeprefix(prefix): {"inv_freq": t.inv_freq, "scaling": t.scaling} for name, t in tables.items()}
    model.metadata_props[ROPE_METADATA] = json.dumps(rope)
    return model


def _simplify(model: ir.Model) -> None:
    """Fold and de-duplicate. The folder reads initializers, and ours have no values yet: they look away meanwhile."""
    import onnxscript

    valueless = {n: v.const_value for n, v in model.graph.initializers.items()}
    weights = {n: t for n, t in valueless.items() if t is not None and _on_meta(t)}
    for name in weights:
        model.graph.initializers[name].const_value = None
    onnxscript.optimizer.optimize_ir(model)
    for name, tensor in weights.items():
        if name in model.graph.initializers:
            value = model.graph.initializers[name]
            value.const_value = ir.ExternalTensor(
                "weights", None, None, tensor.dtype, shape=tensor.shape, name=name
            )  # structure only: the bytes are attached when the graph is lowered
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces: most of the file otherwise


def _on_meta(tensor: Any) -> bool:
    raw = getattr(tensor, "raw", None)
    return isinstance(raw, torch.Tensor) and raw.device.type == "meta"


def _name_weights(model: ir.Model, prefix: str) -> None:
    """Initializers are called as in the checkpoint: the wrapper's own attribute is not part of a name."""
    for name in list(model.graph.initializers):
        value = model.graph.initializers[name]
        if isinstance(value.const_value, ir.ExternalTensor) and name.startswith(prefix) and prefix:
            value.name = name.removeprefix(prefix)
            value.const_value.name = value.name


def _name_dims(model: ir.Model) -> None:
    """Call the dims what the graph contract calls them, everywhere in the graph."""
    inputs = {v.name: v for v in model.graph.inputs}
    emitted = inputs.get("uniform") or inputs["tokens"]
    ids, cache = inputs["input_ids"].shape, inputs["k_cache.0"].shape
    names = {str(ids[0]): "B", str(ids[1]): "S", str(emitted.shape[1]): "E", str(cache[2]): "T"}
    produced = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *produced):
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else _renamed(str(d), names) for d in value.shape])


def _renamed(dim: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda match: names.get(match[0], match[0]), dim)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's warnings name its own internals; what matters is checked by the lowering and the tests."""
    loggers = [logging.getLogger(n) for n in ("torch.onnx", "torch.export", "torch", "onnxscript", "onnx_ir")]
    levels = [x.level for x in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
