"""The digest of a function's code covers its imports, including late ones, and excludes observers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from peagle.compiler.precision.calibration.calibrate import calibrate
from peagle.compiler.store import import_closure
from peagle.compiler.store.import_closure import PEAGLE, Package, code_digest, digest, imported, imports_of
from peagle.plugins.errors import BuildError

ROOT = Path(__file__).parents[3]
CALIBRATE = "peagle.compiler.precision.calibration.calibrate"

# What a stage's code is handed, or calls a type by, without importing its module; and why no more of it has to be in
# the key.
HANDED = {
    "peagle.compiler.precision.calibration.saved_ranges": "those that are used are in the key of the weights' source",
    "peagle.graphs.lowering": "a calibration asks how many samples it takes, and those are in the key",
    "peagle.graphs.trace": "Dtype, another name of three strings: the one that is used is in the key",
}

SMALL = {
    "__init__": "",
    "stage": "from .near import thing\ndef make(folder):\n    import small.late\n    from .rooms import room",
    "near": "from .far import other",
    "far": "import os",
    "late": "",
    "apart": "",
    "rooms.__init__": "from . import unasked",
    "rooms.room": "from .. import far",
    "rooms.unasked": "",
    "shown.__init__": "",
    "shown.bar": "",
}


def written(folder: Path, modules: Mapping[str, str], **changed: str | None) -> Package:
    """The package ``small`` on disk, with some modules' text changed and those of None left out."""
    for name, text in (modules | changed).items():
        if text is not None:
            path = folder.joinpath(*name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return Package("small", folder, silent=("small.shown",))


def key(folder: Path, **changed: str | None) -> str:
    return digest(written(folder, SMALL, **changed), "small.stage")


def test_closure_includes_all_direct_and_lazy_imports(tmp_path: Path) -> None:
    package = written(tmp_path, SMALL)
    expected = {"small.stage", "small.near", "small.far", "small.late", "small.rooms", "small.rooms.room"}
    assert import_closure.closure(package, "small.stage") == expected


def test_package_is_followed_only_for_imported_names(tmp_path: Path) -> None:
    on_the_way = written(tmp_path / "a", SMALL)
    named = written(tmp_path / "b", SMALL, far="from .rooms import something")
    assert "small.rooms.unasked" not in import_closure.closure(on_the_way, "small.stage")
    assert "small.rooms.unasked" in import_closure.closure(named, "small.stage")


@pytest.mark.parametrize("module", ["stage", "near", "far", "late", "rooms.__init__", "rooms.room"])
def test_a_change_within_the_closure_changes_the_key(module: str, tmp_path: Path) -> None:
    assert key(tmp_path / "a") != key(tmp_path / "b", **{module: SMALL[module] + "\n# changed"})


@pytest.mark.parametrize("module", ["apart", "rooms.unasked"])
def test_a_change_elsewhere_does_not(module: str, tmp_path: Path) -> None:
    assert key(tmp_path / "a") == key(tmp_path / "b", **{module: "changed = 1"})


def test_a_new_import_changes_the_key(tmp_path: Path) -> None:
    assert key(tmp_path / "a") != key(tmp_path / "b", far="import os\nfrom . import apart")
    both = {"far": "import os\nfrom . import apart"}
    assert key(tmp_path / "c", **both) != key(tmp_path / "d", **both, apart="changed = 1")


def test_a_module_that_moved_changes_the_key(tmp_path: Path) -> None:
    moved = {"stage": SMALL["stage"].replace(".near", ".nearer"), "near": None, "nearer": SMALL["near"]}
    here = written(tmp_path / "a", SMALL, stage="from . import near")
    there = written(tmp_path / "b", SMALL, stage="from . import  near", near=None, **{"near.__init__": SMALL["near"]})
    assert key(tmp_path / "c") != key(tmp_path / "d", **moved)
    assert digest(here, "small.stage") != digest(there, "small.stage")


def test_an_import_for_type_checkers_does_not_count(tmp_path: Path) -> None:
    far = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import apart\nelse:\n    from . import late"
    package = written(tmp_path, SMALL, far=far)
    assert imported(package, "small.far") == {"small.late"}
    assert imported(package, "small.far", typing=True) == {"small.apart", "small.late"}


def test_display_only_modules_are_excluded(tmp_path: Path) -> None:
    far = "from .shown import bar\nfrom .shown.bar import Bar\nfrom . import shown"
    assert imported(written(tmp_path, SMALL, far=far), "small.far") == frozenset()


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    pass\nexcept OSError:\n    from . import late",
        "for x in ():\n    pass\nelse:\n    from . import late",
        "with x:\n    class A:\n        def f(self):\n            from . import late",
        "match x:\n    case 1:\n        from . import late",
        "try:\n    pass\nfinally:\n    from small.late import *",
        "import_module('.late', __package__)",
        "importlib.import_module('small.late')",
    ],
)
def test_imports_are_found_in_any_scope(source: str, tmp_path: Path) -> None:
    assert imported(written(tmp_path, SMALL, far=source), "small.far") == {"small.late"}


def test_imports_include_line_numbers() -> None:
    source = "import a\n\nfrom . import b, c\nimport_module(f'peagle.verbs.{name}')"
    assert list(imports_of(source, "peagle.x")) == [
        (1, "a"), (3, "peagle.x.b"), (3, "peagle.x.c"), (4, "peagle.verbs."),
    ]  # fmt: skip


