"""The runtime needs no build libraries, and the command line's help imports little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.tree import module_of, package_files

# A serving host installs the runtime only; typer belongs to the command line.
NOT_IN_THE_RUNTIME = {"torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "typer"}


def modules_after(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after running `code`."""
    report = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_no_module_of_the_engines_brings_a_build_library() -> None:
    names = [module_of(path) for path in package_files() if path.parts[0] == "engines"]
    assert "peagle.engines.engine" in names
    assert not modules_after("import " + ", ".join(names)) & NOT_IN_THE_RUNTIME


def test_a_build_library_would_be_noticed() -> None:
    assert "typer" in modules_after("import typer") & NOT_IN_THE_RUNTIME


def run_without(names: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter in which importing any of `names` fails, as if it were not installed."""
    block = f"import sys\nsys.modules.update(dict.fromkeys({sorted(names)}))\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, check=False)


def test_runtime_generates_without_build_packages(demo_engine: Path) -> None:
    code = (
        "from peagle.engines import Engine, SamplingParams\n"
        f"engine = Engine.load({str(demo_engine)!r})\n"
        "print(len(engine.generate(['def f('], SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids))"
    )
    done = run_without(NOT_IN_THE_RUNTIME, code)
    assert done.stdout == "8\n", done.stderr


def test_a_missing_library_is_missing() -> None:
    assert "ModuleNotFoundError" in run_without(NOT_IN_THE_RUNTIME, "import onnx.helper").stderr


def test_help_imports_little() -> None:
    """Numpy alone takes longer to import than all of the help does."""
    code = "import peagle.compiler.cli, sys\nsys.argv = ['peagle-compile', '--help']\n"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code + "peagle.compiler.cli.main()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Usage" in done.stdout, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert not {name.partition(".")[0] for name in imported} & {*NOT_IN_THE_RUNTIME - {"typer"}, "numpy", "onnxruntime"}
    assert len(imported) < 400
