"""Checks of graphs: the ONNX checker, and a comparison of two graphs with allowed differences."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import Any

import onnx_ir as ir

_CHECK = """
import sys, onnx
for path in sys.stdin:
    try:
        onnx.checker.check_model(path.strip(), full_check=True)
        print("good", flush=True)
    except Exception as error:
        print(repr(str(error)), flush=True)
"""


@cache
def _checker() -> subprocess.Popen[str]:
    """One process for all checks; it ends when its input does."""
    return subprocess.Popen([sys.executable, "-c", _CHECK], stdin=PIPE, stdout=PIPE, text=True)


def check(*paths: Path) -> None:
    """In a process that does not know our schemas: they have no room for TensorRT's attributes, function calls do."""
    process = _checker()
    assert process.stdin is not None
    assert process.stdout is not None
    for path in paths:
        print(path, file=process.stdin, flush=True)
        assert process.stdout.readline() == "good\n"


def contents(model: ir.Model, *, shapes: bool = True) -> list[Any]:
    """All of a graph in order: results of nodes by number, constants by value, everything else by name.

    Without ``shapes``, those of results are left out: two traces may write the same dim in two ways.
    """
    keys: dict[ir.Value | None, Any] = {None: None}
    found: list[Any] = [sorted(model.metadata_props.items()), sorted(model.opset_imports.items())]
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        tensor = value.const_value
        stored = None if tensor is None or isinstance(tensor, ir.ExternalTensor) else tensor.numpy().tobytes()
        keys[value] = value.name if stored is None else (stored, str(value.dtype), str(value.shape))
        found.append((keys[value], str(value.dtype), str(value.shape), tensor and tensor.name if not stored else None))
    for node in model.graph:
        keys |= {value: len(keys) + i for i, value in enumerate(node.outputs)}
        results = [(str(value.dtype), str(value.shape) if shapes else "") for value in node.outputs]
        attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
        found.append((node.op_identifier(), [keys[value] for value in node.inputs], results, attributes))
    found += [(keys[value], value.name, str(value.dtype)) for value in model.graph.outputs]
    return found
