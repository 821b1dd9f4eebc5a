"""Programs of a FusedRegion: written with names, run on ONNX Runtime as one node or step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime import OrtValue

from peagle.plugins.cpu.one_node_model import one_node_model
from tests.plugins.cpu.sessions import session


def fused_region(
    library: Path, program: str, inputs: Mapping[str, Any], outputs: int, path: str = "portable", threads: int = 1
) -> Any:
    """``run(**fed) -> outputs``: an input is fed (its dtype) or a constant (the array); outputs are float32."""
    results: dict[str, str | None] = {f"y{at}": "float32" for at in range(outputs)}
    model = one_node_model("FusedRegion", inputs, results, {"program": program, "inputs": len(inputs)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        made = session(library, model, threads)
    return lambda **fed: made.run(None, fed)


class BoundRegion:
    """A program over arrays that stay where they are: what is fed is written into them, and so are the results."""

    def __init__(
        self, library: Path, program: str, inputs: Mapping[str, Any], bound: dict[str, Any], outputs: int, threads: int
    ) -> None:
        results: dict[str, str | None] = {f"y{at}": "float32" for at in range(outputs)}
        model = one_node_model("FusedRegion", inputs, results, {"program": program, "inputs": len(inputs)})
        self._session, self._bound = session(library, model, threads), bound
        self._binding = self._session.io_binding()
        self._outputs = [np.empty_like(each) for each in self._session.run(None, bound)]
        for name, array in bound.items():
            self._binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, array in zip(results, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))

    def run(self, fed: Mapping[str, Any]) -> list[Any]:
        """The results, which the next run overwrites."""
        for name, array in fed.items():
            self._bound[name][...] = array
        self._session.run_with_iobinding(self._binding)
        return self._outputs


@dataclass
class Writer:
    """Steps whose operands have names: those of ``inputs``, or what a step made; "" is absent."""

    inputs: dict[str, Any] = field(default_factory=dict)
    steps: list[tuple[str, Sequence[str], Sequence[str], str]] = field(default_factory=list)

    def step(self, op: str, *given: str, outputs: int = 1, attributes: str = "") -> Any:
        """The name of what it makes, or the names."""
        made = [f"{op}{len(self.steps)}_{at}" for at in range(outputs)]
        self.steps.append((op, given, made, attributes))
        return made[0] if outputs == 1 else made

    def text(self, results: Sequence[str]) -> str:
        """The program."""
        numbers = {"": "-"} | {name: str(at) for at, name in enumerate(self.inputs)}
        lines = []
        for op, given, made, attributes in self.steps:
            numbers |= {name: str(len(numbers) - 1 + at) for at, name in enumerate(made)}
            operands = (",".join(numbers[name] for name in names) for names in (given, made))
            lines.append(f"{op} {' > '.join(operands)} {attributes}".strip())
        return "\n".join([*lines, f"outputs {','.join(numbers[name] for name in results)}"])

    def step_by_step(self, library: Path, fed: Mapping[str, Any], results: Sequence[str]) -> list[Any]:
        """The results, each step alone on arrays without strides; those that move nothing are NumPy's."""
        values = {name: fed.get(name, given) for name, given in self.inputs.items()}
        read = {name for _, given, _, _ in self.steps for name in given} | set(results)
        for op, given, made, attributes in self.steps:
            named = dict(each.split("=") for each in attributes.split())
            x = values[given[0]]
            if op == "Split":
                ends = np.cumsum([int(size) for size in named["sizes"].split(",")])
                values |= dict(zip(made, np.split(x, ends[:-1], axis=-1), strict=True))
            elif op == "Transpose":
                values[made[0]] = x.transpose([int(axis) for axis in named["perm"].split(",")])
            elif op == "Reshape":
                sizes = [int(s) for s in named["shape"].split(",")] if "shape" in named else values[given[1]].tolist()
                values[made[0]] = x.reshape([x.shape[at] if size == 0 else size for at, size in enumerate(sizes)])
            else:
                alone = Writer({name: self.inputs.get(name, "float32") for name in given if name})
                alone.steps = [(op, given, made, attributes)]
                wanted = [name for name in made if name in read]  # of a norm, not mean and deviation: it makes none
                run = fused_region(library, alone.text(wanted), alone.inputs, len(wanted))
                dense = {
                    n: np.ascontiguousarray(values[n]) for n, each in alone.inputs.items() if isinstance(each, str)
                }
                values |= dict(zip(wanted, run(**dense), strict=True))
        return [np.ascontiguousarray(values[name]) for name in results]
