"""The shape of the tree: tests lie where their module does."""

from __future__ import annotations

from pathlib import Path

from tests.house import allowed
from tests.house.tree import ROOT, require, write_tree

# Test folders that mirror nothing: what crosses the tree, golden cases, GPUs, this house, and what is not packaged.
NOT_MIRRORED = {"attacks", "benchmarks", "conformance", "examples", "gpu", "house", "scenarios", "serving", "tools"}


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


def test_tests_lie_where_their_module_does() -> None:
    require(misplaced_tests(ROOT), allowed.ELSEWHERE)


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
