"""Variants are records: the name of one stands in its own home, and nobody else tests it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.tree import ROOT, package_files, parsed, require, write_tree

# The names of variants, and the files and folders in which they may stand: where they are defined, and where another
# program's files have words that happen to be the same.
HOMES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("fp8", "mxfp8", "int4"): ("plugins/number_formats/", "plugins/number_types.py", "compiler/checkpoints/formats/"),
}


def docstrings(tree: ast.Module) -> set[ast.Constant]:
    """The constants that are texts on their own, and decide nothing."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def named(tree: ast.Module, names: Collection[str]) -> Iterator[ast.Constant]:
    """The literals that are one of ``names``: compared, matched, in a tuple or a dict, or handed on to who does so."""
    texts = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in names and node not in texts:
            yield node


def found_names(root: Path, names: Collection[str], homes: tuple[str, ...]) -> list[str]:
    """Places of the product where a variant is known by its name, outside of its home."""
    return [
        f"{path.as_posix()}:{node.lineno}: {node.value!r}"
        for path in package_files(root)
        if not path.as_posix().startswith(homes)
        for node in sorted(named(parsed(path, root), names), key=lambda node: (node.lineno, node.col_offset))
    ]


@pytest.mark.parametrize("names", HOMES, ids=" ".join)
def test_no_part_but_its_home_tests_the_name_of_a_variant(names: tuple[str, ...]) -> None:
    require(found_names(ROOT, names, HOMES[names]))


@pytest.mark.parametrize("names", HOMES, ids=" ".join)
def test_a_name_stands_in_its_home(names: tuple[str, ...]) -> None:
    at_home = found_names(ROOT, names, ())
    assert all(any(line.endswith(repr(name)) for line in at_home) for name in names)


def test_a_name_that_is_tested_is_found(tmp_path: Path) -> None:
    text = """
'''fp8'''
LIMITS = {"fp8": 1}
def faster(kind: str) -> bool:
    match kind:
        case "int4":
            return True
    return kind == "fp8" or kind in ("mxfp8", "other") or LIMITS["fp8"] > 1 or kind != f"fp8 {kind}"
"""
    files = {"compiler/a.py": text, "plugins/number_formats/fp8.py": text}
    assert found_names(write_tree(tmp_path, files), ("fp8", "mxfp8", "int4"), ("plugins/number_formats/",)) == [
        "compiler/a.py:3: 'fp8'",
        "compiler/a.py:6: 'int4'",
        "compiler/a.py:8: 'fp8'",
        "compiler/a.py:8: 'mxfp8'",
        "compiler/a.py:8: 'fp8'",
    ]
