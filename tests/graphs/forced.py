"""Compare a quantized graph with a model in torch product by product: each takes the graph's own input.

Numbers that differ in the seventh digit can be rounded to different neighbours, and what follows differs then by a step
of the quantized type. Here nothing can follow: what torch would give a product is held against what the graph gave it,
and the graph's is what torch goes on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from peagle.graphs import graph_files
from peagle.graphs.quantization.graph_products import source

Round = Callable[[str, torch.Tensor], torch.Tensor]
_BACK = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")
_TO_CODES = ("QuantizeLinear", "TRT_MXFP8DynamicQuantize", "MicroscaledRound")


def rounded_inputs(path: Path) -> dict[str, str]:
    """By the module of each linear whose input is rounded, the name of that input."""
    names = {}
    for node in graph_files.load(path).graph:
        x = _unrounded(node.inputs[0]) if node.op_type == "MatMul" else None
        weight = source(node.inputs[1]) if x is not None else None
        if x is not None and weight is not None and ".experts." not in str(weight.name):
            names |= {part.removesuffix(".weight"): str(x.name) for part in str(weight.name).split("+")}
    return names


def showing(path: Path, names: set[str], folder: Path) -> Path:
    """The graph at ``path`` with more outputs."""
    model = onnx.load(path)
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in sorted(names))
    onnx.save(model, folder / "showing.onnx")
    return folder / "showing.onnx"


@contextmanager
def forced(model: Any, given: Mapping[str, Any], rounded: Round) -> Iterator[dict[str, float]]:
    """Linears take ``rounded(module, given[module])``; yields by how much torch would have given them something else.

    ``given`` are the graph's inputs of one row, ``[S, columns]``.
    """
    modules = {name.replace("model.language_model.", "model."): module for name, module in model.named_modules()}
    distances: dict[str, float] = {}

    def hook(name: str) -> Callable[[Any, Any], Any]:
        def replace(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            own = torch.from_numpy(np.ascontiguousarray(given[name])).reshape(inputs[0].shape)
            distances[name] = float((inputs[0] - own).abs().max())
            return (rounded(name, own),)

        return replace

    handles = [modules[name].register_forward_pre_hook(hook(name)) for name in given]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()


def _unrounded(value: ir.Value | None) -> ir.Value | None:
    """Return the value that was rounded to get ``value``; None if none was."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type in _BACK and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type not in _TO_CODES or node.inputs[0] is None:
        return None
    before = node.inputs[0].producer()  # zeros behind a block that is not whole
    return before.inputs[0] if before is not None and before.op_type == "Pad" else node.inputs[0]