def test_a_partial_function_counts_as_the_function() -> None:
    assert code_digest(partial(partial(calibrate), None)) == code_digest(calibrate) == digest(PEAGLE, CALIBRATE)


def test_external_function_adds_its_file_and_imports() -> None:
    names = import_closure.closure(PEAGLE, __name__)
    assert {__name__, CALIBRATE, "peagle.compiler.store.import_closure"} <= names
    assert code_digest(written) == digest(PEAGLE, __name__) != code_digest(calibrate)


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be found"):
        digest(written(tmp_path, SMALL), "small.gone")
    with pytest.raises(BuildError, match="cannot be found"):
        digest(PEAGLE, "made.up")


# ------------------------------------------------------------------------------------------------ our own stages


def stages_of(path: Path) -> Iterator[tuple[str, str]]:
    """(beginning of a stage's name, module) of each ``store.run("name", key, make)`` in a file of the repository."""
    module = ".".join(("peagle", *path.relative_to(ROOT).with_suffix("").parts))
    text = path.read_text()
    for call in ast.walk(ast.parse(text if ".run(" in text else "")):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "run":
            name = call.args[0] if len(call.args) == 3 else None
            name = name.values[0] if isinstance(name, ast.JoinedStr) else name
            if isinstance(name, ast.Constant):
                yield str(name.value), module


STAGES = dict(stage for path in sorted((ROOT / "compiler").rglob("*.py")) for stage in stages_of(path))
MODULES = sorted({*STAGES.values(), CALIBRATE})


def test_the_stages_are_found() -> None:
    of_graphs, of_kernels = {"trace-", "attach-", "plan-"}, {"kernels", "cpu-library", "cpu-kernels", "plugin-library"}
    assert set(STAGES) == {
        *of_graphs,
        *of_kernels,
        "choose-k",
        "batch-costs",
        "check-numbers",
        "cpu-speed",
        "gguf",
        "skeleton",
    }


@pytest.mark.parametrize("module", MODULES)
def test_verbs_and_console_do_not_invalidate_stages(module: str) -> None:
    aside = tuple(f"peagle.compiler.{wing}" for wing in ("cli", "console", "resources", "verbs", "verify"))
    assert not [name for name in import_closure.closure(PEAGLE, module) if name.startswith(aside)]


@pytest.mark.parametrize("module", [STAGES["trace-"], STAGES["attach-"], CALIBRATE])
def test_runtime_does_not_invalidate_graphs(module: str) -> None:
    names = {name for name in import_closure.closure(PEAGLE, module) if name.startswith("peagle.engines.")}
    texts = ("text", "errors", "answer_styles") if module == CALIBRATE else ()  # of the samples
    assert names
    assert {name.split(".")[2] for name in names} <= {"folder", "panics", *texts}  # a GGUF's tokenizer may panic


def modules_below(folder: str) -> set[str]:
    """The names of all modules below a folder of the repository."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / folder).rglob("*.py"))
    return {".".join(("peagle", *path.parts)).removesuffix(".__init__") for path in paths}


@pytest.mark.parametrize("stage", ["trace-", "attach-"])
def test_graph_key_includes_its_builders(stage: str) -> None:
    names = import_closure.closure(PEAGLE, STAGES[stage])
    formats = (f"compiler/checkpoints/{each}" for each in ("formats", "gguf"))
    for folder in ("graphs/lowering", "graphs/targets", "plugins/ops/accept_prefix", *formats):
        assert modules_below(folder) <= names
    assert {"peagle.graphs.trace", "peagle.graphs.stream_weights", "peagle.plugins.op_spec"} <= names


def test_the_process_that_builds_a_plan_is_in_its_key() -> None:
    assert modules_below("compiler/tensorrt") <= import_closure.closure(PEAGLE, STAGES["plan-"])


@pytest.mark.parametrize("module", MODULES)
def test_stage_key_includes_its_inputs(module: str) -> None:
    names = import_closure.closure(PEAGLE, module)
    followed = {name for name in names if name != "peagle.engines"}  # which is only on the way to engines.folder
    handed = {other for name in followed for other in imported(PEAGLE, name, typing=True) - imported(PEAGLE, name)}
    assert handed - names <= set(HANDED)


def test_each_module_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (import_closure.digest, import_closure.closure, import_closure.imported, import_closure._file):
        cached.cache_clear()
    read: list[str] = []

    def counted(source: str, package: str, *, typing: bool = True) -> Iterator[tuple[int, str]]:
        read.append(source)
        return imports_of(source, package, typing=typing)

    monkeypatch.setattr(import_closure, "imports_of", counted)
    for stage in ("attach-", "plan-"):
        digest(PEAGLE, STAGES[stage])
    assert len(read) > 100
    assert len(read) <= len(
        import_closure.closure(PEAGLE, STAGES["attach-"]) | import_closure.closure(PEAGLE, STAGES["plan-"])
    )


def test_expressions_are_not_searched_for_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ast, "walk", lambda tree: pytest.fail("every node of a module without import_module was visited")
    )
    assert [name for _, name in imports_of("import os\nif x: from .a import b", "small")] == ["os", "small.a.b"]
