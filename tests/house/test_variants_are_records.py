"""Variants are records: no code outside their folder compares their names or looks them up by name."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.tree import ROOT, nodes_of, package_files, parsed, require, write_tree

# Names of variants -> the folders in which they may be compared: their records, and the readers of others' files.
HOMES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("ngram", "eagle3", "peagle", "peagle-chain"): ("engines/draft_methods", "graphs/drafters"),
    ("fp8", "mxfp8", "int4"): ("plugins/number_formats", "compiler/checkpoints/formats"),
    ("int8", "fp32", "fp16", "bf16", "mxfp4"): ("plugins/number_formats", "compiler/checkpoints/formats"),
    ("tags", "channels", "llama"): ("engines/answer_styles",),
    ("tensorrt-rtx", "tensorrt"): ("plugins/tensorrt", "graphs/lowering"),
}
# Names that stand nowhere else at all, as keys of a table or in a list neither -> the files and folders where they do.
WRITTEN: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("fp8", "mxfp8", "int4"): ("plugins/number_formats/", "plugins/number_types.py", "compiler/checkpoints/formats/"),
    ("tensorrt-rtx",): ("plugins/tensorrt/products.py", "plugins/optional_packages.py"),
}


def compared(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every string literal that a value is compared with: ``==``, ``in``, ``match``, ``startswith``."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            sides = node.args
        else:
            continue
        for side in sides:
            for each in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.lineno, each.value


_METHODS = ("startswith", "endswith")


def strays(root: Path, homes: Mapping[tuple[str, ...], tuple[str, ...]] = HOMES) -> list[str]:
    """Names of variants that are compared outside of their home."""
    home = {name: folders for names, folders in homes.items() for name in names}
    return [
        f"{path.as_posix()}:{line} compares with {text!r}: ask the record of {home[text][0]}"
        for path in package_files(root)
        for line, text in compared(parsed(path, root))
        if text in home and not path.as_posix().startswith(tuple(f"{folder}/" for folder in home[text]))
    ]


def test_no_variant_is_selected_by_name() -> None:
    require(strays(ROOT))


@pytest.mark.parametrize(
    "source",
    [
        "if kind == 'int4': ...",
        "x = 1 if 'fp8' != kind else 2",
        "if kind in ('a', 'int4'): ...",
        "match kind:\n    case 'a' | 'int4': ...",
        "if kind.startswith('int4'): ...",
    ],
)
def test_a_comparison_is_found(tmp_path: Path, source: str) -> None:
    files = {"plugins/number_formats/int4.py": source, "compiler/build.py": source}
    assert [each.partition(" ")[0].partition(":")[0] for each in strays(write_tree(tmp_path, files))] == [
        "compiler/build.py"
    ]


def test_displaying_a_name_does_not_count_as_a_comparison(tmp_path: Path) -> None:
    source = "kind = 'int4'\ncall(kind='fp8')\ntable = {'int4': 1}"
    assert strays(write_tree(tmp_path, {"compiler/build.py": source})) == []


def literals(tree: ast.Module, names: Collection[str]) -> Iterator[ast.Constant]:
    """Every string literal that is one of ``names``, in the order of the file, except standalone texts."""
    nodes = [node for node in nodes_of(tree) if isinstance(node, ast.Constant | ast.Expr)]
    texts = {node.value for node in nodes if isinstance(node, ast.Expr)}
    found = [node for node in nodes if isinstance(node, ast.Constant) and node.value in names]
    yield from sorted((node for node in found if node not in texts), key=lambda node: (node.lineno, node.col_offset))


def written(root: Path, names: Collection[str], homes: tuple[str, ...]) -> list[str]:
    """Places where a variant is called by its name outside of ``homes``."""
    return [
        f"{path.as_posix()}:{node.lineno}: {node.value!r}"
        for path in package_files(root)
        if not path.as_posix().startswith(homes)
        for node in literals(parsed(path, root), names)
    ]


@pytest.mark.parametrize("names", WRITTEN, ids=" ".join)
def test_each_name_has_one_home(names: tuple[str, ...]) -> None:
    everywhere = written(ROOT, names, ())
    require(line for line in everywhere if not line.startswith(WRITTEN[names]))
    assert {name for name in names for line in everywhere if line.endswith(repr(name))} == {*names}


def test_name_used_elsewhere_is_found(tmp_path: Path) -> None:
    source = "'fp8'\nLIMITS = {'fp8': 1}\nNAMES = ('mxfp8', 'other')\nlimit = LIMITS['int4']\nsaid = f'fp8 {limit}'"
    files = {"compiler/a.py": source, "plugins/number_formats/fp8.py": source}
    assert written(write_tree(tmp_path, files), ("fp8", "mxfp8", "int4"), ("plugins/number_formats/",)) == [
        "compiler/a.py:2: 'fp8'",
        "compiler/a.py:3: 'mxfp8'",
        "compiler/a.py:4: 'int4'",
    ]
