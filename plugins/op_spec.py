"""The spec of an op: inputs, outputs, attributes, shape rule, reference, and a body of standard ONNX ops.

One folder per op holds one ``OpSpec``. Everything else (ONNX schema, torch op, TensorRT plugin) is generated from it,
so that an op is described once. This module imports neither onnx nor torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .errors import BuildError
from .limits import Bound

DOMAIN = "peagle"
VERSION = 1
OPSET = 24
# Node attributes that make TensorRT's parser use the plugin instead of the function body; not attributes of the op.
SELECTION = {"plugin_namespace": DOMAIN, "plugin_version": str(VERSION)}

FLOATS = ("float32", "float16", "bfloat16")
ANY = "..."  # as first dim: any number of dims
FLOAT8 = "float8e4m3fn"  # ONNX's name; NumPy and PyTorch write float8_e4m3fn
_NARROW = ("float16", FLOAT8, "int8")

_T = TypeVar("_T")
_TERM = re.compile(r"([+-]?)\s*(\w+)")
_LINEAR = re.compile(r"[\w\s+-]+")


def evaluate_dim(expression: str, symbols: Mapping[str, Any]) -> Any:
    """Evaluate a linear dim expression such as ``"S+K-1"``; symbols may be ints or symbolic integers."""
    total: Any = 0
    for sign, term in _TERM.findall(expression):
        value = int(term) if term.isdigit() else symbols[term]
        total = total - value if sign == "-" else total + value
    return total


def is_linear(expression: str) -> bool:
    """Return True if ``evaluate_dim`` accepts it: names and numbers, added and subtracted."""
    return _LINEAR.fullmatch(expression) is not None


def terms_of(expression: str) -> tuple[list[tuple[int, str]], int]:
    """Return the names of a dim expression in order, each with its sign (1 or -1), and the sum of its numbers."""
    found = [(-1 if sign == "-" else 1, term) for sign, term in _TERM.findall(expression)]
    constant = sum(sign * int(term) for sign, term in found if term.isdigit())
    return [(sign, name) for sign, name in found if not name.isdigit()], constant


def _expand_dims(dims: tuple[str, ...], leading: int) -> tuple[str, ...]:
    """Return the dims with one name for each dim that ``...`` stands for."""
    return (*(f"leading_{i}" for i in range(leading)), *dims[1:]) if dims[:1] == (ANY,) else dims


@dataclass(frozen=True)
class Operand:
    """An input or output.

    ``dims`` are names or linear expressions of names (``"S+E-2"``, outputs only); a bare name on an input binds it, and
    every input that repeats the name must agree. An output's dim may name an int attribute instead. A first dim ``...``
    stands for any number of dims, the same for all operands that have it. ``dtypes`` lists the allowed types;
    ``same_as`` ties an operand to the dtype of an earlier input, ``wide_as`` does so unless it is narrower (float16 or
    codes). ``aliases`` marks an output that an in-place kernel writes into that input's buffer.
    """

    name: str
    dims: tuple[str, ...]
    dtypes: tuple[str, ...]
    doc: str = ""
    optional: bool = False
    same_as: str | None = None
    wide_as: str | None = None
    aliases: str | None = None


@dataclass(frozen=True)
class Attribute:
    """A node attribute. ``kind`` is ``float``, ``int`` or ``str``; ``check`` returns a complaint or None."""

    name: str
    kind: type
    default: float | int | str
    doc: str = ""
    check: Callable[[Any], str | None] | None = None


@dataclass(frozen=True)
class Kernel:
    """The CUDA kernel of an op (``kernel.cu`` in its folder) and its launch: once per call, without a workspace.

    Its parameters are a pointer per input, an ``int`` per entry of ``scalars`` (a dimension of the op or one of its int
    attributes), and a pointer per output, in that order. The entry point is ``entry``, or ``<entry>_<dtype>`` with the
    dtype of the ``typed_by`` input. ``blocks`` is a dim expression, multiplied by the dimension ``per`` if there is
    one; each block becomes ``cluster`` thread blocks on GPUs with clusters (SM 9.0 and up), otherwise one. ``headers``
    are files of ``plugins/kernels/`` that it shares with other kernels.
    """

    entry: str
    blocks: str
    threads: int
    scalars: tuple[str, ...]
    per: str | None = None
    typed_by: str | None = None
    cluster: int = 1
    headers: tuple[str, ...] = ()

    def num_blocks(self, dims: Mapping[str, int]) -> int:
        """Return the number of blocks, before clusters, for these sizes of the op's dimensions."""
        return int(evaluate_dim(self.blocks, dims)) * (dims[self.per] if self.per else 1)


@dataclass(frozen=True)
class CpuCase:
    """A small test case of an op's CPU kernel, run whenever the kernel is compiled or loaded.

    ``inputs`` are NumPy arrays in spec order (None is absent); ``constants`` names those that are graph constants. The
    kernel must match the reference bit for bit, or within ``tolerance`` (relative and absolute).
    """

    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True)
