"""Programs of an engine of full TensorRT, from its inspector. Requires the GPU that the engine is for.

The answer is documented as JSON, but its fields are not. They are read as observed in TensorRT 10; any other content
yields no programs, so less is known about the engine, but nothing fails.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...engines.free_memory import free_memory
from ...plugins.number_types import NUMBER_TYPES
from ..console.printing import size
from .plan_programs import ONNX_LAYERS, PRODUCT, Program, ProgramTensor, Step

_PRODUCTS = ("gemm", "matmul", "matrix", "fully", "convolution")
# The first one whose name occurs in a description: narrow types first, since "bfloat" contains "float".
_TYPES = [kind for kind in reversed(NUMBER_TYPES) if kind.in_plans]


class Inspected(NamedTuple):
    """The programs of an engine and the inspector's JSON, or else notes with the reason."""

    programs: list[Program]
    text: str = ""
    notes: tuple[str, ...] = ()


def inspected(trt: Any, logger: Any, plan: Path) -> Inspected:
    """Inspect an engine file, which fails without its GPU.

    Plans that would exceed the free memory are not inspected, since running out of memory would lose the plan.
    """
    held, free = plan.stat().st_size, free_memory()
    if held > free:  # for TensorRT's copy; the file itself is mapped, and its pages can be dropped
        return _not_inspected(f"inspection needs {size(held)} of memory, but only {size(free)} are free")
    try:
        with plan.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = trt.Runtime(logger).deserialize_cuda_engine(content)
        text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
        information = json.loads(text)
    except Exception as error:  # of any kind: the engine is built, and inspection is optional
        return _not_inspected(f"{type(error).__name__}: {' '.join(str(error).split())}")
    programs = programs_of(information)
    return Inspected(programs, text) if programs else _not_inspected("the inspector returned no layers with details")


def _not_inspected(why: str) -> Inspected:
    note = f"the plan was not inspected: {why}; the report lists the matmuls of TensorRT's parser instead"
    return Inspected([], notes=(note,))


def programs_of(information: Any) -> list[Program]:
    """Return one program from the inspector's JSON at full detail; none if it has only names."""
    layers = information.get("Layers") if isinstance(information, dict) else None
    described = [layer for layer in layers or () if isinstance(layer, dict)]
    if not described:
        return []
    written = {name for layer in described for name in _names(layer, "Outputs")} | set(
        information.get("Bindings") or ()
    )
    tensors = {
        str(tensor.get("Name")): _held(tensor, constant=tensor.get("Name") not in written)
        for layer in described
        for side in ("Inputs", "Outputs")
        for tensor in layer.get(side) or ()
    }
    return [Program(tensors, tuple(_step(layer) for layer in described))]


def _step(layer: Mapping[str, Any]) -> Step:
    kind = str(layer.get("LayerType", ""))
    return Step(
        PRODUCT if any(word in kind.lower() for word in _PRODUCTS) else kind,
        str(layer.get("Name", "")),
        _names(layer, "Inputs"),
        _names(layer, "Outputs"),
        tuple(ONNX_LAYERS.findall(str(layer.get("Metadata", "")))),
    )


def _held(tensor: Mapping[str, Any], *, constant: bool) -> ProgramTensor:
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.get("Dimensions") or ())
    text = f"{tensor.get('Format/Datatype', '')} {tensor.get('Datatype', '')}".lower()
    dtype = next((kind.name for kind in _TYPES if any(word in text for word in kind.in_plans)), "")
    return ProgramTensor(dtype, shape, constant)


def _names(layer: Mapping[str, Any], side: str) -> tuple[str, ...]:
    return tuple(str(tensor.get("Name")) for tensor in layer.get(side) or ())
