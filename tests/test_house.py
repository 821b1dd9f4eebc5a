"""The house rules that a reviewer would otherwise have to remember: imports, packaging, weight, tracked files.

Each rule is a small function that returns complaints; every one is also tried on a bad example, so that it can fail.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# folder -> the folders of ours it may import. Imports point one way: nothing imports the compiler.
MAY_IMPORT: dict[str, set[str]] = {
    "plugins": set(),
    "graphs": {"plugins"},
    "engines": {"plugins"},
    "compiler": {"graphs", "plugins", "engines"},
}
NOT_PACKAGED = {"tests", "tools", "benchmarks", "examples", "docs"}

# A serving host installs the runtime only; typer belongs to the command line.
NOT_IN_THE_RUNTIME = {"torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "typer"}

MAX_BYTES = 8_000_000
HELP_CPU_SECONDS = 0.5


# ---------------------------------------------------------------------------------------------- one-way imports


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import in `source`, which lives in `package`; also import_module("literal")."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _literal_import(node)):
            yield node.lineno, resolve_name(name, package)


def _literal_import(call: ast.Call) -> str | None:
    """The constant (or the constant beginning of an f-string) given to import_module or __import__."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in {"import_module", "__import__"} or not call.args:
        return None
    argument = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def package_of(path: Path) -> str:
    """The package whose relative imports apply inside `path`, a file relative to the root."""
    return ".".join(("peagle", *path.parent.parts))


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


def package_files() -> list[Path]:
    """Every Python file of the installed package, relative to the root."""
    return [p.relative_to(ROOT) for folder in MAY_IMPORT for p in sorted((ROOT / folder).rglob("*.py"))]


def test_imports_point_one_way() -> None:
    files = package_files()
    assert {path.parts[0] for path in files} == set(MAY_IMPORT)
    assert not [c for path in files for c in wrong_imports(path, (ROOT / path).read_text())]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("plugins/spec.py", "from ..graphs import trace"),
        ("plugins/rope/__init__.py", "from ...engines import engine"),
        ("graphs/trace.py", "from .. import compiler"),
        ("graphs/families/qwen.py", "if TYPE_CHECKING:\n    from ...engines.engine import Engine"),
        ("engines/strategies/plain.py", "def f():\n    import peagle.graphs.trace"),
        ("engines/strategies/plain.py", "importlib.import_module('...compiler', __package__)"),
        ("engines/strategies/plain.py", "import_module(f'peagle.compiler.verbs.{verb}')"),
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


# ------------------------------------------------------------------------------------- the runtime stands alone


