"""Imports point in one direction: between the four folders, packages and modules, without cycles."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from peagle.compiler.store.import_closure import Package, imported, imports_of
from tests.house import allowed
from tests.house.tree import ROOT, differences, module_of, package_files, package_of, require, write_tree

# folder -> the folders of ours it may import. Nothing imports the compiler.
MAY_IMPORT: dict[str, set[str]] = {
    "plugins": set(),
    "graphs": {"plugins"},
    "engines": {"plugins"},
    "compiler": {"graphs", "plugins", "engines"},
}
NOT_PACKAGED = {"tests", "tools", "benchmarks", "examples", "docs"}

# The wings of compiler/, low to high: a wing imports those before it only. Wings of one row do not import each other.
WINGS = (
    ("console",),
    ("store",),
    ("bundled",),
    ("hardware",),
    ("checkpoints",),
    ("precision",),
    ("tensorrt",),
    ("request",),
    ("resources",),
    ("pipeline",),
    ("verify", "chat", "deploy", "bench"),
    ("verbs", "api"),
    ("cli",),
)

# The rooms of engines/, in the same way; a module beside the folders is a room by itself.
ROOMS = (
    ("errors", "panics", "free_memory"),
    ("machine",),
    ("draft_methods", "answer_styles"),
    ("folder", "policy", "requests"),
    ("text",),
    ("grammars",),
    ("running",),
    ("backends",),
    ("scheduling",),
    ("loop", "draft_options"),
    ("request_factory",),
    ("engine",),
    ("serving",),
)
ORDERS = {"compiler": WINGS, "engines": ROOMS}


def wrong_imports(path: Path, source: str) -> list[str]:
    """Complaints about imports of our own folders in one file of the package."""
    here = path.parts[0]
    complaints = []
    for line, name in imports_of(source, package_of(path)):
        first, _, rest = name.partition(".")
        target = rest.partition(".")[0] if first == "peagle" else first
        if first in {*MAY_IMPORT, *NOT_PACKAGED}:
            complaints.append(f"{path}:{line}: {name}: not a name users have; import it as part of peagle")
        elif first == "peagle" and target != here and target not in MAY_IMPORT[here]:
            complaints.append(f"{path}:{line}: {here} must not import {name}")
    return complaints


def test_imports_point_one_way() -> None:
    files = package_files()
    assert {path.parts[0] for path in files} == set(MAY_IMPORT)
    require(c for path in files for c in wrong_imports(path, (ROOT / path).read_text()))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("plugins/op_spec.py", "from ..graphs import trace"),
        ("plugins/ops/numbers_at/__init__.py", "from ....engines import engine"),
        ("graphs/trace.py", "from .. import compiler"),
        ("graphs/targets/qwen3.py", "if TYPE_CHECKING:\n    from ...engines.engine import Engine"),
        ("engines/draft_methods/peagle.py", "def f():\n    import peagle.graphs.trace"),
        ("engines/draft_methods/peagle.py", "importlib.import_module('...compiler', __package__)"),
        ("engines/draft_methods/peagle.py", "import_module(f'peagle.compiler.verbs.{verb}')"),
        ("compiler/pipeline/build.py", "from plugins.spec import OpSpec"),
        ("compiler/pipeline/build.py", "from tools.corpus import read_files"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str) -> None:
    assert len(wrong_imports(Path(path), source)) == 1


def test_right_imports_are_accepted() -> None:
    source = (
        "import numpy\nfrom . import round\nfrom ..plugins import spec\nfrom peagle.plugins.errors import PeagleError"
    )
    assert wrong_imports(Path("engines/backends/ort.py"), source.replace("..plugins", "...plugins")) == []
    assert wrong_imports(Path("engines/engine.py"), source) == []
    assert wrong_imports(Path("compiler/verbs/__init__.py"), "from ...engines import engine") == []


# -------------------------------------------------------------- wings of the compiler, and rooms of engines


def imports_within(root: Path) -> dict[str, frozenset[str]]:
    """The project's modules that each module imports, including imports inside functions and for type checkers."""
    package = Package("peagle", root)
    return {module_of(path): imported(package, module_of(path), typing=True) for path in package_files(root)}


def wing_of(module: str, folder: str = "compiler") -> str | None:
    """The package of a folder that a module belongs to; None outside of it and for its `__init__.py`."""
    _, its_folder, wing, *_ = [*module.split("."), "", ""]
    return wing if its_folder == folder and wing else None


