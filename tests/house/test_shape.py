"""The shape of the tree: tests mirror their modules, and no module is a fragment of its only importer."""

from __future__ import annotations

from pathlib import Path

from peagle.compiler.store.import_closure import Package, imported, imports_of
from tests.house import allowed
from tests.house.tree import ROOT, module_of, package_files, require, write_tree

# Test folders that mirror nothing: what crosses the tree, golden cases, GPUs, this house, and what is not packaged.
NOT_MIRRORED = {"attacks", "benchmarks", "conformance", "examples", "gpu", "house", "scenarios", "serving", "tools"}


def misplaced_tests(root: Path) -> list[str]:
    """Test files without a module, C++ or JavaScript file or package of the same path and name."""
    complaints = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        place = path.relative_to(root / "tests")
        if place.parts[0] in NOT_MIRRORED:
            continue
        module = root / place.parent / place.stem.removeprefix("test_")
        files = (*map(module.with_suffix, (".py", ".h", ".cpp", ".js")), module / "__init__.py")
        if len(place.parts) < 2 or not any(file.is_file() for file in files):
            complaints.append(f"tests/{place.as_posix()}")
    return complaints


def test_tests_mirror_module_paths() -> None:
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


# ----------------------------------------------------------------------------------------------------- splinters

# Folders whose files are variants of one kind: each is declared in a line, and may be as short as it is. A ``*`` stands
# for a folder for each variant.
KINDS = {
    "compiler/checkpoints/formats": "ways of storing weights",
    "compiler/verbs": "commands",
    "engines/answer_styles": "answer styles",
    "engines/draft_methods": "draft methods",
    "graphs/drafters": "drafters",
    "graphs/targets": "model families",
    "plugins/number_formats": "number formats",
    "plugins/ops/*": "ops",
}
# Where the variants of a kind are entered, a line each.
REGISTRIES = {"engines/backends/opening.py", "engines/serving/faces.py"}
SHORT = 40
USERS = ("benchmarks", "tools")  # what imports modules beside the package; tests do not count


def splinters(root: Path) -> list[str]:
    """Modules of fewer than ``SHORT`` lines with a single importer, other than variants of a kind."""
    package = Package("peagle", root)
    users = [path.relative_to(root) for folder in USERS for path in sorted((root / folder).rglob("*.py"))]
    importers: dict[str, set[str]] = {}
    for path in (*package_files(root), *users):
        name = module_of(path)
        for other in imported(package, name, typing=True) if path not in users else imports_of_user(root / path):
            importers.setdefault(other, set()).add(name)
    return [
        f"{path.as_posix()}: {lines} lines, for {next(iter(found)).removeprefix('peagle.')}"
        for path in package_files(root)
        if path.name != "__init__.py" and path.as_posix() not in REGISTRIES
        if not any(path.parent.match(kind) for kind in KINDS)
        if len(found := importers.get(module_of(path), set()) - {module_of(path)}) == 1
        if (lines := len((root / path).read_text().splitlines())) < SHORT
    ]


def imports_of_user(path: Path) -> set[str]:
    """Return the imports of the package by a program next to it."""
    names = [name for _, name in imports_of(path.read_text(), path.parent.name) if name.startswith("peagle.")]
    return {*names, *(name.rpartition(".")[0] for name in names)}


def test_no_module_serves_a_single_user() -> None:
    require(splinters(ROOT), allowed.SPLINTERS)


def test_a_splinter_is_found(tmp_path: Path) -> None:
    files = {
        "graphs/trace.py": "from .piece import x\nfrom .shared import y\nfrom .long import z\nfrom .measured import w",
        "graphs/piece.py": "x = 1",
        "graphs/shared.py": "y = 1",
        "graphs/long.py": "z = 1\n" * SHORT,
        "graphs/measured.py": "w = 1",
        "graphs/other.py": "from .shared import y",
        "graphs/targets/__init__.py": "from .tiny import T",
        "graphs/targets/tiny.py": "T = 1",
        "plugins/ops/an_op/__init__.py": "from .spec import S",
        "plugins/ops/an_op/spec.py": "S = 1",
        "benchmarks/one.py": "from peagle.graphs.measured import w",
    }
    assert splinters(write_tree(tmp_path, files)) == ["graphs/piece.py: 1 lines, for graphs.trace"]
