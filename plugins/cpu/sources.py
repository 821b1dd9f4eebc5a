"""The C++ text of the library that holds the CPU kernels of all ops: one string, what a spec says written out in it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildError
from ..number_types import BY_NAME
from ..op_spec import DOMAIN, Attribute, Operand, OpSpec
from ..ops import OPS

# No fused multiply-add that is not written as one, and no vector instructions but where a function asks for them: the
# same bits from every compiler, on every machine. -w: the headers of some compilers warn of themselves.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-w")

_HERE = Path(__file__).resolve().parent
_OPS = _HERE.parent / "ops"

_SYSTEM = """\
#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
"""
_BEFORE = ("interface.h", "kernel.h", "instructions.h", "elementary.h", "packed_weights.h")
_BEHIND = ("self_test.cpp", "register.h")
_SELF_TEST = OpSpec(
    name="SelfTest",
    doc="see self_test.cpp",
    inputs=(Operand("x", ("M", "N"), ("float32",)), Operand("c", ("C",), ("int32",))),
    outputs=(Operand("y", ("R", "F"), ("float32",)),),
    reference=lambda *_: (),
    body=lambda *_: "",
)
_READERS = {str: ("std::string", "text"), int: ("std::int64_t", "whole"), float: ("float", "number")}
_ANY_TYPE = 0


def cpu_ops() -> tuple[OpSpec, ...]:
    """The ops that have a CPU kernel, in the order of their names."""
    return tuple(OPS[name] for name in sorted(OPS) if OPS[name].has_cpu_kernel)


@functools.cache
def source() -> str:
    """The text to compile; ``#line`` keeps messages readable. ``BuildError`` when a file of it is not there."""
    ops = cpu_ops()
    parts = [_part(f"cpu/{name}", _HERE / name) for name in _BEFORE]
    for op in ops:
        name = f"{op.folder}/kernel.cpp"
        parts += [f'#line 1 "attributes of {op.name}"\n{attributes_of(op)}', _part(f"ops/{name}", _OPS / name)]
    parts += [_part(f"cpu/{name}", _HERE / name) for name in _BEHIND]
    return "".join([_SYSTEM, *parts, '#line 1 "registration"\n', _registration([*ops, _SELF_TEST])])


@functools.cache
def digest() -> str:
    """SHA-256, in hex, of what decides the machine code besides the compiler: the text and the options."""
    return hashlib.sha256("\n".join([*OPTIONS, source()]).encode()).hexdigest()


def attributes_of(op: OpSpec) -> str:
    """C++ text of the struct that an op's kernel is made with: its attributes, with the spec's defaults."""
    fields = "".join(f"  {_READERS[a.kind][0]} {a.name};\n" for a in op.attributes)
    readers = [f'{a.name}(node.{_READERS[a.kind][1]}("{a.name}", {_literal(a)}))' for a in op.attributes]
    start = f" : {', '.join(readers)}" if readers else ""
    return (
        f"namespace peagle {{\nstruct {op.name}Attributes {{\n{fields}"
        f"  explicit {op.name}Attributes(const Node& node){start} {{}}\n}};\n}}\n"
    )


def _literal(attribute: Attribute) -> str:
    if isinstance(attribute.default, str):
        return f'"{attribute.default}"'
    return f"{attribute.default}{'f' if attribute.kind is float else ''}"


def _operands(operands: Sequence[Operand]) -> str:
    """Braces of {type, is optional}; an operand of several types is any, and its kernel looks."""
    types = [BY_NAME[o.dtypes[0]].onnx if len(o.dtypes) == 1 else _ANY_TYPE for o in operands]
    return ", ".join(f"{{{t}, {str(o.optional).lower()}}}" for t, o in zip(types, operands, strict=True))


def _registration(ops: Sequence[OpSpec]) -> str:
    objects = "".join(
        f'const Operator<{op.name}, {op.name}Attributes> {op.name}Operator("{op.name}", {{{_operands(op.inputs)}}}, '
        f"{{{_operands(op.outputs)}}});\n"
        for op in ops
    )
    return f"""namespace peagle {{
namespace {{
{objects}}}
}}
#define PEAGLE_EXPORT extern "C" __attribute__((visibility("default")))
PEAGLE_EXPORT peagle::ort::Status* RegisterCustomOps(peagle::ort::Options* options, const peagle::ort::Base* base) {{
  return peagle::add_operators(options, base, "{DOMAIN}", {{{", ".join(f"&peagle::{op.name}Operator" for op in ops)}}});
}}
PEAGLE_EXPORT const char* peagle_instructions() {{
  try {{
    return peagle::kInstructionNames[int(peagle::instructions())];
  }} catch (const peagle::Refusal&) {{
    return "";
  }}
}}
"""


def _part(name: str, path: Path) -> str:
    try:
        return f'#line 1 "{name}"\n{path.read_text(encoding="utf-8")}\n'
    except OSError as error:
        raise BuildError(
            f"cannot read the CPU kernels: {error}", fix="reinstall peagle-compile; the package is incomplete"
        ) from error
