"""Run the CPU kernels on an emulated machine of another kind and on this one: both must give the same bits.

There is no ONNX Runtime on the other side. The kernels and ``host.cpp`` are one program, which is told by requests what
to make and run. ``SessionOfBoth`` stands in for a session of ONNX Runtime where ``$PEAGLE_TEST_CPU_HOST`` is the
command that starts it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from peagle.plugins.cpu.sources import units
from peagle.plugins.number_types import BY_NUMPY, BY_ONNX

COMMAND = "PEAGLE_TEST_CPU_HOST"
PATHS = ("portable", "dotprod")  # of ARM machines
_PATH = "PEAGLE_CPU_INSTRUCTIONS"


def program() -> dict[str, str]:
    """The C++ texts: the kernels as they are, and behind the first of them what calls them."""
    first, *_ = texts = dict(units())
    texts[first] += Path(__file__).with_name("host.cpp").read_text(encoding="utf-8")
    return texts


class Host:
    """The running program."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._nodes = 0

    def instructions(self) -> str:
        """Return the instruction set that the kernels use by default."""
        self._ask(b"i")
        return self._text()

    def make(self, path: str, threads: int, node: onnx.NodeProto, graph: onnx.GraphProto) -> int:
        """The number of a new node. ``Fail``, as ONNX Runtime has it, where its kernel refuses it."""
        constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        types = {each.name: each.type.tensor_type.elem_type for each in graph.input}
        request = [b"m", _text(path), struct.pack("<i", threads), _text(node.op_type)]
        request += [struct.pack("<I", len(node.attribute)), *map(_attribute, node.attribute)]
        request.append(struct.pack("<I", len(node.input)))
        for name in node.input:
            if name in constants:
                request += [b"c", _tensor(constants[name])]
            else:
                request.append(b"f" + struct.pack("<i", types[name]) if name else b"a")
        request += [struct.pack("<I", len(node.output)), bytes(bool(name) for name in node.output)]
        self._ask(b"".join(request))
        return int(self._number("<I"))

    def run(self, node: int, fed: Sequence[Any], aliases: Sequence[int], wanted: int, is_bound: bool) -> list[Any]:
        """The wanted outputs; one that aliases an input is that input, written in place."""
        request = [
            b"r",
            struct.pack("<I?", node, is_bound),
            *map(_tensor, fed),
            struct.pack(f"<{len(aliases)}i", *aliases),
        ]
        self._ask(b"".join(request))
        return [self._tensor() for _ in range(wanted)]

    def _ask(self, request: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()
        if self._read(1) == b"n":
            raise Fail(self._text())

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        given = self._process.stdout.read(count)
        if len(given) != count:
            raise AssertionError(f"the kernels' program ended, with status {self._process.wait()}")
        return given

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _text(self) -> str:
        return self._read(self._number("<I")).decode()

    def _tensor(self) -> Any:
        dtype = np.dtype(BY_ONNX[self._number("<i")].numpy)
        shape = [self._number("<q") for _ in range(self._number("<I"))]
        return np.frombuffer(self._read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


@functools.cache
def host() -> Host:
    """The program that ``$PEAGLE_TEST_CPU_HOST`` starts."""
    return Host(shlex.split(os.environ[COMMAND]))


def paths() -> tuple[str, ...]:
    """The paths through the kernels that the other machine can go."""
    return PATHS[: PATHS.index(host().instructions()) + 1]


def session_of_both(here: Callable[[], Any], model: bytes, threads: int) -> SessionOfBoth:
    """A session of the model on both machines; ``here`` uses portable code if it lacks the other's instructions."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            if os.environ.get(_PATH) in PATHS:
                patch.setenv(_PATH, "portable")
            made = here()
    except Exception:
        SessionOfBoth(None, model, threads)
        raise AssertionError("this machine refuses what the other makes a kernel of") from None
    return SessionOfBoth(made, model, threads)


class SessionOfBoth:
    """A node of ours on the other machine and, as a session of ONNX Runtime, on this one; results are the other's."""

    def __init__(self, here: Any, model: bytes, threads: int) -> None:
        graph = onnx.load_model_from_string(model).graph
        (node,) = graph.node
        constants = {each.name for each in graph.initializer}
        self._here = here
        self._inputs = list(node.input)
        self._fed = [name for name in node.input if name and name not in constants]  # in order
        self._outputs = list(node.output)
        self._node = host().make(os.environ.get(_PATH, ""), threads, node, graph)

    def run(self, names: None, fed: Mapping[str, Any]) -> list[Any]:
        """The outputs in order, after they were found to be those of this machine."""
        arrays = {name: np.ascontiguousarray(each) for name, each in fed.items()}
        return self._run(arrays, lambda: self._here.run(None, arrays))

    def run_with_ort_values(self, names: None, fed: Mapping[str, Any]) -> list[Any]:
        """The same of values of ONNX Runtime."""
        arrays = {name: _memory_of(value) for name, value in fed.items()}

        def here() -> list[Any]:
            return [_memory_of(each).copy() for each in self._here.run_with_ort_values(None, fed)]

        return [_Result(each) for each in self._run(arrays, here)]

    def io_binding(self) -> Binding:
        """A binding for ``run_with_iobinding``."""
        return Binding()

    def run_with_iobinding(self, binding: Binding) -> None:
        """Run in the memory that is bound; what is bound on both sides is written in place."""
        fed = {name: _memory_of(value) for name, value in binding.inputs.items()}
        bound = {name: value for name, value in binding.outputs.items() if value is not None}
        at = {value.data_ptr(): self._inputs.index(name) for name, value in binding.inputs.items()}
        aliases = {name: at[value.data_ptr()] for name, value in bound.items() if value.data_ptr() in at}
        names = [name for name in self._outputs if name]
        outputs = self._run(fed, lambda: self._here.run(None, fed), aliases)
        for name, output in zip(names, outputs, strict=True):
            if name in bound:
                _memory_of(bound[name])[...] = output
        binding.results = [_Result(output) for output in outputs]

    def _run(
        self, fed: Mapping[str, Any], here: Callable[[], list[Any]], bound: Mapping[str, int] | None = None
    ) -> list[Any]:
        """Return the outputs; ``bound`` names the input whose memory an output uses."""
        arrays = [fed[name] for name in self._fed]
        aliases = [(bound or {}).get(name, -1) for name in self._outputs]
        names = [name for name in self._outputs if name]
        try:
            expected = here()
        except Exception:
            host().run(self._node, arrays, aliases, len(names), bound is not None)
            raise AssertionError("this machine refuses what the other runs") from None
        outputs = host().run(self._node, arrays, aliases, len(names), bound is not None)
        for name, ours, theirs in zip(names, outputs, expected, strict=True):
            _same_bits(name, ours, theirs)
        return outputs


class Binding:
    """The arrays that are bound to the inputs and outputs of a run."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.results: list[Any] = []

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """See onnxruntime.IOBinding."""
        self.inputs[name] = value

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """See onnxruntime.IOBinding."""
        self.outputs[name] = value

    def bind_output(self, name: str) -> None:
        """See onnxruntime.IOBinding."""
        self.outputs[name] = None

    def get_outputs(self) -> list[Any]:
        """Values that have ``numpy()``."""
        return self.results


class _Result:
    def __init__(self, array: Any) -> None:
        self._array = array

    def numpy(self) -> Any:
        return self._array


def _memory_of(value: Any) -> Any:
    """Return the array in a value of ONNX Runtime, valid as long as the value exists."""
    dtype, shape = np.dtype(BY_ONNX[value.element_type()].numpy), value.shape()
    if 0 in shape:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (int(np.prod(shape)) * dtype.itemsize)).from_address(value.data_ptr())
    return np.frombuffer(memory, dtype).reshape(shape)


def _same_bits(name: str, ours: Any, theirs: Any) -> None:
    """Every bit, but those of a NaN: which of them an operation gives is the processor's business."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
    if ours.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs), err_msg=name)
        there = ~np.isnan(theirs)
        ours, theirs = (each[there].view(f"u{each.itemsize}") for each in (ours, theirs))
    np.testing.assert_array_equal(ours, theirs, err_msg=name)


def _attribute(given: onnx.AttributeProto) -> bytes:
    value = onnx.helper.get_attribute_value(given)
    if isinstance(value, bytes):
        return _text(given.name) + b"t" + struct.pack("<I", len(value)) + value
    return _text(given.name) + (
        struct.pack("<cf", b"n", value) if isinstance(value, float) else struct.pack("<cq", b"w", value)
    )


def _tensor(array: Any) -> bytes:
    sizes = struct.pack(f"<iI{array.ndim}q", BY_NUMPY[array.dtype.name].onnx, array.ndim, *array.shape)
    return sizes + np.ascontiguousarray(array).tobytes()


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()
