"""Trace a target or a drafter to a semantic graph: structure only, with weights on the meta device.

The result is an ``onnx_ir.Model`` (opset 24, IR 11) in standard ops plus the ``peagle`` domain. Batch, window width,
emitted columns and cache length are symbolic. Weights are initializers without values, with the checkpoint's names (a
drafter's: those of ``DrafterModules``); RoPE tables are initializers whose frequencies are in the model's metadata.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch import nn
from torch.export import Dim

from ..plugins.errors import BuildError
from ..plugins.graph_contract import (
    AUTOREGRESSIVE_INPUTS,
    AUTOREGRESSIVE_OUTPUTS,
    DRAFTER_INPUTS,
    DRAFTER_OUTPUTS,
    TARGET_INPUTS,
    TARGET_OUTPUTS,
    cache_names,
    written,
)
from ..plugins.op_spec import DOMAIN, OPSET, VERSION
from . import operators
from .drafters import DrafterSpec
from .drafters.autoregressive_drafter import AutoregressiveDrafter
from .drafters.drafter_layers import DRAFTERS_CONFIG, drafter_rotary
from .drafters.parallel_drafter import ParallelDrafter
from .export_program import export_program, known_results
from .lowering.shared_passes import ROPE_METADATA
from .modelling_errors import modelling
from .repeated_layers import layers_to_trace, placeholder_weight, repeat_layers
from .targets import CacheSpec, TargetSpec
from .targets.semantic_patches import RotaryTable, RotaryTables
from .targets.skeleton import Skeleton
from .targets.target_graph import TargetGraph

IR_VERSION = 11

Dtype = Literal["float32", "float16", "bfloat16"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


# Example sizes: all different, and neither 0 nor 1, so that the export does not specialize on them.
_B, _S, _E, _A, _T = 2, 5, 4, 7, 96


def trace_target(skeleton: Skeleton, target: TargetSpec, dtype: Dtype = "float32") -> ir.Model:
    """Return the semantic graph of a target with its taps, if any. Takes seconds: like layers are traced once.

    Weights, caches, ``aux_hidden`` and ``logits`` have the type ``dtype``; the sampling inputs stay float32.
    """
    family, config = skeleton.family, skeleton.config
    kinds = list(zip(family.layer_kinds(family.text(config)), target.caches, target.windows, strict=True))
    layers = layers_to_trace(kinds)
    if len(layers) == len(kinds):
        return trace_all_layers(skeleton, target, dtype)
    part = family.keeping(config, layers) | {"architectures": config["architectures"]}
    shortened = replace(
        target,
        num_layers=len(layers),
        caches=tuple(target.caches[i] for i in layers),
        windows=tuple(target.windows[i] for i in layers),
        taps=tuple(range(len(layers))),
    )
    model = trace_all_layers(Skeleton(part, skeleton.file), shortened, dtype)
    repeat_layers(model, layers, kinds, target.taps)
    return model


def trace_all_layers(skeleton: Skeleton, target: TargetSpec, dtype: Dtype = "float32") -> ir.Model:
    """Return the graph of ``trace_target`` from a trace of every layer, which takes minutes at full size."""
    family, model = skeleton.family, skeleton.modules_for_tracing()
    with modelling(skeleton.file):
        family.prepare(model)
        tables = _replace_rotary(model)
    _refuse_lost_buffers(model)
    model.to(_DTYPES[dtype])
    i64, i32, f32 = torch.int64, torch.int32, torch.float32
    ids = torch.zeros(_B, _S, dtype=i64, device="meta")
    uniform = torch.zeros(_B, _E, dtype=f32, device="meta")
    policy = (uniform, _rows(f32), _rows(i32), _rows(f32), _rows(f32), _rows(f32))
    inputs = (ids, _rows(i64), _rows(i32), _rows(i32), _rows(i64), *policy)
    b, s, e = _dims("B", "S", "E")
    shapes = [{0: b, 1: s}, *[{0: b}] * 4, {0: b, 1: e}, *[{0: b}] * 5]
    graph = TargetGraph(model, target.taps, family.patches())
    outputs = tuple(name for name in TARGET_OUTPUTS if target.taps or name != "aux_hidden")
    names = (TARGET_INPUTS, outputs)
    return _trace(graph, inputs, shapes, target.caches, dtype, *names, tables, "model.", skeleton.file)


def trace_drafter(drafter: DrafterSpec, target: TargetSpec, dtype: Dtype = "float32") -> ir.Model:
    """Return the semantic graph of ``drafter`` on ``target``, which has the same ``dtype``."""
    rotary, wide = drafter_rotary(drafter), _DTYPES[dtype]
    parallel = drafter.strategy == "parallel"
    kind = ParallelDrafter if parallel else AutoregressiveDrafter
    with torch.device("meta"):
        model = kind(drafter, rotary).eval().to(wide)
    i64, i32 = torch.int64, torch.int32
    ids = torch.zeros(_B, _S, dtype=i64, device="meta")
    tokens = torch.zeros(_B, _E, dtype=i32, device="meta")
    features = len(target.taps) * target.hidden_size
    aux = torch.zeros(_B, _S if parallel else _A, features, dtype=wide, device="meta")
    inputs: tuple[torch.Tensor, ...] = (ids, _rows(i64), _rows(i32), _rows(i32), tokens, _rows(i32), aux)
    b, s, e, a = _dims("B", "S", "E", "A")
    shapes = [{0: b, 1: s}, *[{0: b}] * 3, {0: b, 1: e}, {0: b}, {0: b, 1: s if parallel else a}]
    names: tuple[Sequence[str], Sequence[str]] = (DRAFTER_INPUTS, DRAFTER_OUTPUTS)
    if not parallel:
        inputs += (torch.zeros(_B, drafter.hidden_size, dtype=wide, device="meta"),)
        shapes.append({0: b})
        names = (AUTOREGRESSIVE_INPUTS, AUTOREGRESSIVE_OUTPUTS)
    return _trace(model, inputs, shapes, drafter.caches, dtype, *names, {"rotary": rotary}, "", DRAFTERS_CONFIG)


def _rows(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(_B, dtype=dtype, device="meta")


def _dims(*names: str) -> list[Any]:
    """Create symbolic dims. The lower bound avoids torch's guards on widths of 0 and 1; the graph has no bound."""
    return [Dim(n, min=4 if n == "E" else 2, max=1 << 20) for n in names]


