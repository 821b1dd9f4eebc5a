"""The layers of a plan, as a JSON file in the format of TensorRT's engine inspector, which trt-engine-explorer reads.

Full TensorRT's inspector writes this format itself (``inspector``); it needs the GPU. Plans of TensorRT-RTX cannot be
loaded where they are built, so their layers are written from the text inside the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...plugins.number_types import BY_NAME
from .plan_programs import Program, Step

_UNKNOWN = "None"  # the inspector's name of a missing type
_NO_WORK = ("signal", "wait", "shape_call")  # order streams, and compute shapes on the host
_BETWEEN = "\x1e"  # separates the source layers in the inspector's metadata


def layers_beside(plan: Path) -> Path:
    """Return the file with the layers of a plan, named as trt-engine-explorer's own scripts name it."""
    return plan.with_name(f"{plan.name}.graph.json")


def layers_of_programs(programs: Sequence[Program], profiles: int, tensors: Sequence[str]) -> str:
    """Return the layers of all profiles as JSON; empty if there are no programs, or if their profiles are unclear.

    ``tensors`` are the plan's inputs and outputs. Names in profiles after the first end in ``[profile N]``, as the
    inspector writes them.
    """
    if not programs or len(programs) % profiles:
        return ""
    pieces = len(programs) // profiles  # plugins that write in place split a profile
    layers = [layer for number, program in enumerate(programs) for layer in _layers(program, _suffix(number // pieces))]
    bindings = [f"{name}{_suffix(profile)}" for profile in range(profiles) for name in tensors]
    return json.dumps({"Layers": layers, "Bindings": bindings}, indent=1) + "\n"


def _suffix(profile: int) -> str:
    return f" [profile {profile}]" if profile else ""


def _layers(program: Program, suffix: str) -> Iterator[dict[str, Any]]:
    for step in program.steps:
        if step.fused or step.kind in _NO_WORK:
            continue
        yield {
            "Name": step.name if suffix in step.name else f"{step.name}{suffix}",
            "LayerType": step.kind,
            "Inputs": _tensors(program, step.reads),
            "Outputs": _tensors(program, step.writes),
            "Metadata": _metadata(step),
        }


def _tensors(program: Program, names: Sequence[str]) -> list[dict[str, Any]]:
    held = ((name, program.tensors.get(name)) for name in names)
    return [
        {"Name": name, "Dimensions": list(of.shape) if of else [], "Format/Datatype": _type(of.dtype if of else "")}
        for name, of in held
    ]


def _type(dtype: str) -> str:
    return BY_NAME[dtype].inspected or dtype if dtype in BY_NAME else dtype or _UNKNOWN


def _metadata(step: Step) -> str:
    return _BETWEEN.join(f"[ONNX Layer: {layer}]" for layer in step.layers)
