"""Names: a class name means one thing, a docstring begins with its subject, a module that is named exists."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house import allowed
from tests.house.test_tracked import tracked_files
from tests.house.tree import ROOT, nodes_of, package_files, parsed, require, write_tree

# ------------------------------------------------------------------------------------------------- class names


def classes_twice(root: Path) -> list[str]:
    """Names that more than one class of the package has, with the files: also private and inner ones."""
    homes = defaultdict(list)
    for path in package_files(root):
        for node in nodes_of(parsed(path, root)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.as_posix())
    return [f"{name}: {', '.join(paths)}" for name, paths in homes.items() if len(paths) > 1]


def test_no_class_name_exists_twice() -> None:
    require(classes_twice(ROOT), allowed.TWICE)


def test_a_name_of_two_classes_is_found(tmp_path: Path) -> None:
    inner = "def f():\n    class Plan:\n        pass"
    files = {"engines/a.py": "class Plan: ...\nclass Only: ...", "graphs/b.py": inner, "tests/c.py": "class Only: ..."}
    assert classes_twice(write_tree(tmp_path, files)) == ["Plan: engines/a.py, graphs/b.py"]


# ------------------------------------------------------------------------------------------------- docstrings

# "Its numbers." or "Of the same, float32.": of what? The first line names what is returned or done.
FRAGMENT = re.compile(r"(?:Of|By|For|As|Those|Its|The same|See)\b")


def public_docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of the module, which has no name, and of what is public in it."""

    def below(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name[0] != "_":
                yield f"{prefix}{child.name}", ast.get_docstring(child) or ""
                if isinstance(child, ast.ClassDef):
                    yield from below(child, f"{prefix}{child.name}.")

    yield "", ast.get_docstring(tree) or ""
    yield from below(tree, "")


def fragments(root: Path) -> list[str]:
    """Public docstrings that begin without a subject: `file::name`."""
    return [
        f"{path.as_posix()}::{name}"
        for path in package_files(root)
        for name, text in public_docstrings(parsed(path, root))
        if FRAGMENT.match(text)
    ]


def unfinished(root: Path) -> list[str]:
    """Public docstrings whose first line is not a whole sentence or heading, which is all that most readers see."""
    return [
        f"{path.as_posix()}::{name}"
        for path in package_files(root)
        for name, text in public_docstrings(parsed(path, root))
        if text and not re.fullmatch(r"[^\n]+[.:?]", text.partition("\n\n")[0])
    ]


def run_together(root: Path) -> list[str]:
    """Public docstrings whose section begins on the line of its heading: its entries become one paragraph."""
    return [
        f"{path.as_posix()}::{name}"
        for path in package_files(root)
        for name, text in public_docstrings(parsed(path, root))
        if re.search(r"^(?:Args|Returns|Raises|Yields): *\S", text, re.MULTILINE)
    ]


def test_docstrings_begin_with_their_subject() -> None:
    require(fragments(ROOT), allowed.FRAGMENTS)


def test_the_first_line_of_a_docstring_is_whole() -> None:
    require(unfinished(ROOT), allowed.UNFINISHED)


def test_sections_of_docstrings_have_a_line_for_each_entry() -> None:
    require(run_together(ROOT), ())


def test_entries_that_run_together_are_found(tmp_path: Path) -> None:
    text = "def a():\n    '''Do it.\n\n    Args: one: The first. two: The second.\n    '''\n"
    good = "def b():\n    '''Do it.\n\n    Args:\n        one: The first.\n    '''\n"
    assert run_together(write_tree(tmp_path, {"graphs/a.py": text + good})) == ["graphs/a.py::a"]


def test_a_fragment_is_found(tmp_path: Path) -> None:
    text = """
class Weight:
    '''The weights.'''
    def count(self): 'Its numbers.'
    def _own(self): 'Its own.'
def only(): 'Only what is asked for.'
def same(): 'The same of a half.'
"""
    found = fragments(write_tree(tmp_path, {"graphs/a.py": text, "graphs/b.py": "'See ``a``.'"}))
    assert found == ["graphs/a.py::Weight.count", "graphs/a.py::same", "graphs/b.py::"]


def test_an_unfinished_first_line_is_found(tmp_path: Path) -> None:
    text = "def a():\n    '''Return what\n    there is.'''\ndef b(): 'Return it'\ndef c(): 'Return it.'\ndef d(): ...\n"
    assert unfinished(write_tree(tmp_path, {"graphs/a.py": text})) == ["graphs/a.py::a", "graphs/a.py::b"]


# ------------------------------------------------------------------------------- modules named in texts and strings

# Python and Markdown name modules in strings, scripts for other processes and prose, where no import fails.
MODULE = re.compile(
    r"\b(?:from (?=[\w.]+ import))?((?:peagle\.(?:compiler|engines|graphs|plugins)|tests)(?:\.[A-Za-z_]\w*)*)"
    r"(?: import (\w+))?"
)


def unknown_modules(root: Path, text: str) -> list[str]:
    """Dotted names of the project whose module does not exist, or does not contain the named attribute."""
    return [name for name in map(_whole, MODULE.finditer(text)) if not _is_known(root, name)]


def _whole(match: re.Match[str]) -> str:
    return f"{match[1]}.{match[2]}" if match[2] else match[1]


def _is_known(root: Path, name: str) -> bool:
    parts = name.removeprefix("peagle.").split(".")
    for count in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                rest = parts[count : count + 1]
                return all(re.search(rf"\b{word}\b", file.read_text()) or word.startswith("__") for word in rest)
    return False


def test_modules_that_are_named_exist() -> None:
    """Except bad examples in the house rules, and removed names in the changelog."""
    files = [path.relative_to(ROOT) for path in tracked_files(ROOT) if path.suffix in {".py", ".md", ".toml"}]
    read = [path for path in files if path.name != "CHANGELOG.md" and path.parent.as_posix() != "tests/house"]
    require(f"{path} names {name}" for path in read for name in unknown_modules(ROOT, (ROOT / path).read_text()))


def test_reference_to_a_missing_module_is_found(tmp_path: Path) -> None:
    files = {"compiler/__init__.py": "", "compiler/store/stages.py": "class Stage: ...", "tests/__init__.py": ""}
    root = write_tree(tmp_path, files)
    known = "peagle.compiler.store.stages.Stage and from peagle.compiler.store.stages import Stage: our tests."
    assert unknown_modules(root, known) == []
    gone = "python -m peagle.compiler.stages\nfrom peagle.compiler import stages\n`peagle.compiler.store.stages.Old`"
    assert unknown_modules(root, gone) == [
        "peagle.compiler.stages", "peagle.compiler.stages", "peagle.compiler.store.stages.Old",
    ]  # fmt: skip
