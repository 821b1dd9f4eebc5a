"""The C++ source of the CPU kernel library: a few translation units, with tables generated from the op specs."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import BuildError
from ..number_types import BY_NAME, BY_NUMPY
from ..op_spec import DOMAIN, Attribute, Operand, OpSpec
from ..ops import OPS

# No implicit fused multiply-add, and vector instructions only where a function requests them: the same bits from
# every compiler, on every machine. -w: some compilers' own headers cause warnings.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-w")

_HERE = Path(__file__).resolve().parent

_SYSTEM = """\
#include <sched.h>

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
#include <utility>
#include <vector>
"""
_INCLUDE = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)  # a header below plugins/cpu/
SELF_TEST = OpSpec(
    name="SelfTest",
    doc="see self_test.cpp",
    inputs=(
        Operand("x", ("M", "N"), ("float32",)),
        Operand("c", ("C",), ("int32",)),
        Operand("absent", ("A",), ("float32",), optional=True),
        Operand("flag", ("O",), ("bool",)),
        Operand("count", ("O",), ("int64",)),
        Operand("buffer", ("B",), ("uint8", "float32")),
    ),
    outputs=(
        Operand("facts", ("R", "F"), ("float32",)),
        Operand("buffer_out", ("B",), ("uint8", "float32"), same_as="buffer", aliases="buffer"),
        Operand("unwanted", ("M", "N"), ("float32",), optional=True),
        Operand("large", ("M", "N"), ("bool",)),
    ),
    reference=lambda *_: (),
    body=lambda *_: "",
    attributes=(
        Attribute("text", str, ""),
        Attribute("absent_text", str, "default"),
        Attribute("whole", int, 0),
        Attribute("absent_whole", int, -5),
        Attribute("number", float, 0.0),
        Attribute("absent_number", float, -0.5),
    ),
)
FUSED_REGION = OpSpec(
    name="FusedRegion",
    doc="see fused_region/program.h",
    inputs=(Operand("inputs", (), ("any", "of several")),),
    outputs=(Operand("outputs", (), ("any", "of several")),),
    reference=lambda *_: (),
    body=lambda *_: "",
    attributes=(Attribute("program", str, ""), Attribute("inputs", int, 0)),
)
_OWN = {SELF_TEST.name: "cpu/binding/self_test.cpp", FUSED_REGION.name: "cpu/fused_region/fused_region.cpp"}
_READERS = {str: ("std::string", "text"), int: ("std::int64_t", "integer"), float: ("float", "number")}
_ANY_TYPE = 0


def cpu_ops() -> tuple[OpSpec, ...]:
    """Return the ops that have a CPU kernel, sorted by name."""
    return tuple(OPS[name] for name in sorted(OPS) if OPS[name].cpu_cases)


@functools.cache
def units() -> Mapping[str, str]:
    """Return the source by file name: translation units of similar cost, to be compiled side by side and linked.

    ``#line`` keeps compiler messages readable. Raises ``BuildError`` if a file is missing.
    """
    return {
        "kernels.cpp": _unit(*(functools.partial(_kernel, op) for op in (*cpu_ops(), SELF_TEST)), _registered),
        "fused_region.cpp": _unit(functools.partial(_kernel, FUSED_REGION)),
        "products.cpp": _unit(functools.partial(_with_headers, "cpu/matrices/tile_products.cpp")),
    }


def text_of_headers(*names: str) -> str:
    """Return the text of headers such as ``kernel.h``, preceded by the headers that they include."""
    return _unit(*(functools.partial(_with_headers, _file(name)) for name in names))


@functools.cache
def digest() -> str:
    """Return the hex SHA-256 of everything but the compiler that determines the machine code: source and options."""
    return hashlib.sha256("\n".join([*OPTIONS, *units().values()]).encode()).hexdigest()


def attributes_of(op: OpSpec) -> str:
    """Return the C++ struct that holds an op's attributes, with the spec's defaults."""
    fields = "".join(f"  {_READERS[a.kind][0]} {a.name};\n" for a in op.attributes)
    readers = [f'{a.name}(node.{_READERS[a.kind][1]}("{a.name}", {_literal(a)}))' for a in op.attributes]
    start = f" : {', '.join(readers)}" if readers else ""
    return (
        f"namespace peagle {{\nstruct {op.name}Attributes {{\n{fields}"
        f"  explicit {op.name}Attributes(const Node&{' node' if readers else ''}){start} {{}}\n}};\n}}\n"
    )


def _literal(attribute: Attribute) -> str:
    if isinstance(attribute.default, str):
        return f'"{attribute.default}"'
    return f"{attribute.default}{'f' if attribute.kind is float else ''}"


def _forms(op: OpSpec) -> list[dict[str, str]]:
    """Return the distinct sets of operand types that an op is registered with; an operand not listed accepts any type.

    ONNX Runtime infers an output of any type from the single input of any type. An op with several such inputs is
    registered once for each set of types in its test cases.
    """
    several = [[operand for operand in each if len(operand.dtypes) > 1] for each in (op.inputs, op.outputs)]
    if len(several[0]) < 2 or not several[1]:
        return [{}]
    forms: dict[tuple[str, ...], dict[str, str]] = {}
    for case in op.cpu_cases() if op.cpu_cases else ():
        dtypes = [None if x is None else BY_NUMPY[x.dtype.name].name for x in case.inputs]
        given = [dtype or operand.dtypes[0] for dtype, operand in zip(dtypes, op.inputs, strict=True)]
        names = (operand.name for operand in (*op.inputs, *op.outputs))
        forms.setdefault(tuple(given), dict(zip(names, [*given, *op.infer_dtypes(dtypes)], strict=True)))
    return [*forms.values()]


def _operands(op: OpSpec, operands: Sequence[Operand], form: Mapping[str, str]) -> str:
    """Return one ``Operand`` initializer of kernel.h per operand; with several types it accepts any."""
    at = {operand.name: i for i, operand in enumerate(op.inputs)}
    types = {operand.name: operand.dtypes[0] for operand in operands if len(operand.dtypes) == 1} | dict(form)
    fields = (
        (
            BY_NAME[types[operand.name]].onnx if operand.name in types else _ANY_TYPE,
            str(operand.optional).lower(),
            at.get(operand.aliases or "", -1),
            at.get(operand.same_as or "", -1),
        )
        for operand in operands
    )
    return ", ".join(f"{{{', '.join(map(str, each))}}}" for each in fields)


def _registration(ops: Sequence[OpSpec]) -> str:
    entries = ",\n    ".join(
        f'{{"{op.name}", {{{_operands(op, op.inputs, form)}}}, {{{_operands(op, op.outputs, form)}}}, '
        f"make_{op.name}, {str(op is FUSED_REGION).lower()}}}"
        for op in ops
        for form in _forms(op)
    )
    makers = "\n".join(f"std::unique_ptr<Kernel> make_{op.name}(const Node&);" for op in ops)
    return f"""namespace peagle {{
{makers}
namespace {{
const std::vector<Op> kOps = {{
    {entries},
}};
const std::vector<Operator> kOperators(kOps.begin(), kOps.end());
}}
const Op& op_named(const std::string& name) {{
  for (const Op& each : kOps) {{
    if (name == each.name) return each;
  }}
  refuse("there is no kernel of %s", name.c_str());
}}
bool has_form(const char* name, const Inputs& inputs) {{
  return std::any_of(kOps.begin(), kOps.end(), [&](const Op& op) {{
    return std::strcmp(op.name, name) == 0 && fits(op, inputs);
  }});
}}
}}
#define PEAGLE_EXPORT extern "C" __attribute__((visibility("default")))
PEAGLE_EXPORT peagle::ort::Status* RegisterCustomOps(peagle::ort::Options* options, const peagle::ort::Base* base) {{
  return peagle::add_operators(options, base, "{DOMAIN}", peagle::kOperators);
}}
PEAGLE_EXPORT const char* peagle_instructions() {{
  try {{
    return peagle::kInstructionNames[int(peagle::instructions())];
  }} catch (const peagle::Refusal&) {{
    return "";
  }}
}}
"""


def _unit(*texts: Callable[[set[str]], list[str]]) -> str:
    """Return a translation unit; each text is given the set of the files before it."""
    there: set[str] = set()
    return "".join([_SYSTEM, *(part for text in texts for part in text(there))])


def _kernel(op: OpSpec, there: set[str]) -> list[str]:
    """Return the text of an op's kernel and of the function that makes one."""
    name = _OWN.get(op.name) or _below_plugins(op.home / "kernel.cpp")
    return [
        *_with_headers(_file("kernel.h"), there),
        f'#line 1 "attributes of {op.name}"\n{attributes_of(op)}',
        *_with_headers(name, there),
        f"namespace peagle {{\nstd::unique_ptr<Kernel> make_{op.name}(const Node& node) {{\n"
        f"  return make_kernel<{op.name}, {op.name}Attributes>(node);\n}}\n}}\n",
    ]


def _registered(there: set[str]) -> list[str]:
    ops = [*cpu_ops(), FUSED_REGION, SELF_TEST]
    return [*_with_headers(_file("register.h"), there), f'#line 1 "registration"\n{_registration(ops)}']


def _with_headers(name: str, there: set[str]) -> list[str]:
    """Return the text of a file below plugins/, preceded by its project headers that are not in ``there`` yet."""
    if name in there:
        return []
    there.add(name)
    text = _text(_HERE.parent / name)
    before = [part for header in _INCLUDE.findall(text) for part in _with_headers(_file(header), there)]
    return [*before, f'#line 1 "{name}"\n', _INCLUDE.sub("\n", text), "\n"]


def _file(header: str) -> str:
    """Return the path of a header below plugins/."""
    found = sorted(_HERE.rglob(header))
    return _below_plugins(found[0] if found else _HERE / header)


def _below_plugins(path: Path) -> str:
    """Return the path used in messages and the digest: relative to plugins/, or absolute outside it."""
    return path.relative_to(_HERE.parent).as_posix() if path.is_relative_to(_HERE.parent) else str(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(
            f"cannot read the source of the CPU kernels: {error}",
            fix="reinstall peagle-compile; the package is incomplete",
        ) from error
