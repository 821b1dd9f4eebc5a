"""An installation without extras: what requires one names it, and everything else works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_EXTRAS = """
import importlib.util, json, sys
from peagle.plugins.optional_packages import EXTRAS
HIDDEN = {name.partition(".")[0] for modules in EXTRAS.values() for name in modules}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from peagle.compiler.cli import run_cli
for line in sys.stdin:
    code = run_cli(json.loads(line))
    print("\\nCODE", code, flush=True)
    print("\\nEND", file=sys.stderr, flush=True)
"""


def codes_without_extras(*commands: list[str]) -> list[tuple[int, str]]:
    """Exit code and complaint of each command, where no package of an extra can be imported."""
    text = "".join(json.dumps(command) + "\n" for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], input=text, capture_output=True, text=True, check=True
    )
    codes = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("CODE ")]
    return list(zip(codes, done.stderr.split("\nEND\n")[:-1], strict=True))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("without") / "out"


@pytest.fixture(scope="module")
def told(demo_engine: Path, out: Path) -> dict[str, list[tuple[int, str]]]:
    """What the commands of both groups told, in one process."""
    run = ["run", str(demo_engine), "--prompt", "def f(", "--max-tokens", "3"]
    works = [["models"], ["doctor"], ["inspect", str(demo_engine)], run]
    demo = ["--model", "demo", "--out", str(out)]
    names = [
        ["build", *demo],
        ["build", "--model", "qwen3-coder-30b", "--dry-run"],
        ["build", *demo, "--backend", "tensorrt-rtx", "--gpu", "sm_120", "--precision", "fp16"],
        ["export", *demo],
        ["export", "--model", "qwen3-coder-30b", "--dry-run"],
        ["quantize", *demo],
        ["verify", str(demo_engine)],
        ["build", "--model", "Owner/name", "--draft", "Owner/head", "--out", str(out)],
    ]
    every = codes_without_extras(*works, *names)
    return {"works": every[: len(works)], "names": every[len(works) :]}


def test_every_verb_names_its_missing_extra(told: dict[str, list[tuple[int, str]]], out: Path) -> None:
    assert [code for code, _ in told["names"]] == [3] * 8
    for _, text in told["names"]:
        assert re.search(r"fix: .*pip install .*\[export(,rtx)?\]", text), text
        assert "internal error of peagle-compile" not in text
    assert list(out.parent.iterdir()) == []


def test_extra_free_features_work(told: dict[str, list[tuple[int, str]]]) -> None:
    assert [code for code, _ in told["works"]] == [0] * 4, told["works"]
