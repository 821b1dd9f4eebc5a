"""Programs in a finished plan, parsed from the plan itself.

A plan of TensorRT-RTX contains its compiler's programs in plain text: every tensor with its type, and every step with
its inputs and source layers; kernels are compiled when the plan is loaded. The text is undocumented. This parser is
based on plans of TensorRT-RTX 1.7; a plan without such text yields no programs.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from ...plugins.number_types import NUMBER_TYPES

PRODUCT = "fully_connected"  # the kind of a matmul step; its first two inputs are the factors
KERNEL = "function"  # the kind of a step with generated code
_MARK, _BEFORE = b"NLYM", 16  # magic, four bytes of version, eight of length; then the text
_TEXT = b"header {\n"
_PIECE = 1 << 24
_TENSOR = re.compile(r"^ *(?:sub_)?tensor=\{.*? dims=\{([^}]*)\}.*? name=\"([^\"]*)\".*? type=(\w+) \}$", re.M)
_STEP = re.compile(r"^ *(\w+)=\{ name=(?:\"([^\"]*)\"|(\S+)) (.*)$", re.M)
_READS = re.compile(r"(?:^| )(?:input|input_args)=\{([^}]*)\}")
_WRITES = re.compile(r"(?:^| )(?:output|output_args)=\{([^}]*)\}")
ONNX_LAYERS = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_INPUTS = re.compile(r"^ *inputs=\{([^}]*)\}", re.M)
_QUOTED = re.compile(r"\"([^\"]*)\"")
_FUSION = "runtime_fusion"
_DTYPES = {word: kind.name for kind in NUMBER_TYPES for word in kind.in_plans}


@dataclass(frozen=True)
class ProgramTensor:
    """A tensor of a program; in its ``shape``, -1 is a size that is known only at run time."""

    dtype: str
    shape: tuple[int, ...]
    constant: bool

    @property
    def numbers(self) -> int:
        """The count of its numbers; 0 if it is known only at run time."""
        return math.prod(self.shape) if all(size > 0 for size in self.shape) else 0


@dataclass(frozen=True)
class Step:
    """A step of a program. ``layers`` are its source layers in the network.

    ``fused``: part of one kernel with the following matmul, without intermediate results in memory.
    """

    kind: str
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    layers: tuple[str, ...]
    fused: bool = False


@dataclass(frozen=True)
class Program:
    """The part of one profile between two plugins, including the content of fused kernels."""

    tensors: Mapping[str, ProgramTensor]
    steps: tuple[Step, ...] = field(repr=False)


def read_programs(path: Path) -> list[Program]:
    """Return the programs of a plan in order: one per profile, or none if the plan has no such text.

    A plugin in the middle of a network splits every profile into several consecutive programs.
    """
    with path.open("rb") as file:
        texts = [text.decode("utf-8", "replace") for text in _texts(file)]
    programs: list[Program] = []
    for text in texts:
        inside = _is_inside(text)
        part = parse(text, fused=inside)
        if inside and programs:
            programs[-1] = _within(programs[-1], part, _names(_INPUTS.search(text)))
        elif not inside:
            programs.append(part)
    return programs


def parse(text: str, *, fused: bool = False) -> Program:
    """Parse the text of one program; ``fused`` for the content of a kernel."""
    descriptors, _, rest = text.partition("\nmain {")
    main = rest.partition("\n}")[0]
    tensors = {
        match[2]: ProgramTensor(_DTYPES.get(match[3], match[3]), _shape(match[1]), "const_payload_size=" in match[0])
        for match in _TENSOR.finditer(descriptors)
    }
    return Program(tensors, tuple(_step(match, fused) for match in _STEP.finditer(main)))


def _is_inside(text: str) -> bool:
    return "region=runtime-fusion-consts" in text or "name=runtime-fusion-consts" in text


def _within(program: Program, inside: Program, inputs: Sequence[str]) -> Program:
    """Add the content of a kernel to a program, translating the names of its inputs."""
    layers = {layer for step in inside.steps for layer in step.layers}
    outer = next((s for s in program.steps if s.kind == _FUSION and layers and layers <= set(s.layers)), None)
    outer_names = dict(zip(inputs, outer.reads, strict=False)) if outer else {}
    steps = tuple(replace(s, reads=tuple(outer_names.get(name, name) for name in s.reads)) for s in inside.steps)
    return Program({**inside.tensors, **program.tensors}, program.steps + steps)


def _step(match: re.Match[str], fused: bool) -> Step:
    rest = match[4]
    return Step(
        match[1],
        match[2] or match[3],
        _names(_READS.search(rest)),
        _names(_WRITES.search(rest)),
        tuple(ONNX_LAYERS.findall(rest)),
        fused,
    )


def _names(match: re.Match[str] | None) -> tuple[str, ...]:
    return tuple(_QUOTED.findall(match[1])) if match else ()


def _shape(dims: str) -> tuple[int, ...]:
    """Return dimensions; symbols, which are quoted, give -1."""
    return tuple(int(size) if size.isdecimal() else -1 for size in dims.split())


def _texts(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of every program, found by its magic number.

    Weights may contain the magic number by chance, but not a complete text.
    """
    size = file.seek(0, os.SEEK_END)
    for at in _marks(file):
        file.seek(at)
        head = file.read(_BEFORE + len(_TEXT))
        if len(head) < _BEFORE + len(_TEXT) or head[_BEFORE:] != _TEXT:
            continue
        (length,) = struct.unpack_from("<Q", head, 8)
        if length > size - at - _BEFORE:
            continue
        file.seek(at + _BEFORE)
        text = file.read(length)
        if b"\ndescriptors {" in text and text.endswith(b"}\n"):
            yield text


def _marks(file: BinaryIO) -> Iterator[int]:
    """Yield the positions of the magic number, including chance matches in weights."""
    start, tail = 0, b""
    while True:
        file.seek(start + len(tail))
        piece = tail + file.read(_PIECE)
        if len(piece) < len(_MARK):
            return
        at = piece.find(_MARK)
        while at >= 0:
            yield start + at
            at = piece.find(_MARK, at + 1)
        tail = piece[1 - len(_MARK) :]
        start += len(piece) - len(tail)
