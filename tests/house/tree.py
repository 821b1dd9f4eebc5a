"""The tree that the house rules check: its files, their text, and the exceptions."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGED = ("compiler", "engines", "graphs", "plugins")


def package_files(root: Path = ROOT) -> list[Path]:
    """Every Python file of the installed package, relative to the root."""
    return [path.relative_to(root) for folder in PACKAGED for path in sorted((root / folder).rglob("*.py"))]


def parsed(path: Path, root: Path = ROOT) -> ast.Module:
    """The syntax tree of a file, given relative to the root. None of the tests may change it."""
    return _parsed(root / path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a file, once for all rules."""
    return tuple(ast.walk(tree))


def package_of(path: Path) -> str:
    """The package whose relative imports apply inside `path`, a file relative to the root."""
    return ".".join(("peagle", *path.parent.parts))


def module_of(path: Path) -> str:
    """The name that `path`, a file relative to the root, is imported by."""
    return ".".join(("peagle", *path.with_suffix("").parts)).removesuffix(".__init__")


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write the files of a bad example below `root`, which is returned."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def differences(complaints: Iterable[str], allowed: Collection[str]) -> list[str]:
    """The violations beyond `allowed`, and the unneeded exceptions.

    A complaint is known by what stands before its first ": "; the rest explains it.
    """
    found = {complaint.partition(": ")[0]: complaint for complaint in complaints}
    return [
        *(f"wrong: {found[name]}" for name in sorted(found.keys() - set(allowed))),
        *(f"mended, take it off the list of what is allowed: {name}" for name in sorted(set(allowed) - found.keys())),
    ]


def require(complaints: Iterable[str], allowed: Collection[str] = ()) -> None:
    """Fail with every difference in a line of its own."""
    wrong = differences([*complaints], allowed)
    assert not wrong, "\n".join(["", *wrong])
