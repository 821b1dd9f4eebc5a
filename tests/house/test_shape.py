"""The shape of the tree: rooms one can survey, no splinters, and tests that lie where their module does."""

from __future__ import annotations

from pathlib import Path

from tests.house import allowed
from tests.house.tree import PACKAGED, ROOT, package_files, require, write_tree

MAX_ENTRIES = 16
MIN_LINES = 20

# Test folders that mirror nothing: what crosses the tree, golden cases, GPUs, this house, and what is not packaged.
NOT_MIRRORED = {"attacks", "benchmarks", "conformance", "examples", "gpu", "house", "scenarios", "serving", "tools"}


def full_folders(root: Path) -> list[str]:
    """Folders of the package with more than `MAX_ENTRIES` files and folders."""
    folders = [folder for name in PACKAGED for folder in (root / name, *sorted((root / name).rglob("*")))]
    complaints = []
    for folder in (folder for folder in folders if folder.is_dir() and folder.name != "__pycache__"):
        entries = {path.name for path in folder.iterdir()} - {"__init__.py", "py.typed", "__pycache__"}
        if len(entries) > MAX_ENTRIES:
            complaints.append(f"{folder.relative_to(root).as_posix()}: {len(entries)} entries")
    return complaints


def small_modules(root: Path) -> list[str]:
    """Modules of fewer than `MIN_LINES` lines; a family is a file however little it says."""
    return [
        f"{path.as_posix()}: {lines} lines"
        for path in package_files(root)
        if (lines := len((root / path).read_text().splitlines())) < MIN_LINES
        and path.name not in {"__init__.py", "__main__.py"}
        and path.parent.as_posix() != "graphs/targets"
    ]


def misplaced_tests(root: Path) -> list[str]:
    """Test files for which there is no module, C++ file or package of the same path and name."""
    complaints = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        place = path.relative_to(root / "tests")
        if place.parts[0] in NOT_MIRRORED:
            continue
        module = root / place.parent / place.stem.removeprefix("test_")
        files = (*map(module.with_suffix, (".py", ".h", ".cpp")), module / "__init__.py")
        if len(place.parts) < 2 or not any(file.is_file() for file in files):
            complaints.append(f"tests/{place.as_posix()}")
    return complaints


def test_no_folder_is_too_full() -> None:
    require(full_folders(ROOT), allowed.FULL)


def test_no_module_is_a_splinter() -> None:
    require(small_modules(ROOT), allowed.SMALL)


def test_tests_lie_where_their_module_does() -> None:
    require(misplaced_tests(ROOT), allowed.ELSEWHERE)


def test_a_full_folder_is_found(tmp_path: Path) -> None:
    files = {f"engines/{number}.py": "" for number in range(MAX_ENTRIES - 1)}
    files |= {"engines/__init__.py": "", "engines/py.typed": "", "engines/__pycache__/a.pyc": "", "engines/b/a.py": ""}
    assert full_folders(write_tree(tmp_path, files)) == []
    assert full_folders(write_tree(tmp_path, {"engines/b/b.py": "", "engines/c/README": ""})) == ["engines: 17 entries"]


def test_a_splinter_is_found(tmp_path: Path) -> None:
    files = {
        "graphs/__init__.py": "",
        "graphs/targets/family.py": "",
        "graphs/large.py": "\n" * MIN_LINES,
        "graphs/small.py": "\n",
    }
    assert small_modules(write_tree(tmp_path, files)) == ["graphs/small.py: 1 lines"]


def test_a_misplaced_test_is_found(tmp_path: Path) -> None:
    files = {
        "plugins/op_spec.py": "",
        "plugins/some_op/__init__.py": "",
        "tests/plugins/test_op_spec.py": "",
        "tests/plugins/test_some_op.py": "",
        "tests/plugins/test_gone.py": "",
        "tests/scenarios/test_whole.py": "",
        "tests/test_docs.py": "",
    }
    assert misplaced_tests(write_tree(tmp_path, files)) == ["tests/plugins/test_gone.py", "tests/test_docs.py"]