def _replace_rotary(model: nn.Module) -> dict[str, RotaryTable]:
    """Replace every rotary module with tables; returns them by their path below the graph wrapper."""
    modules = {n: m for n, m in model.named_modules() if type(m).__name__.endswith("RotaryEmbedding")}
    for path, module in modules.items():
        parent, _, name = path.rpartition(".")
        several = isinstance(getattr(module, "rope_type", None), dict)
        setattr(model.get_submodule(parent), name, RotaryTables(module) if several else RotaryTable(module))
    return {f"model.{n}": m for n, m in model.named_modules() if isinstance(m, RotaryTable)}


def _refuse_lost_buffers(model: nn.Module) -> None:
    """Reject buffers that neither the checkpoint nor the family provides: they would be garbage in the engine."""
    state = set(model.state_dict())
    tables = {id(b) for m in model.modules() if isinstance(m, RotaryTable) for b in m.buffers()}
    untracked = [
        n for n, b in model.named_buffers() if b.device.type == "meta" and n not in state and id(b) not in tables
    ]
    if untracked:
        raise BuildError(
            f"the model has buffers without a value: {', '.join(untracked)}",
            why="the modeling code computes these buffers, but tracing runs without values",
            fix="let the family's `prepare` compute them (docs/add-a-model.md)",
        )


def _trace(
    graph: nn.Module,
    inputs: Sequence[torch.Tensor],
    shapes: Sequence[Mapping[int, Any]],
    caches: Sequence[CacheSpec],
    dtype: Dtype,
    input_names: Sequence[str],
    output_names: Sequence[str],
    tables: Mapping[str, RotaryTable],
    prefix: str,
    file: str,
) -> ir.Model:
    translations = operators.translations()
    length = _dims("T")[0]
    k = [torch.zeros(_B, c.heads, _T, c.head_dim, dtype=_DTYPES[dtype], device="meta") for c in caches]
    v = [torch.zeros_like(x) for x in k]
    cache_shapes = [{0: shapes[0][0], 2: length}] * len(k)
    names = cache_names(len(caches))
    with torch.no_grad(), _quiet():
        with modelling(file, "describes a model that cannot be traced"):
            exported = export_program(graph, (*inputs, k, v), (*shapes, cache_shapes, cache_shapes))
        with known_results():
            program = torch.onnx.export(
                exported,
                (),
                custom_translation_table=translations,
                opset_version=OPSET,
                dynamo=True,
                input_names=[*input_names, *names],
                output_names=[*output_names, *map(written, names)],
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
    """Fold and de-duplicate. Initializers without values are hidden from the folder in the meantime, since it reads
    them."""
    import onnxscript

    valueless = {n: v.const_value for n, v in model.graph.initializers.items()}
    weights = {n: t for n, t in valueless.items() if t is not None and _on_meta(t)}
    for name in weights:
        model.graph.initializers[name].const_value = None
    onnxscript.optimizer.optimize_ir(model)
    for name, tensor in weights.items():
        if name in model.graph.initializers:
            value = model.graph.initializers[name]
            value.const_value = placeholder_weight(name, tensor.dtype, tensor.shape)
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces, which would be most of the file


def _on_meta(tensor: Any) -> bool:
    raw = getattr(tensor, "raw", None)
    return isinstance(raw, torch.Tensor) and raw.device.type == "meta"


def _name_weights(model: ir.Model, prefix: str) -> None:
    """Rename initializers as in the checkpoint, without the wrapper's own attribute."""
    for name in list(model.graph.initializers):
        value = model.graph.initializers[name]
        if isinstance(value.const_value, ir.ExternalTensor) and name.startswith(prefix) and prefix:
            value.name = name.removeprefix(prefix)
            value.const_value.name = value.name


def _name_dims(model: ir.Model) -> None:
    """Rename dims throughout the graph as in the graph contract."""
    inputs = {v.name: v for v in model.graph.inputs}
    emitted = inputs.get("uniform") or inputs["tokens"]
    ids, cache = inputs["input_ids"].shape, inputs["k_cache.0"].shape
    names = {str(ids[0]): "B", str(emitted.shape[1]): "E", str(cache[2]): "T"}
    if "aux_hidden" in inputs:  # in drafters; it can be empty in an autoregressive one
        names[str(inputs["aux_hidden"].shape[1])] = "A"
    names[str(ids[1])] = "S"
    produced = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *produced):
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else _renamed(str(d), names) for d in value.shape])


def _renamed(dim: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda match: names.get(match[0], match[0]), dim)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its internals; the lowering and the tests check the result."""
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
