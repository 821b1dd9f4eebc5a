"""Digest of the code that a function can run: its module and all modules of the package that it imports.

Imports are read from the source, including those inside functions. Imports for type checkers do not count, and neither
does the console, since progress bars do not affect files. A parent package of a module counts with its own text; its
imports count for modules that take a name from it. CUDA sources are not modules: the key of the kernels' stage has
their digest.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError

_DYNAMIC = ("import_module", "__import__")


@dataclass(frozen=True)
class Package:
    """A package: its name, the folder of its modules, and the modules that do not affect stages."""

    name: str
    folder: Path
    silent: tuple[str, ...] = ()


PEAGLE = Package("peagle", Path(__file__).parents[2], silent=("peagle.compiler.console",))


def code_digest(function: Callable[..., Any]) -> str:
    """Return the SHA-256, in hex, of the code that a call of ``function`` can reach.

    Raises ``BuildError`` if a source file is missing.
    """
    while isinstance(function, partial):
        function = function.func
    return digest(PEAGLE, function.__module__)


@cache
def digest(package: Package, module: str) -> str:
    """Return the SHA-256, in hex, of the names and texts of ``closure(package, module)``."""
    total = hashlib.sha256()
    for name in sorted(closure(package, module)):
        total.update(f"{name}\0".encode() + _source(package, name).read_bytes() + b"\0")
    return total.hexdigest()


@cache
def closure(package: Package, module: str) -> frozenset[str]:
    """Return the names of ``module`` and of all modules of ``package`` that it imports, directly or indirectly."""
    reached, passed, pending = set[str](), set[str](), [module]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            passed.update(parent for parent in _parents(name) if _file(package, parent))
            pending += imported(package, name)
    return frozenset(reached | passed)


@cache
def imported(package: Package, module: str, *, typing: bool = False) -> frozenset[str]:
    """Return the modules of ``package`` that ``module`` imports; with ``typing`` also those for type checkers."""
    path = _source(package, module)
    home = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names = (name for _, name in imports_of(path.read_text(encoding="utf-8"), home, typing=typing))
    modules = (next((prefix for prefix in (name, *_parents(name)) if _file(package, prefix)), None) for name in names)
    return frozenset(name for name in modules if name is not None and not _is_silent(package, name))


def imports_of(source: str, package: str, *, typing: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute name) of each import in ``source``, a module of ``package``; also import_module("literal").

    Without ``typing``, imports below ``if TYPE_CHECKING`` are skipped.
    """
    tree = ast.parse(source)
    for node in _import_statements(tree.body, typing):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
    if any(marker in source for marker in _DYNAMIC):
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and (name := _literal_import(call)):
                yield call.lineno, resolve_name(name, package)


def _import_statements(nodes: Iterable[ast.AST], typing: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports among statements and in their blocks; expressions cannot contain any."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
            continue
        if typing or not (isinstance(node, ast.If) and _is_for_types(node.test)):
            yield from _import_statements(getattr(node, "body", ()), typing)
        for block in ("handlers", "cases", "orelse", "finalbody"):
            yield from _import_statements(getattr(node, block, ()), typing)


def _is_for_types(test: ast.expr) -> bool:
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def _literal_import(call: ast.Call) -> str | None:
    """Return the constant (or the constant prefix of an f-string) passed to import_module or __import__."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in _DYNAMIC or not call.args:
        return None
    argument = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _parents(module: str) -> Iterator[str]:
    """Yield the parent packages of a module, the innermost first."""
    while module := module.rpartition(".")[0]:
        yield module


def _is_silent(package: Package, module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in package.silent)


@cache
def _file(package: Package, module: str) -> Path | None:
    """Return the source file of a module of ``package``, or None."""
    first, *rest = module.split(".")
    if first != package.name or not rest:
        return None
    path = package.folder.joinpath(*rest)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _source(package: Package, module: str) -> Path:
    """Return the source file of a module of ``package``, or of one imported from elsewhere."""
    path = _file(package, module)
    if path is None and module.partition(".")[0] != package.name:
        path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if path is None or not path.is_file():
        raise BuildError(
            f"the source of {module} cannot be found",
            why="cached build results are keyed by the hash of the code that made them",
            fix="reinstall peagle-compile; the package is incomplete",
        )
    return path