class OpSpec:
    """One semantic op of the ``peagle`` domain.

    ``reference(*inputs, **attributes)`` takes NumPy arrays in input order (None for an absent optional input) and
    returns a tuple in output order. ``body(attributes, present)`` returns the text of an ONNX model-local function made
    of standard opset-24 ops; ``present`` holds the names of the inputs that the node has. If a body depends on
    attribute values, the function's ``overload`` names the variant; a node that uses it must carry that overload and
    every attribute of the op. ``bounds`` and ``check_dims`` check the dimensions whose size is known; ``check_dims``
    returns a complaint or None, and an op with a kernel has none. An op with a ``kernel`` is a TensorRT plugin;
    lowerings rewrite the others. An op with ``cpu_cases``, which test the kernel in its ``kernel.cpp``, is an ONNX
    Runtime custom op if a C++ compiler was found; otherwise its body runs. ``in_fused_regions``: that kernel may be a
    step of a ``FusedRegion``, because it reads no floats before it runs.
    """

    name: str
    doc: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    reference: Callable[..., tuple[Any, ...]]
    body: Callable[[Mapping[str, Any], frozenset[str]], str]
    attributes: tuple[Attribute, ...] = ()
    bounds: tuple[Bound, ...] = ()
    check_dims: Callable[[Mapping[str, int]], str | None] | None = None
    kernel: Kernel | None = None
    cpu_cases: Callable[[], Iterable[CpuCase]] | None = None
    in_fused_regions: bool = False

    @property
    def home(self) -> Path:
        """The folder of the op, which holds its reference and its kernels."""
        return Path(inspect.getfile(self.reference)).resolve().parent

    @property
    def folder(self) -> str:
        """The name of the op's folder in ``plugins/ops/``, also used in file names elsewhere: ``accept_prefix``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    def check_attributes(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in default attributes. Raises ``BuildError`` naming every unknown, mistyped or invalid one."""
        names = {a.name: a for a in self.attributes}
        problems = [f"unknown attribute {name!r}" for name in attributes if name not in names]
        values: dict[str, Any] = {}
        for attribute in self.attributes:
            value = attributes.get(attribute.name, attribute.default)
            if type(value) is int and attribute.kind is float:
                value = float(value)
            if type(value) is not attribute.kind:
                problems.append(f"{attribute.name} must be {attribute.kind.__name__}, not {type(value).__name__}")
            elif attribute.check and (problem := attribute.check(value)):
                problems.append(f"{attribute.name} {problem}")
            values[attribute.name] = value
        self._refuse(problems)
        return values

    def infer_dtypes(self, dtypes: Sequence[str | None]) -> list[str]:
        """Infer output dtypes from input dtypes such as ``"float16"`` (None for an absent optional input).

        Raises ``BuildError`` naming every input whose dtype is not allowed.
        """
        problems: list[str] = []
        by_name: dict[str, str] = {}
        for operand, dtype in self._paired(dtypes, problems):
            allowed = (by_name[operand.same_as],) if operand.same_as in by_name else operand.dtypes
            if operand.wide_as in by_name:
                allowed = (by_name[operand.wide_as], *(each for each in allowed if each in _NARROW))
                allowed = tuple(dict.fromkeys(allowed))
            if dtype not in allowed:
                problems.append(f"{operand.name} must be {' or '.join(allowed)}, not {dtype}")
            by_name[operand.name] = dtype
        self._refuse(problems)
        return [by_name.get(output.same_as or "", output.dtypes[0]) for output in self.outputs]

    def infer_shapes(
        self, shapes: Sequence[Sequence[Any] | None], attributes: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Infer output shapes from input shapes (None for an absent optional input); dims may be symbolic integers.

        An output dim may also name an int attribute, which must then be given.

        Raises ``BuildError`` naming every rank or dimension that does not fit.
        """
        problems: list[str] = []
        symbols: dict[str, Any] = {}
        leading = 0
        for operand, shape in self._paired(shapes, problems):
            leading = max(len(shape) - len(operand.dims) + 1, 0) if operand.dims[:1] == (ANY,) else leading
            dims = _expand_dims(operand.dims, leading)
            if len(shape) != len(dims):
                problems.append(f"{operand.name} must have rank {len(dims)}, not {len(shape)}")
                continue
            for name, size in zip(dims, shape, strict=True):
                before = symbols.get(name)
                if before is None or (isinstance(size, int) and not isinstance(before, int)):
                    symbols[name] = size  # prefer a known size over a symbolic one
                elif isinstance(size, int) and before != size:
                    problems.append(f"{operand.name}: dimension {name} is {size}, but {before} in another tensor")
        known = {name: size for name, size in symbols.items() if isinstance(size, int)}
        for check in (*(bound.check for bound in self.bounds), *([self.check_dims] if self.check_dims else [])):
            problems += [problem] if not problems and (problem := check(known)) else []
        self._refuse(problems)
        symbols |= {a.name: attributes[a.name] for a in self.attributes if attributes and a.kind is int}
        return [tuple(evaluate_dim(d, symbols) for d in _expand_dims(output.dims, leading)) for output in self.outputs]

    def _paired(self, values: Sequence[_T | None], problems: list[str]) -> list[tuple[Operand, _T]]:
        """Return the inputs that are present, each with its value; complain about missing and surplus ones."""
        if len(values) > len(self.inputs):
            problems.append(f"takes at most {len(self.inputs)} inputs, not {len(values)}")
        padded = [*values, *[None] * len(self.inputs)]
        pairs = list(zip(self.inputs, padded, strict=False))
        problems += [f"input {operand.name} is missing" for operand, x in pairs if x is None and not operand.optional]
        return [(operand, x) for operand, x in pairs if x is not None]

    def _refuse(self, problems: list[str]) -> None:
        if problems:
            raise BuildError(f"{self.name}: " + "; ".join(problems), fix=f"see the spec of {DOMAIN}::{self.name}")