def modules_after(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after running `code`."""
    report = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_engines_brings_no_build_library() -> None:
    assert not modules_after("import peagle.engines, peagle.engines.engine") & NOT_IN_THE_RUNTIME


def test_no_module_of_the_engines_brings_a_build_library() -> None:
    files = [path.with_suffix("") for path in package_files() if path.parts[0] == "engines"]
    names = [".".join(("peagle", *path.parts)).removesuffix(".__init__") for path in files]
    assert "peagle.engines.engine" in names
    assert not modules_after("import " + ", ".join(names)) & NOT_IN_THE_RUNTIME


def test_a_build_library_would_be_noticed() -> None:
    assert "typer" in modules_after("import typer") & NOT_IN_THE_RUNTIME


def run_without(names: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter in which importing any of `names` fails, as if it were not installed."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({sorted(names)}))\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, check=False)


def test_the_runtime_generates_where_no_build_library_is_installed(demo_engine: Path) -> None:
    code = (
        "from peagle.engines import Engine, SamplingParams\n"
        f"engine = Engine.load({str(demo_engine)!r})\n"
        "print(len(engine.generate(['def f('], SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids))"
    )
    done = run_without(NOT_IN_THE_RUNTIME, code)
    assert done.stdout == "8\n", done.stderr


def test_a_missing_library_is_missing() -> None:
    assert "ModuleNotFoundError" in run_without(NOT_IN_THE_RUNTIME, "import onnx.helper").stderr


# ----------------------------------------------------------------------------------- packaging and dependencies


def packaging_complaints(root: Path, folders: Mapping[str, str], declared: list[str]) -> list[str]:
    """Folders with Python files that are not declared packages, declared packages that are none."""
    complaints, found = [], set()
    for package, folder in folders.items():
        for directory in sorted({path.parent for path in (root / folder).rglob("*.py")}):
            name = ".".join((package, *directory.relative_to(root / folder).parts))
            found.add(name)
            if not (directory / "__init__.py").exists():
                complaints.append(f"{name} has no __init__.py")
    complaints += [f"{name} is missing in pyproject.toml's packages" for name in sorted(found - set(declared))]
    complaints += [f"pyproject.toml lists {name}, which has no code" for name in sorted(set(declared) - found)]
    return complaints


def test_every_package_is_declared() -> None:
    settings = PYPROJECT["tool"]["setuptools"]
    assert set(settings["package-dir"].values()) == set(MAY_IMPORT)
    assert packaging_complaints(ROOT, settings["package-dir"], settings["packages"]) == []


def test_packaging_mistakes_are_found(tmp_path: Path) -> None:
    for name in ("graphs/__init__.py", "graphs/targets/__init__.py", "graphs/bare/module.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    complaints = packaging_complaints(tmp_path, {"p.graphs": "graphs"}, ["p.graphs", "p.graphs.bare", "p.graphs.gone"])
    assert len(complaints) == 3
    for word in ("bare", "families", "gone"):
        assert any(word in complaint for complaint in complaints)


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


def test_the_lock_pins_what_the_project_wants() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = [PYPROJECT["build-system"]["requires"], project["dependencies"]]
    wanted += [extras[name] for name in ("export", "rtx", "dev")]
    assert lock_complaints((ROOT / "requirements.lock").read_text(), wanted) == []


def test_lock_mistakes_are_found() -> None:
    lock = "# comment\ntorch==2.13.0+cpu\nnumpy>=2\nrich==15.0.0\n"
    assert len(lock_complaints(lock, [["rich", "typer>=0.20"]])) == 3


# ------------------------------------------------------------------------------------------- the CLI stays light


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one successful run, whatever else the machine is doing."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_answers_at_once() -> None:
    command = [str(Path(sys.executable).with_name("peagle-compile")), "--help"]
    assert min(cpu_seconds(command) for _ in range(3)) < HELP_CPU_SECONDS


def test_a_slow_answer_would_be_noticed() -> None:
    busy = f"import time\nwhile time.process_time() < {HELP_CPU_SECONDS}: pass"
    assert cpu_seconds([sys.executable, "-c", busy]) >= HELP_CPU_SECONDS


# -------------------------------------------------------------------------------------------- what is tracked

# A clone must not depend on the machine it was written on.
MACHINE = re.compile(r"(?<![\w.-])/(?:work|root)/|\.\./shared\b")


def tracked_files(root: Path) -> list[Path]:
    """What git tracks or would track; in an unpacked archive, everything outside hidden and cache folders."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        done = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True)
        return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]
    skip = re.compile(r"\..*|__pycache__|.*\.egg-info|build|dist|demo-engine")
    files = (path for path in root.rglob("*") if path.is_file())
    return [path for path in files if not any(skip.fullmatch(part) for part in path.relative_to(root).parts)]


def tracking_complaints(path: Path, max_bytes: int = MAX_BYTES) -> list[str]:
    """Too large, or a text that names a machine's folders."""
    content = path.read_bytes()
    complaints = [f"{path}: {len(content)} bytes"] if len(content) > max_bytes else []
    if b"\0" not in content[:8192]:
        text = content.decode("utf-8", errors="replace")
        complaints += [f"{path}: names {match[0]}" for match in MACHINE.finditer(text)]
    return complaints


def test_tracked_files_are_small_and_belong_to_no_machine() -> None:
    files = tracked_files(ROOT)
    assert Path(__file__).resolve() in files
    assert [complaint for path in files for complaint in tracking_complaints(path)] == []


def test_a_large_or_local_file_is_found(tmp_path: Path) -> None:
    bad, good, binary = tmp_path / "bad.md", tmp_path / "good.md", tmp_path / "binary.bin"
    folder = "/" + "work/"
    bad.write_text(f"see {folder}main and .{'.'}/shared/notes.md")
    good.write_text(f"a net{folder}main or /roots/ or ../shared_state")
    binary.write_bytes(b"\0" + folder.encode())
    assert len(tracking_complaints(bad, max_bytes=10)) == 3
    assert tracking_complaints(good) == tracking_complaints(binary) == []
