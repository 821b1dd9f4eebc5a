"""A small graph with every feature that TensorRT must support, and functions that damage it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from peagle.compiler.console.progress import Advance
from peagle.compiler.tensorrt.worker_protocol import PlanRequest
from peagle.engines.folder.records import Profile
from peagle.plugins.ops import OPS

CACHE, VOCAB, HEAD = 16, 32, 16
F16, BF16, F32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
I32, I64 = TensorProto.INT32, TensorProto.INT64
_ROOT = Path(__file__).resolve().parents[3]


class Watched:
    """Progress that records its calls, and calls ``when`` at the first amount."""

    def __init__(self, when: Callable[[], None] = lambda: None) -> None:
        self.when, self.done, self.steps = when, 0, list[str]()

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        self.steps.append(f"{text} of {total}")

        def advance(amount: int) -> None:
            assert amount > 0
            first, self.done = not self.done, self.done + amount
            if first:
                self.when()

        yield advance


def profiles(columns: int = 8) -> tuple[Profile, ...]:
    return (
        Profile("verify", (1, 2, 4), (1, 3, 5), (1, 3, 5), (4, 8, CACHE)),
        Profile("prefill", (1, 1, 1), (1, columns, columns), (1, 3, 5), (4, 8, CACHE)),
    )


def request(graph: Path, **changes: Any) -> PlanRequest:
    fields: dict[str, Any] = {
        "name": "small", "graph": graph, "product": "tensorrt-rtx", "gpus": ("sm_120",), "profiles": profiles(),
    }  # fmt: skip
    return PlanRequest(**fields | changes)


def model(dtype: int = F16) -> onnx.ModelProto:
    """Cache update, attention, a head and ``AcceptPrefix``: two query heads on one key head."""
    width = helper.tensor_dtype_to_np_dtype(dtype)
    shapes = {
        "q": (dtype, ["B", 2, "S", HEAD]), "k": (dtype, ["B", 1, "S", HEAD]), "mask": (dtype, ["B", 1, "S", CACHE]),
        "features": (dtype, ["B", "E", HEAD]), "k_cache.0": (dtype, ["B", 1, CACHE, HEAD]), "start": (I64, ["B"]),
        "y": (dtype, ["B", 2, "S", HEAD]), "k_cache.0.out": (dtype, ["B", 1, CACHE, HEAD]),
    }  # fmt: skip
    accept = OPS["AcceptPrefix"]
    own = {"float32": F32, "int32": I32, "int64": I64}
    for operand in (*accept.inputs, *accept.outputs):
        kind = dtype if operand.name == "logits" else own[operand.dtypes[0]]
        shapes[operand.name] = (kind, [VOCAB if dim == "V" else dim for dim in operand.dims])
    value = {name: helper.make_tensor_value_info(name, *of) for name, of in shapes.items()}
    nodes = [
        helper.make_node("TensorScatter", ["k_cache.0", "k", "start"], ["k_cache.0.out"], "update", axis=2),
        helper.make_node("Attention", ["q", "k_cache.0.out", "k_cache.0.out", "mask"], ["y"], "attention", scale=0.5),
        helper.make_node("MatMul", ["features", "head"], ["logits"], "head"),
        helper.make_node(
            accept.name,
            [operand.name for operand in accept.inputs],
            [operand.name for operand in accept.outputs],
            "accept",
            domain="peagle",
            plugin_namespace="peagle",
            plugin_version="1",
        ),
    ]
    inputs = ["q", "k", "mask", "features", "k_cache.0", *(o.name for o in accept.inputs[1:])]
    inputs += [] if "start" in inputs else ["start"]
    graph = helper.make_graph(
        nodes,
        "small",
        [value[name] for name in inputs],
        [value[name] for name in ("y", "k_cache.0.out", "tokens", "num_tokens")],
        [numpy_helper.from_array(np.ones((HEAD, VOCAB), width), "head")],
        value_info=[value["logits"]],
    )
    body = onnx.parser.parse_function(accept.body({}, frozenset(operand.name for operand in accept.inputs)))
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("peagle", 1)],
        functions=[body],
        ir_version=11,
    )


def written(folder: Path, spoil: Callable[[onnx.ModelProto], None] = lambda _: None, dtype: int = F16) -> Path:
    """The model on disk with its weight outside, after ``spoil``."""
    made = model(dtype)
    spoil(made)
    path = folder / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


def node(made: onnx.ModelProto, name: str) -> onnx.NodeProto:
    (found,) = (node for node in made.graph.node if node.name == name)
    return found


def set_attribute(name: str, attribute: str, value: Any) -> Callable[[onnx.ModelProto], None]:
    """Give a node an attribute, instead of the one it has; None takes it away."""

    def spoil(made: onnx.ModelProto) -> None:
        found = node(made, name)
        kept = [a for a in found.attribute if a.name != attribute]
        del found.attribute[:]
        found.attribute.extend(kept)
        if value is not None:
            found.attribute.append(helper.make_attribute(attribute, value))

    return spoil


def in_child(code: str, *arguments: str) -> str:
    """Return the output of ``code`` in a separate process, which TensorRT may crash."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
