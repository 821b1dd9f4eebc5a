"""Packaging: every package is declared, every imported library is a dependency, and the lock pins it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from peagle.compiler.checkpoints.known_pairs import PAIRS, Local
from peagle.compiler.store.import_closure import imports_of
from tests.house.tree import PACKAGED, PYPROJECT, ROOT, package_files, package_of


def packaging_complaints(root: Path, declared: list[str]) -> list[str]:
    """Folders below `root` (that of `peagle`) that are undeclared packages, and declared packages without a folder."""
    complaints, found = [], set()
    for top in (root, *(each for each in root.iterdir() if each.is_symlink())):
        for directory in sorted({path.parent for path in top.rglob("*.py")}):
            name = ".".join(("peagle", *directory.relative_to(root).parts))
            found.add(name)
            if not (directory / "__init__.py").exists():
                complaints.append(f"{name} has no __init__.py")
    complaints += [f"{name} is missing in pyproject.toml's packages" for name in sorted(found - set(declared))]
    complaints += [f"pyproject.toml lists {name}, which has no code" for name in sorted(set(declared) - found)]
    return complaints


def test_every_package_is_declared() -> None:
    settings, package = PYPROJECT["tool"]["setuptools"], ROOT / "src" / "peagle"
    assert settings["package-dir"] == {"": "src"}
    links = {path.name: path.resolve() for path in package.iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in PACKAGED}
    assert packaging_complaints(package, settings["packages"]) == []


def test_packaging_mistakes_are_found(tmp_path: Path) -> None:
    package = tmp_path / "peagle"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "graphs").symlink_to(tmp_path / "graphs")
    for name in ("graphs/__init__.py", "graphs/targets/__init__.py", "graphs/bare/module.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    declared = ["peagle", "peagle.graphs", "peagle.graphs.bare", "peagle.graphs.gone"]
    complaints = packaging_complaints(package, declared)
    assert len(complaints) == 3
    for word in ("bare", "targets", "gone"):
        assert any(word in complaint for complaint in complaints)


def test_the_files_of_bundled_checkpoints_are_packaged() -> None:
    """`test_exports_in_a_clean_environment` installs the wheel; it does not build with every head."""
    folder = ROOT / "compiler"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["peagle.compiler"]
    packaged = {path.resolve() for pattern in patterns for path in folder.glob(pattern)}
    sources = {source for pair in PAIRS.values() for source in (pair.target, pair.drafter, pair.eagle3)}
    bundled = [source.path.resolve() for source in sources if isinstance(source, Local)]
    assert len(bundled) >= 4
    assert [file for path in bundled for file in path.iterdir() if file not in packaged] == []


def requirement_names(lists: list[list[str]]) -> set[str]:
    """Normalised distribution names in lists of requirements."""
    return {_normal(re.split(r"[^\w.-]", item, maxsplit=1)[0]) for one in lists for item in one}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def undeclared(source: str, package: str, declared: set[str], owners: Mapping[str, list[str]]) -> list[str]:
    """Imported third-party modules whose distribution (looked up in `owners`) is not declared."""
    names = {name.partition(".")[0] for _, name in imports_of(source, package)}
    return sorted(n for n in names if n in owners and n != "peagle" and not declared & {_normal(d) for d in owners[n]})


def test_every_third_party_import_is_declared() -> None:
    project: dict[str, Any] = PYPROJECT["project"]
    declared = requirement_names([project["dependencies"], *project["optional-dependencies"].values()])
    owners = importlib.metadata.packages_distributions()
    found = {str(p): undeclared((ROOT / p).read_text(), package_of(p), declared, owners) for p in package_files()}
    assert {path: names for path, names in found.items() if names} == {}


def test_an_undeclared_import_is_found() -> None:
    owners = {"yaml": ["PyYAML"], "numpy": ["numpy"]}
    assert undeclared("import yaml, numpy, os", "peagle", requirement_names([["numpy>=2"]]), owners) == ["yaml"]
    assert undeclared("import yaml", "peagle", requirement_names([["PyYAML>=6"]]), owners) == []


def lock_complaints(lock: str, wanted: list[list[str]]) -> list[str]:
    """Lines that pin nothing, and wanted distributions that are not pinned."""
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    pin = r'[a-z0-9-]+==[0-9][\w.]*( ; sys_platform == "linux")?'
    complaints = [f"not an exact pin: {line}" for line in lines if not re.fullmatch(pin, line)]
    missing = requirement_names(wanted) - {line.partition("==")[0] for line in lines}
    return complaints + [f"not in the lock: {name}" for name in sorted(missing)]


def test_lock_pins_project_requirements() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [PYPROJECT["build-system"]["requires"], project["dependencies"]]
    wanted += [extras[name] for name in ("export", "rtx", "dev")]
    assert lock_complaints((ROOT / "requirements.lock").read_text(), wanted) == []


def test_lock_mistakes_are_found() -> None:
    lock = "# comment\ntorch==2.13.0+cpu\nnumpy>=2\nrich==15.0.0\n"
    assert len(lock_complaints(lock, [["rich", "typer>=0.20"]])) == 3


def outside(lock: str, wanted: list[str]) -> list[str]:
    """Requirements that the version in the lock does not meet."""
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==([\w.]+)", lock))
    asked = [Requirement(text) for text in wanted]
    return [str(one) for one in asked if (pin := pins.get(_normal(one.name))) and pin not in one.specifier]


def test_locked_versions_are_within_every_range() -> None:
    project = PYPROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    assert outside((ROOT / "requirements.lock").read_text(), [text for one in lists for text in one]) == []


def test_a_lock_outside_of_a_range_is_found() -> None:
    assert outside("torch==2.16.0\n", ["torch>=2.9,<2.16", "rich>=13"]) == ["torch<2.16,>=2.9"]
