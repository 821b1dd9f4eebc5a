"""The C++ source of the plugin library: the headers in this folder, and the op specs as C++ tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BuildError
from ...kernels.compile import Cubin
from ...kernels.sources import entries, kernel_of
from ...limits import Bound, at_least_one, at_least_zero
from ...number_types import BY_NAME, BY_TENSORRT
from ...op_spec import DOMAIN, VERSION, Attribute, Operand, OpSpec, terms_of
from ...ops import OPS

# Only exported symbols are visible, and the C++ library is linked statically: the host process may have another one.
# The library stays in memory: the driver reads its kernels, and plugin registries keep its addresses.
OPTIONS = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "-w", "-static-libstdc++", "-static-libgcc",
    "-Wl,--version-script=exports.map", "-Wl,-z,nodelete", "-ldl",
)  # fmt: skip
_EXPORTS = b"{ global: getCreators; setLoggerFinder; local: *; };\n"

_HERE = Path(__file__).resolve().parent
_SYSTEM = """\
#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
"""
_MIN: Mapping[Callable[[Any], str | None], int] = {at_least_zero: 0, at_least_one: 1}
_LARGEST = 2**63 - 1
_SPEC = "change the op's spec, or give the op no CUDA kernel"


def files(cubins: Sequence[Cubin]) -> dict[str, bytes]:
    """Return the files by name: first the one to compile, then its includes.

    Raises ``BuildError`` for an op whose spec the tables cannot express.
    """
    ops = [OPS[name] for name in dict.fromkeys(cubin.op for cubin in cubins)]
    codes = {_file(cubin): cubin.code for cubin in cubins}
    return {"plugins.cpp": _text(ops, cubins).encode(), "exports.map": _EXPORTS, **codes}


def digest(cubins: Sequence[Cubin]) -> str:
    """Return the hex SHA-256 of everything but the compiler that determines the library: files and options."""
    combined = hashlib.sha256("\n".join(OPTIONS).encode())
    for name, content in sorted(files(cubins).items()):
        combined.update(f"\n{name} {hashlib.sha256(content).hexdigest()}".encode())
    return combined.hexdigest()


def _text(ops: Sequence[OpSpec], cubins: Sequence[Cubin]) -> str:
    constants = f'namespace peagle {{\nconstexpr char kNamespace[] = "{DOMAIN}", kVersion[] = "{VERSION}";\n}}\n'
    return "".join(
        [
            _SYSTEM,
            constants,
            *map(_header, ("interface.h", "rules.h", "launch.h", "plugin.h")),
            *map(_embedded, cubins),
            "namespace peagle {\nnamespace {\n",
            *(_tables(op, [cubin for cubin in cubins if cubin.op == op.name]) for op in ops),
            f"const Op kOps[] = {{{', '.join(f'k{op.name}' for op in ops)}}};\n",
            "}\n",
            _names_of_types(),
            "}\n",
            _header("exports.h"),
        ]
    )


def _header(name: str) -> str:
    try:
        return f'#line 1 "{name}"\n{(_HERE / name).read_text(encoding="utf-8")}\n'
    except OSError as error:
        raise BuildError(
            f"cannot read the source of the plugin library: {error}",
            fix="reinstall peagle-compile; the package is incomplete",
        ) from error


def _file(cubin: Cubin) -> str:
    return f"{OPS[cubin.op].folder}.sm_{cubin.sm}.cubin"


def _label(cubin: Cubin) -> str:
    return f"peagle_{OPS[cubin.op].folder}_sm_{cubin.sm}"


def _embedded(cubin: Cubin) -> str:
    """Return assembler code that embeds the machine code between two labels."""
    label = _label(cubin)
    lines = (
        ".section .rodata",
        ".balign 64",
        f"{label}:",
        f'.incbin \\"{_file(cubin)}\\"',
        f"{label}_end:",
        ".previous",
    )
    text = "".join(f'    "{line}\\n"\n' for line in lines)
    return (
        f"__asm__(\n{text});\n"
        f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {label}[], {label}_end[];\n'
    )


def _tables(op: OpSpec, cubins: Iterable[Cubin]) -> str:
    """Return the constants that describe an op, prefixed with its name."""
    if op.check_dims is not None:
        raise _unsupported(op, "the op's check_dims cannot be expressed as bounds")
    kernel, name = kernel_of(op), f"k{op.name}"
    dimensions = list(dict.fromkeys(dim for operand in op.inputs for dim in operand.dims))
    symbols = {symbol: i for i, symbol in enumerate([*dimensions, *(a.name for a in op.attributes)])}
    inputs = {operand.name: i for i, operand in enumerate(op.inputs)}
    typed_by = -1 if kernel.typed_by is None else inputs[kernel.typed_by]
    types = op.inputs[typed_by].dtypes if typed_by >= 0 else op.inputs[0].dtypes[:1]
    factors = [(f"{name}Factors{i}", bound) for i, bound in enumerate(op.bounds)]
    parts = [
        _array("const char* const", f"{name}Symbols", [f'"{symbol}"' for symbol in symbols]),
        _operands(op, op.inputs, f"{name}Inputs", symbols, inputs),
        _operands(op, op.outputs, f"{name}Outputs", symbols, inputs),
        _array("const Attribute", f"{name}Attributes", [_attribute(op, a) for a in op.attributes]),
        *(_terms(label, [(1, dim) for dim in bound.dims], symbols) for label, bound in factors),
        _array("const Bound", f"{name}Bounds", [_bound(label, bound, symbols) for label, bound in factors]),
        _array("const char* const", f"{name}Entries", [f'"{entry}"' for entry in entries(op)]),
        _array("const DataType", f"{name}EntryTypes", [_type(dtype) for dtype in types]),
        _array("const int", f"{name}Scalars", [str(symbols[scalar]) for scalar in kernel.scalars]),
        *_sums([kernel.blocks], f"{name}Blocks", symbols),
        _array("const Cubin", f"{name}Cubins", [f"{{{c.sm}, {_label(c)}, {_label(c)}_end}}" for c in cubins]),
    ]
    fields = [
        f'"{op.name}"', f"{name}Symbols", len(dimensions), len(symbols), f"{name}Inputs", len(op.inputs),
        f"{name}Outputs", len(op.outputs), f"{name}Attributes", f"{name}Bounds", len(op.bounds), f"{name}Entries",
        f"{name}EntryTypes", len(types), typed_by, f"{name}Scalars", len(kernel.scalars), f"{name}Blocks[0]",
        -1 if kernel.per is None else symbols[kernel.per], kernel.threads, kernel.cluster, f"{name}Cubins",
        f"sizeof {name}Cubins / sizeof *{name}Cubins",
    ]  # fmt: skip
    return "".join([*parts, f"const Op {name} = {{{', '.join(map(str, fields))}}};\n"])


def _array(kind: str, name: str, items: Sequence[str]) -> str:
    """Return a C array; an empty one gets one unused element, because C++ has no empty arrays."""
    return f"{kind} {name}[] = {{{', '.join(items) or '{}'}}};\n"


def _operands(
    op: OpSpec, operands: Sequence[Operand], name: str, symbols: Mapping[str, int], inputs: Mapping[str, int]
) -> str:
    parts, rows = [], []
    for i, operand in enumerate(operands):
        if operand.optional or operand.wide_as is not None or "..." in operand.dims:
            raise BuildError(
                f"{op.name} cannot be a plugin of the library",
                why=f"{operand.name} is optional, of variable rank or of variable type",
                fix=_SPEC,
            )
        parts += _sums(operand.dims, f"{name}Dims{i}", symbols)
        parts.append(_array("const DataType", f"{name}Types{i}", [_type(dtype) for dtype in operand.dtypes]))
        types = [f"{name}Types{i}", len(operand.dtypes)]
        ties = [inputs[tie] if tie else -1 for tie in (operand.same_as, operand.aliases)]
        fields = [f'"{operand.name}"', *types, *ties, f"{name}Dims{i}", len(operand.dims)]
        rows.append(f"{{{', '.join(map(str, fields))}}}")
    return "".join([*parts, _array("const Operand", name, rows)])


def _sums(expressions: Sequence[str], name: str, symbols: Mapping[str, int]) -> list[str]:
    """Return the terms of every expression, and an array of their sums."""
    parts, rows = [], []
    for i, expression in enumerate(expressions):
        terms, constant = terms_of(expression)
        parts.append(_terms(f"{name}Terms{i}", terms, symbols))
        rows.append(f"{{{name}Terms{i}, {len(terms)}, {constant}}}")
    return [*parts, _array("const Sum", name, rows)]


def _terms(name: str, terms: Sequence[tuple[int, str]], symbols: Mapping[str, int]) -> str:
    return _array("const Term", name, [f"{{{sign}, {symbols[symbol]}}}" for sign, symbol in terms])


def _attribute(op: OpSpec, attribute: Attribute) -> str:
    minimum = _MIN.get(attribute.check) if attribute.check else -_LARGEST
    if attribute.kind is not int or minimum is None:
        raise _unsupported(op, f"{attribute.name} is not an integer with a lower bound")
    problem = attribute.check(attribute.default) if attribute.check else None
    required = "true" if problem else "false"
    words = attribute.check(minimum - 1) if attribute.check else ""
    return f'{{"{attribute.name}", {required}, {attribute.default}, {minimum}, "{words}"}}'


def _bound(factors: str, bound: Bound, symbols: Mapping[str, int]) -> str:
    symbol_ids = [symbols[end] if isinstance(end, str) else -1 for end in (bound.minimum, bound.maximum)]
    minimum = bound.minimum if isinstance(bound.minimum, int) else 0
    maximum = bound.maximum if isinstance(bound.maximum, int) else _LARGEST
    numbers = f"{len(bound.dims)}, {bound.times}, {minimum}, {maximum}, {symbol_ids[0]}, {symbol_ids[1]}"
    return f'{{{factors}, {numbers}, "{bound.message}"}}'


def _type(name: str) -> str:
    return f"DataType::{BY_NAME[name].tensorrt}"


def _names_of_types() -> str:
    cases = "".join(f'    case DataType::{member}: return "{kind.name}";\n' for member, kind in BY_TENSORRT.items())
    other = '    default: return "an unknown type";\n'
    return f"const char* name_of(DataType type) {{\n  switch (type) {{\n{cases}{other}  }}\n}}\n"


def _unsupported(op: OpSpec, why: str) -> BuildError:
    return BuildError(f"{op.name} cannot be a plugin of the library", why=why, fix=_SPEC)