def upward_imports(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Imports of a wing or room that is not below the importer's, and those that have no place in the order."""
    return [complaint for folder in ORDERS for complaint in _upward_within(folder, imports)]


def _upward_within(folder: str, imports: Mapping[str, frozenset[str]]) -> list[str]:
    height = {wing: row for row, wings in enumerate(ORDERS[folder]) for wing in wings}
    complaints = []
    for module, others in imports.items():
        here = wing_of(module, folder)
        if here is None:
            continue
        if here not in height:
            complaints.append(f"{here} has no place among the wings of {folder}")
            continue
        for other in sorted(others):
            there = wing_of(other, folder)
            if there not in (None, here) and height.get(there or "", len(height)) >= height[here]:
                complaints.append(f"{module} imports {other}")
    return complaints


def circles(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Circles of modules that import each other; one is found, opened, and the next looked for."""
    remaining = {module: set(others) - {module} for module, others in sorted(imports.items())}
    found = []
    while True:
        try:
            TopologicalSorter({module: sorted(others) for module, others in remaining.items()}).prepare()
        except CycleError as error:
            ring = list(reversed(error.args[1]))  # each module imports the next
            remaining[ring[0]].discard(ring[1])
            start = ring.index(min(ring))
            found.append(" -> ".join(ring[start:-1] + ring[: start + 1]))
        else:
            return found


def rooms_in_circles(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Cycles among siblings in a folder, where each package in it counts as one.

    Without circles there is an order in which no room imports upward.
    """
    packages = {module.rpartition(".")[0] for module in imports}
    complaints = []
    for package in sorted(packages - {"", "peagle"}):
        begin = f"{package}."
        rooms: dict[str, set[str]] = {}
        for module, others in imports.items():
            if module.startswith(begin):
                beside = rooms.setdefault(module.removeprefix(begin).partition(".")[0], set())
                beside |= {o.removeprefix(begin).partition(".")[0] for o in others if o.startswith(begin)}
        found = circles({room: frozenset(others) for room, others in rooms.items()})
        complaints += [f"{package.removeprefix('peagle.')}: {ring}" for ring in found]
    return complaints


def test_no_room_imports_upward() -> None:
    wrong: dict[str, list[str]] = {}
    for package, _, ring in (complaint.partition(": ") for complaint in rooms_in_circles(imports_within(ROOT))):
        wrong.setdefault(package, []).append(ring)
    require((f"{package}: {'; '.join(rings)}" for package, rings in wrong.items()), allowed.ROOMS)


def test_no_wing_imports_one_above_it() -> None:
    require(upward_imports(imports_within(ROOT)), allowed.UP)


def test_every_room_of_the_order_is_there() -> None:
    there = {wing_of(module_of(path), "engines") for path in package_files()}
    assert {room for rooms in ROOMS for room in rooms} <= there


def test_no_modules_import_each_other() -> None:
    require(circles(imports_within(ROOT)), allowed.CIRCLES)


def faces_that_import_faces(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """Imports between the folders of two APIs of the server, which have their routes there."""
    begin, end = "peagle.engines.serving.", ".routes"
    faces = {name.removesuffix(end) for name in imports if name.startswith(begin) and name.endswith(end)}
    return [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in sorted(others)
        if {module.rpartition(".")[0], other.rpartition(".")[0]} <= faces
        if module.rpartition(".")[0] != other.rpartition(".")[0]
    ]


def test_no_api_imports_another() -> None:
    assert faces_that_import_faces(imports_within(ROOT)) == []


def test_an_api_that_imports_another_is_found(tmp_path: Path) -> None:
    files = {
        "engines/serving/one/routes.py": "from ..two.errors import a\nfrom ..shared import b\nfrom .own import c",
        "engines/serving/one/own.py": "",
        "engines/serving/two/routes.py": "",
        "engines/serving/two/errors.py": "",
        "engines/serving/shared.py": "",
    }
    assert faces_that_import_faces(imports_within(write_tree(tmp_path, files))) == [
        "peagle.engines.serving.one.routes imports peagle.engines.serving.two.errors"
    ]


def bad_example(tmp_path: Path) -> Mapping[str, frozenset[str]]:
    files = {
        "compiler/store/stages.py": "def f():\n    from ..pipeline import component",
        "compiler/pipeline/component.py": "from ..store import stages",
        "compiler/chat/turn.py": "if TYPE_CHECKING:\n    from ..deploy.archive import Archive",
        "compiler/deploy/archive.py": "",
        "compiler/attic/old.py": "",
        "engines/text/a.py": "from . import b",
        "engines/text/b.py": "from .c import x",
        "engines/text/c.py": "def f():\n    from .a import y",
        "engines/requests/params.py": "from ..text import c",
        "engines/cellar.py": "",
    }
    return imports_within(write_tree(tmp_path, files))


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    assert upward_imports(bad_example(tmp_path)) == [
        "attic has no place among the wings of compiler",
        "peagle.compiler.chat.turn imports peagle.compiler.deploy.archive",
        "peagle.compiler.store.stages imports peagle.compiler.pipeline.component",
        "cellar has no place among the wings of engines",
        "peagle.engines.requests.params imports peagle.engines.text.c",
    ]


def test_a_circle_is_found(tmp_path: Path) -> None:
    assert sorted(circles(bad_example(tmp_path))) == [
        "peagle.compiler.pipeline.component -> peagle.compiler.store.stages -> peagle.compiler.pipeline.component",
        "peagle.engines.text.a -> peagle.engines.text.b -> peagle.engines.text.c -> peagle.engines.text.a",
    ]


def test_a_room_that_imports_upward_is_found(tmp_path: Path) -> None:
    files = {
        "graphs/targets/llama.py": "from .trials import run",
        "graphs/targets/trials.py": "def f():\n    from ..trace import trace_target",
        "graphs/trace.py": "from .targets.llama import Llama",
        "graphs/names.py": "",
        "graphs/lowering/ort/experts.py": "from ...names import x\nfrom ..shared import y",
        "graphs/lowering/shared.py": "if TYPE_CHECKING:\n    from .ort.linears import z",
        "graphs/lowering/ort/linears.py": "",
    }
    assert rooms_in_circles(imports_within(write_tree(tmp_path, files))) == [
        "graphs: targets -> trace -> targets",
        "graphs.lowering: ort -> shared -> ort",
    ]


def test_fixed_violation_in_the_allow_list_is_reported() -> None:
    assert differences(["a: 1", "b: 2"], {"b", "c"}) == [
        "wrong: a: 1",
        "mended, take it off the list of what is allowed: c",
    ]
