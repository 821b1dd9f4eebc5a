"""Errors: every one that a user sees says how to fix the problem."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.tree import ROOT, nodes_of, package_files, parsed, require, write_tree

_TYPED = ("UsageError", "EnvironmentProblem", "BuildError")


def errors_without_a_fix(root: Path) -> list[str]:
    """Places that create a typed error without ``fix``."""
    return [
        f"{path.as_posix()}:{node.lineno}"
        for path in package_files(root)
        for node in nodes_of(parsed(path, root))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TYPED
        if not {keyword.arg for keyword in node.keywords} & {"fix", None}
    ]


def test_every_error_has_a_fix() -> None:
    require(errors_without_a_fix(ROOT))


def test_an_error_without_a_fix_is_found(tmp_path: Path) -> None:
    source = "raise UsageError('a', fix='b')\nraise BuildError(\n    'a', why='c')\nraise ValueError('a')"
    assert errors_without_a_fix(write_tree(tmp_path, {"engines/a.py": source})) == ["engines/a.py:2"]
